//! The index of the largest or smallest element along a dimension.
//!
//! - **ONNX**: ArgMax, ArgMin (since 1).
//! - **Semantics**: the index of the extreme element; of equal ones the first, or the last if so
//!   asked.
//! - **Split**: the dimension stays whole, the others are parallel.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::lanes::Lanes;
use super::top_k::compare;
use super::{Build, OpDef, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// The index of an extreme element.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgReduce {
    /// The dimension.
    pub axis: usize,
    /// The largest rather than the smallest.
    pub largest: bool,
    /// Whether the dimension is kept as 1.
    pub keep: bool,
    /// Of equal elements the last.
    pub last: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("ArgMax", 1, |d| decode(d, true)).results(&[ResultType::Element(DType::I64)]),
    DecoderEntry::onnx("ArgMin", 1, |d| decode(d, false)).results(&[ResultType::Element(DType::I64)]),
];

fn decode(d: &mut Decoder<'_>, largest: bool) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let op = ArgReduce {
        axis: d.ty(x).axis(d.int_or("axis", 0)?)?,
        largest,
        keep: d.int_or("keepdims", 1)? != 0,
        last: d.int_or("select_last_index", 0)? != 0,
    };
    Ok(vec![d.push(op, &[x])?])
}

impl ArgReduce {
    fn shape(&self, from: &[u64]) -> Vec<u64> {
        let mut shape = from.to_vec();
        if self.keep {
            shape[self.axis] = 1;
        } else {
            shape.remove(self.axis);
        }
        shape
    }
}

impl OpDef for ArgReduce {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let axis = inputs[0].axis(self.axis as i64)?;
        if inputs[0].shape[axis] == 0 {
            return Err(OpError::Invalid("looks for an element of an empty axis".into()));
        }
        Ok(vec![TensorType::new(DType::I64, self.shape(&inputs[0].shape))])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |i| i == self.axis);
        rule.input(dims.iter().copied().map(Some));
        let kept = (0..dims.len()).filter(|&i| self.keep || i != self.axis);
        rule.output(kept.map(|i| (i != self.axis).then_some(dims[i])).collect::<Vec<_>>());
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0).with_flops(inputs[0].elements() as f64)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let lanes = Lanes::new(x.shape(), self.axis);
        let best = |start| {
            (1..lanes.n).fold(0, |best, k| {
                let order = compare(x, lanes.at(start, k), lanes.at(start, best));
                let order = if self.largest { order } else { order.reverse() };
                let better = order == Ordering::Greater || (self.last && order == Ordering::Equal);
                if better { k } else { best }
            })
        };
        let found: Vec<usize> = lanes.starts().map(best).collect();
        let ty = TensorType::new(DType::I64, self.shape(x.shape()));
        Ok(vec![Tensor::from_int(ty, |i| found[i] as i128)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
