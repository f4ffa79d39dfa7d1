//! Looking up along a dimension.
//!
//! - **ONNX**: Gather (since 1).
//! - **Semantics**: `out[.., i.., ..] = data[.., indices[i..], ..]`; negative indices count from
//!   the back.
//! - **Split**: `a.. v c.., i.. -> a.. i.. c..`. A table split along `v` gives partial sums, since
//!   each rank contributes 0 for indices that lie elsewhere. Linear in the data.

use super::decode::{Decoder, DecoderEntry};
use super::gather_grad::GatherGrad;
use super::lanes::{Lanes, index};
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A lookup. Inputs: data, indices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    /// The dimension of `data` that is indexed.
    pub axis: usize,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Gather", 1, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (data, indices) = (d.input(0)?, d.input(1)?);
    let axis = d.ty(data).axis(d.int_or("axis", 0)?)?;
    Ok(vec![d.push(Gather { axis }, &[data, indices])?])
}

impl Gather {
    fn shape(&self, data: &[u64], indices: &[u64]) -> Vec<u64> {
        [&data[..self.axis], indices, &data[self.axis + 1..]].concat()
    }
}

impl OpDef for Gather {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        inputs[0].dim(self.axis)?;
        if !inputs[1].dtype.is_int() {
            return Err(OpError::UnsupportedType { found: inputs[1].dtype });
        }
        let shape = self.shape(&inputs[0].shape, &inputs[1].shape);
        Ok(vec![TensorType::new(inputs[0].dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dtype = inputs[0].dtype;
        let looked_up = if dtype == DType::Bool {
            FactorKind::Whole
        } else {
            FactorKind::Reduce(ReduceKind::Sum)
        };
        let data: Vec<_> = inputs[0]
            .shape
            .iter()
            .zip(factors::DIMS)
            .enumerate()
            .map(|(i, (&n, name))| {
                let kind = if i == self.axis { looked_up } else { FactorKind::Parallel };
                rule.factor(name, n, kind)
            })
            .collect();
        let indices =
            factors::named(&mut rule, &factors::INDEX_DIMS, &inputs[1].shape, |_| false);
        rule.input(data.iter().copied().map(Some));
        rule.input(indices.iter().copied().map(Some));
        let out = [&data[..self.axis], &indices, &data[self.axis + 1..]].concat();
        rule.output(out.into_iter().map(Some));
        if dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        // Only the rows that are looked up are read.
        Work::memory(&[inputs[1].clone(), outputs[0].clone()], outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (data, indices) = (inputs[0], inputs[1]);
        let lanes = Lanes::new(data.shape(), self.axis);
        let n = data.shape()[self.axis];
        let rows = (0..indices.len())
            .map(|i| index(indices.int_at(i), n))
            .collect::<Result<Vec<_>, _>>()?;
        let shape = self.shape(data.shape(), indices.shape());
        let count = elements(indices.shape()) as usize;
        let gathered = data.select(shape, |i| {
            let (outer, row, inner) =
                (i / lanes.inner / count, i / lanes.inner % count, i % lanes.inner);
            (outer * lanes.n + rows[row]) * lanes.inner + inner
        })?;
        Ok(vec![gathered])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, indices) = (v.gradient()?, v.inputs[1]);
        let extent = v.shape(v.inputs[0])[self.axis];
        let rows = v.push(GatherGrad { axis: self.axis, extent }, &[indices, g])?;
        Ok(vec![Some(rows), None])
    }

    fn lower(&self) -> Kernel {
        Kernel::Gather { axis: self.axis }
    }
}
