//! Turning sequences around, each as far as it reaches.
//!
//! - **ONNX**: ReverseSequence (since 10).
//! - **Semantics**: of each sequence of the batch the first `length` elements are reversed, the
//!   others stay.
//! - **Split**: `t b d.., b -> t b d..`, the batch and time in either order. All but time are
//!   parallel. Linear.

use super::decode::{Decoder, DecoderEntry};
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::tensor::{strides, unravel};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A reversal. Inputs: sequences, lengths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReverseSequence {
    /// The dimension that is reversed.
    pub time: usize,
    /// The dimension that has one length an index.
    pub batch: usize,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("ReverseSequence", 10, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (x, lengths) = (d.input(0)?, d.input(1)?);
    let ty = d.ty(x);
    let op = ReverseSequence {
        time: ty.axis(d.int_or("time_axis", 0)?)?,
        batch: ty.axis(d.int_or("batch_axis", 1)?)?,
    };
    Ok(vec![d.push(op, &[x, lengths])?])
}

impl OpDef for ReverseSequence {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        inputs[0].dim(self.time)?;
        let batch = inputs[0].shape[inputs[0].dim(self.batch)?];
        if self.time == self.batch {
            return Err(OpError::Invalid("has the batch along the time".into()));
        }
        if !inputs[1].dtype.is_int() {
            return Err(OpError::UnsupportedType { found: inputs[1].dtype });
        }
        if inputs[1].shape != [batch] {
            return Err(OpError::ShapeMismatch {
                lhs: inputs[0].shape.clone(),
                rhs: inputs[1].shape.clone(),
                why: "each sequence has one length",
            });
        }
        Ok(vec![inputs[0].clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |d| d == self.time);
        rule.input(dims.iter().copied().map(Some));
        rule.input([Some(dims[self.batch])]);
        rule.output(dims.iter().copied().map(Some));
        if inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, lengths) = (inputs[0], inputs[1]);
        let steps = x.shape()[self.time];
        let mut reach = Vec::with_capacity(lengths.len());
        for length in (0..lengths.len()).map(|b| lengths.int_at(b)) {
            if !(0..=i128::from(steps)).contains(&length) {
                let why = format!("a sequence of length {length} in {steps} steps");
                return Err(EvalError::Invalid(why));
            }
            reach.push(length as usize);
        }
        let step = strides(x.shape())[self.time];
        let from = |i: usize| {
            let at = unravel(i, x.shape());
            let (t, length) = (at[self.time], reach[at[self.batch]]);
            if t < length { i - t * step + (length - 1 - t) * step } else { i }
        };
        Ok(vec![x.select(x.shape(), from)?])
    }

    /// Turned around once more.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, lengths) = (v.gradient()?, v.inputs[1]);
        Ok(vec![Some(v.push(self.clone(), &[g, lengths])?), None])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
