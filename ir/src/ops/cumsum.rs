//! Running sums.
//!
//! - **ONNX**: CumSum (since 11).
//! - **Semantics**: `out[i] = Σ_{j ≤ i} x[j]` along a dimension; `exclusive` leaves `i` itself out,
//!   `reverse` sums from the end.
//! - **Split**: the dimension stays whole, the others are parallel. Linear.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::lanes::Lanes;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Running sums along a dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CumSum {
    /// The dimension.
    pub axis: usize,
    /// Whether an element's own value is left out.
    pub exclusive: bool,
    /// Whether sums run from the end.
    pub reverse: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("CumSum", 11, decode).results(&[ResultType::SameAs(0)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let Running { axis, exclusive, reverse } = decode_running(d)?;
    Ok(vec![d.push(CumSum { axis, exclusive, reverse }, &[d.input(0)?])?])
}

/// How values run along a dimension, as the fields of [`CumSum`] say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub axis: usize,
    pub exclusive: bool,
    pub reverse: bool,
}

/// Reads the axis, which is input 1, and the attributes.
pub(super) fn decode_running(d: &Decoder<'_>) -> Result<Running, OpError> {
    let axis = d.known_ints(1, "it names the axis")?;
    let [axis] = axis[..] else {
        return Err(OpError::Invalid(format!("takes one axis, not {}", axis.len())));
    };
    Ok(Running {
        axis: d.ty(d.input(0)?).axis(axis)?,
        exclusive: d.int_or("exclusive", 0)? != 0,
        reverse: d.int_or("reverse", 0)? != 0,
    })
}

impl Running {
    /// The type, if it is one of numbers that has the dimension.
    pub fn infer(self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        inputs[0].axis(self.axis as i64)?;
        if inputs[0].dtype == DType::Bool {
            return Err(OpError::UnsupportedType { found: DType::Bool });
        }
        Ok(vec![inputs[0].clone()])
    }

    /// Replaces each element of each lane by the combination of those before it.
    pub fn run<T: Copy>(self, shape: &[u64], x: &mut [T], neutral: T, combine: impl Fn(T, T) -> T) {
        let lanes = Lanes::new(shape, self.axis);
        for start in lanes.starts() {
            let mut so_far = neutral;
            for k in 0..lanes.n {
                let at = lanes.at(start, if self.reverse { lanes.n - 1 - k } else { k });
                let next = combine(so_far, x[at]);
                x[at] = if self.exclusive { so_far } else { next };
                so_far = next;
            }
        }
    }
}

impl CumSum {
    fn running(&self) -> Running {
        Running { axis: self.axis, exclusive: self.exclusive, reverse: self.reverse }
    }
}

impl OpDef for CumSum {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        self.running().infer(inputs)
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = factors::along(inputs, outputs, &[self.axis]);
        if inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 1.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, ty) = (inputs[0], inputs[0].ty().clone());
        Ok(vec![if ty.dtype.is_float() {
            let mut sums = x.to_f64s();
            self.running().run(x.shape(), &mut sums, 0.0, |a, b| a + b);
            Tensor::from_f64(ty, |i| sums[i])?
        } else {
            let mut sums: Vec<i128> = (0..x.len()).map(|i| x.int_at(i)).collect();
            self.running().run(x.shape(), &mut sums, 0, i128::wrapping_add);
            Tensor::from_int(ty, |i| sums[i])?
        }])
    }

    /// Sums that run the other way.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let g = v.gradient()?;
        Ok(vec![Some(v.push(Self { reverse: !self.reverse, ..self.clone() }, &[g])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
