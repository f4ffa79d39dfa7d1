//! Picking single elements along a dimension.
//!
//! - **ONNX**: GatherElements (since 11).
//! - **Semantics**: `out[.., i, ..] = data[.., indices[.., i, ..], ..]`.
//! - **Split**: the dimension stays whole, as do those where data and indices differ; the others
//!   are parallel. Linear in the data.

use super::decode::{Decoder, DecoderEntry};
use super::lanes::index;
use super::scatter::Update;
use super::scatter_elements::ScatterElements;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::tensor::{strides, unravel};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A lookup of single elements. Inputs: data, indices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatherElements {
    /// The dimension.
    pub axis: usize,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("GatherElements", 11, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (data, indices) = (d.input(0)?, d.input(1)?);
    let axis = d.ty(data).axis(d.int_or("axis", 0)?)?;
    Ok(vec![d.push(GatherElements { axis }, &[data, indices])?])
}

/// Checks that indices fit data: integers of the same rank, and nowhere larger but along the axis.
pub fn check(data: &TensorType, indices: &TensorType, axis: usize) -> Result<(), OpError> {
    data.axis(axis as i64)?;
    if !indices.dtype.is_int() {
        return Err(OpError::UnsupportedType { found: indices.dtype });
    }
    let fits = |(i, (n, m)): (usize, (&u64, &u64))| i == axis || m <= n;
    if data.rank() != indices.rank()
        || !data.shape.iter().zip(&indices.shape).enumerate().all(fits)
    {
        return Err(OpError::ShapeMismatch {
            lhs: data.shape.clone(),
            rhs: indices.shape.clone(),
            why: "indices have the data's rank and reach no further but along the axis",
        });
    }
    Ok(())
}

/// For each element of the indices, the row-major index of the element of the data that it names.
pub fn targets(data: &[u64], indices: &Tensor, axis: usize) -> Result<Vec<usize>, EvalError> {
    let strides = strides(data);
    (0..indices.len())
        .map(|i| {
            let mut coord = unravel(i, indices.shape());
            coord[axis] = index(indices.int_at(i), data[axis])?;
            Ok(coord.iter().zip(&strides).map(|(c, s)| c * s).sum())
        })
        .collect()
}

impl OpDef for GatherElements {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        check(&inputs[0], &inputs[1], self.axis)?;
        Ok(vec![TensorType::new(inputs[0].dtype, inputs[1].shape.clone())])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = factors::along(inputs, outputs, &[self.axis]);
        if inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (data, indices) = (inputs[0], inputs[1]);
        let targets = targets(data.shape(), indices, self.axis)?;
        Ok(vec![data.select(indices.shape(), |i| targets[i])?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, indices) = (v.gradient()?, v.inputs[1]);
        let zeros = v.zeros(v.ty(v.inputs[0]))?;
        let add = ScatterElements { axis: self.axis, update: Update::Add };
        Ok(vec![Some(v.push(add, &[zeros, indices, g])?), None])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
