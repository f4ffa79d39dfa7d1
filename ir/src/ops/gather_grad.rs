//! The gradient of a lookup: rows are added where they were looked up.
//!
//! - **ONNX**: none; the gradient of Gather is made of it.
//! - **Semantics**: `out[.., j, ..] = Σ g[.., i.., ..]` over all `i` with `indices[i..] = j`; negative
//!   indices count from the back.
//! - **Split**: `i.., a.. i.. c.. -> a.. v c..`; the indices' dimensions are a sum. A rank that holds a
//!   part of `v` leaves out the indices that lie elsewhere. Linear in `g`.

use super::decode::DecoderEntry;
use super::gather::Gather;
use super::lanes::index;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a [`Gather`]. Inputs: indices, the gradient `g` of what was looked up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatherGrad {
    /// The dimension that was indexed.
    pub axis: usize,
    /// Its extent.
    pub extent: u64,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl GatherGrad {
    /// The result's extents, for indices of the given rank.
    fn shape(&self, g: &[u64], indices: usize) -> Vec<u64> {
        [&g[..self.axis], &[self.extent], &g[self.axis + indices..]].concat()
    }
}

impl OpDef for GatherGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let (indices, g) = (&inputs[0], &inputs[1]);
        if !indices.dtype.is_int() {
            return Err(OpError::UnsupportedType { found: indices.dtype });
        }
        if !g.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: g.dtype });
        }
        let from = g.shape.get(self.axis..).unwrap_or_default();
        if self.axis > g.rank() || !from.starts_with(&indices.shape) {
            return Err(OpError::ShapeMismatch {
                lhs: indices.shape.clone(),
                rhs: g.shape.clone(),
                why: "the gradient has the indices' extents in place of the axis",
            });
        }
        Ok(vec![TensorType::new(g.dtype, self.shape(&g.shape, indices.rank()))])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let data = factors::dims(&mut rule, &outputs[0].shape, |_| false);
        let sum = FactorKind::Reduce(ReduceKind::Sum);
        let positions = inputs[0].shape.iter().zip(factors::INDEX_DIMS);
        let indices: Vec<_> = positions.map(|(&n, name)| rule.factor(name, n, sum)).collect();
        rule.input(indices.iter().copied().map(Some));
        let g = [&data[..self.axis], &indices, &data[self.axis + 1..]].concat();
        rule.input(g.into_iter().map(Some));
        rule.output(data.into_iter().map(Some));
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0).with_flops(inputs[1].elements() as f64)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (indices, g) = (inputs[0], inputs[1]);
        let ty = TensorType::new(g.dtype(), self.shape(g.shape(), indices.shape().len()));
        let mut sums = Tensor::zeros(ty.clone())?.to_f64s();
        let rows = (0..indices.len())
            .map(|i| index(indices.int_at(i), self.extent))
            .collect::<Result<Vec<_>, _>>()?;
        let inner = elements(&ty.shape[self.axis + 1..]) as usize;
        for i in 0..g.len() {
            let (outer, row, within) =
                (i / inner / rows.len(), i / inner % rows.len(), i % inner);
            sums[(outer * self.extent as usize + rows[row]) * inner + within] += g.f64_at(i);
        }
        Ok(vec![Tensor::from_f64(ty, |i| sums[i])?])
    }

    /// The lookup itself.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, indices) = (v.gradient()?, v.inputs[0]);
        Ok(vec![None, Some(v.push(Gather { axis: self.axis }, &[g, indices])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::GatherGrad { axis: self.axis }
    }
}
