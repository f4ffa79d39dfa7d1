//! The largest or smallest elements along a dimension.
//!
//! - **ONNX**: TopK (since 1; `k` is an input since 10).
//! - **Semantics**: the `k` largest (smallest) elements in descending (ascending) order, and their
//!   indices; of equal elements the one with the lower index comes first.
//! - **Split**: the dimension stays whole, the others are parallel.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::lanes::Lanes;
use super::scatter::Update;
use super::scatter_elements::ScatterElements;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// The `k` largest or smallest elements. Outputs: values, indices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopK {
    /// The dimension.
    pub axis: usize,
    /// How many.
    pub k: u64,
    /// The largest rather than the smallest.
    pub largest: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("TopK", 1, decode).results(&[ResultType::ElementOf(0), ResultType::Element(DType::I64)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let k = match d.int("k")? {
        Some(k) => k,
        None => match d.known_ints(1, "it decides the outputs' extents")?[..] {
            [k] => k,
            _ => return Err(OpError::Invalid("takes one number as `k`".into())),
        },
    };
    let k = u64::try_from(k).map_err(|_| OpError::BadAttribute {
        name: "k",
        why: format!("{k} is negative"),
    })?;
    let op = TopK {
        axis: d.ty(x).axis(d.int_or("axis", -1)?)?,
        k,
        largest: d.int_or("largest", 1)? != 0,
    };
    d.push_multi(op, &[x])
}

impl OpDef for TopK {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let mut shape = inputs[0].shape.clone();
        let axis = inputs[0].axis(self.axis as i64)?;
        if self.k > shape[axis] {
            let why = format!("{} of an axis of extent {}", self.k, shape[axis]);
            return Err(OpError::BadAttribute { name: "k", why });
        }
        shape[axis] = self.k;
        let indices = TensorType::new(DType::I64, shape.clone());
        Ok(vec![TensorType::new(inputs[0].dtype, shape), indices])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        factors::along(inputs, outputs, &[self.axis]).build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let n = inputs[0].elements() as f64;
        Work::memory(inputs, outputs, 0.0).with_flops(n * (self.k.max(2) as f64).log2())
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let lanes = Lanes::new(x.shape(), self.axis);
        let mut shape = x.shape().to_vec();
        shape[self.axis] = self.k;
        let to = Lanes::new(&shape, self.axis);
        let mut chosen = vec![(0, 0); Tensor::zeros(TensorType::new(DType::I64, &shape[..]))?.len()];
        for (from, start) in lanes.starts().zip(to.starts()) {
            let at = |k| lanes.at(from, k);
            let mut order: Vec<usize> = (0..lanes.n).collect();
            order.sort_by(|&a, &b| {
                let ascending = compare(x, at(a), at(b));
                if self.largest { ascending.reverse() } else { ascending }
            });
            for (k, &index) in order.iter().take(to.n).enumerate() {
                chosen[to.at(start, k)] = (index, at(index));
            }
        }
        let values = x.select(shape.clone(), |i| chosen[i].1)?;
        let indices = TensorType::new(DType::I64, shape);
        Ok(vec![values, Tensor::from_int(indices, |i| chosen[i].0 as i128)?])
    }

    /// Of the values: to where they come from.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, indices) = (v.gradient()?, v.outputs[1]);
        let zeros = v.zeros(v.ty(v.inputs[0]))?;
        let add = ScatterElements { axis: self.axis, update: Update::Add };
        Ok(vec![Some(v.push(add, &[zeros, indices, g])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

/// Orders two elements; NaN is larger than all numbers.
pub fn compare(x: &Tensor, a: usize, b: usize) -> Ordering {
    if x.dtype().is_float() {
        let (a, b) = (x.f64_at(a), x.f64_at(b));
        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    } else {
        x.int_at(a).cmp(&x.int_at(b))
    }
}
