//! Softmax and its logarithm.
//!
//! - **ONNX**: Softmax, LogSoftmax (since 1; before 13 over all dimensions from `axis` on).
//! - **Semantics**: `exp(x - max) / Σ exp(x - max)` along a dimension.
//! - **Split**: the dimension stays whole, the others are parallel.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::lanes::{Lanes, floats};
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorRule, ReduceKind};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A softmax.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    /// The dimension.
    pub axis: usize,
    /// Whether the logarithm is taken.
    pub log: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Softmax", 1, |d| decode(d, false)).results(&[ResultType::SameAs(0)]),
    DecoderEntry::onnx("LogSoftmax", 1, |d| decode(d, true)).results(&[ResultType::SameAs(0)]),
];

fn decode(d: &mut Decoder<'_>, log: bool) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    if d.opset >= 13 {
        let axis = ty.axis(d.int_or("axis", -1)?)?;
        return Ok(vec![d.push(Softmax { axis, log }, &[x])?]);
    }
    let axis = ty.axis(d.int_or("axis", 1)?)?;
    let mut flat = ty.shape[..axis].to_vec();
    flat.push(elements(&ty.shape[axis..]));
    let flattened = d.reshape(x, flat)?;
    let result = d.push(Softmax { axis, log }, &[flattened])?;
    Ok(vec![d.reshape(result, ty.shape)?])
}

impl OpDef for Softmax {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        inputs[0].dim(self.axis)?;
        if !inputs[0].dtype.is_float() {
            return Err(OpError::UnsupportedType { found: inputs[0].dtype });
        }
        Ok(vec![inputs[0].clone()])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        factors::along(inputs, outputs, &[self.axis]).build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 5.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let mut x = inputs[0].to_f64s();
        let lanes = Lanes::new(inputs[0].shape(), self.axis);
        for start in lanes.starts() {
            let at = |k| lanes.at(start, k);
            let max = (0..lanes.n).map(|k| x[at(k)]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..lanes.n).map(|k| (x[at(k)] - max).exp()).sum();
            for k in 0..lanes.n {
                let shifted = x[at(k)] - max;
                x[at(k)] = if self.log { shifted - sum.ln() } else { shifted.exp() / sum };
            }
        }
        Ok(vec![floats(inputs[0].ty(), inputs[0].shape(), &x)?])
    }

    /// `y (g - Σ g y)`, and of the logarithm `g - e^y Σ g`.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, y) = (v.gradient()?, v.outputs[0]);
        let axes = [self.axis];
        Ok(vec![Some(if self.log {
            let sum = v.reduce(ReduceKind::Sum, g, &axes)?;
            let softmax = v.map(ScalarFn::Exp, &[y])?;
            let share = v.map(ScalarFn::Mul, &[softmax, sum])?;
            v.map(ScalarFn::Sub, &[g, share])?
        } else {
            let product = v.map(ScalarFn::Mul, &[g, y])?;
            let sum = v.reduce(ReduceKind::Sum, product, &axes)?;
            let rest = v.map(ScalarFn::Sub, &[g, sum])?;
            v.map(ScalarFn::Mul, &[rest, y])?
        })])
    }

    fn lower(&self) -> Kernel {
        Kernel::Softmax { axis: self.axis, log: self.log }
    }
}
