//! Writing single elements along a dimension.
//!
//! - **ONNX**: ScatterElements (since 11), Scatter (9 and 10).
//! - **Semantics**: `out = data`, then `out[.., indices[.., i, ..], ..]` is combined with
//!   `updates[.., i, ..]` for each element of the indices in order.
//! - **Split**: the dimension stays whole, as do those where data and indices differ; the others
//!   are parallel. Setting and adding are linear in data and updates together.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::gather_elements::{GatherElements, check, targets};
use super::scatter::Update;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors, range, same_dtype};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::FactorRule;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A write of single elements. Inputs: data, indices, updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScatterElements {
    /// The dimension.
    pub axis: usize,
    /// How updates combine.
    pub update: Update,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("ScatterElements", 11, decode).results(&[ResultType::SameAs(0)]),
    DecoderEntry::onnx("Scatter", 9, decode).results(&[ResultType::SameAs(0)]),
];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let inputs = [d.input(0)?, d.input(1)?, d.input(2)?];
    let axis = d.ty(inputs[0]).axis(d.int_or("axis", 0)?)?;
    Ok(vec![d.push(ScatterElements { axis, update: Update::decode(d)? }, &inputs)?])
}

impl OpDef for ScatterElements {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 3)?;
        check(&inputs[0], &inputs[1], self.axis)?;
        same_dtype(&inputs[0], &inputs[2])?;
        if inputs[1].shape != inputs[2].shape {
            return Err(OpError::ShapeMismatch {
                lhs: inputs[1].shape.clone(),
                rhs: inputs[2].shape.clone(),
                why: "there is one update an index",
            });
        }
        Ok(vec![inputs[0].clone()])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = factors::along(inputs, outputs, &[self.axis]);
        if self.update.is_linear() && inputs[0].dtype.is_float() {
            rule.linear([0, 2]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let targets = targets(inputs[0].shape(), inputs[1], self.axis)?;
        let pairs = targets.into_iter().enumerate().map(|(from, to)| (to, from));
        Ok(vec![self.update.apply(inputs[0], inputs[2], pairs)?])
    }

    /// An element that was replaced has none; of updates that replace, only the last has one.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, indices, axis) = (v.gradient()?, v.inputs[1], self.axis);
        let read = GatherElements { axis };
        if !self.update.is_linear() {
            return self.update.combined(
                v,
                |v, from| v.push(read.clone(), &[from, indices]),
                |v, update, [to, from]| v.push(Self { axis, update }, &[to, indices, from]),
            );
        }
        let set = self.update == Update::Set;
        let replace = Self { axis, update: Update::Set };
        let (mut data, mut updates) = (v.wants(0).then_some(g), None);
        if v.wants(0) && set {
            let zeros = v.zeros(v.ty(v.inputs[2]))?;
            data = Some(v.push(replace.clone(), &[g, indices, zeros])?);
        }
        if v.wants(2) {
            let mut gradient = v.push(read.clone(), &[g, indices])?;
            if set {
                let shape = v.shape(indices);
                let count = range::along(v, 0, shape[self.axis], self.axis, shape.len())?;
                let own = v.expand(count, shape)?;
                let table = v.zeros(TensorType::new(DType::I64, v.shape(v.inputs[0])))?;
                let last = v.push(replace, &[table, indices, own])?;
                let last = v.push(read, &[last, indices])?;
                let stays = v.map(ScalarFn::Equal, &[last, own])?;
                gradient = v.masked(stays, gradient)?;
            }
            updates = Some(gradient);
        }
        Ok(vec![data, None, updates])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
