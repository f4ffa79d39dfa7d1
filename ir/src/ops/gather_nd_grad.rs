//! The gradient of a lookup along several dimensions at once.
//!
//! - **ONNX**: none; the gradient of GatherND is made of it.
//! - **Semantics**: `out[b.., j.., r..] = Σ g[b.., i.., r..]` over all `i` with `indices[b.., i.., :] =
//!   j`.
//! - **Split**: `b.. i.. q, b.. i.. r.. -> b.. v.. r..`; the indexed dimensions `v` and the index itself
//!   `q` stay whole, positions `i` are a sum. Linear in `g`.

use super::decode::DecoderEntry;
use super::gather_nd::{GatherNd, rows};
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a [`GatherNd`]. Inputs: indices, the gradient `g` of what was looked up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatherNdGrad {
    /// Leading dimensions that both inputs share.
    pub batch_dims: usize,
    /// Extents of the dimensions that were indexed.
    pub indexed: Vec<u64>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl GatherNdGrad {
    /// The result's extents, for indices of the given rank.
    fn shape(&self, g: &[u64], indices: usize) -> Vec<u64> {
        [&g[..self.batch_dims], &self.indexed, &g[indices - 1..]].concat()
    }
}

impl OpDef for GatherNdGrad {
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
        let fits = match indices.shape.split_last() {
            Some((&q, positions)) => {
                q == self.indexed.len() as u64
                    && self.batch_dims <= positions.len()
                    && g.shape.starts_with(positions)
            }
            None => false,
        };
        if !fits {
            return Err(OpError::ShapeMismatch {
                lhs: indices.shape.clone(),
                rhs: g.shape.clone(),
                why: "the gradient begins with the indices' positions, of which each is an index",
            });
        }
        Ok(vec![TensorType::new(g.dtype, self.shape(&g.shape, indices.rank()))])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let (indices, b) = (&inputs[0].shape, self.batch_dims);
        let rest = b + self.indexed.len();
        let mut rule = RuleBuilder::new();
        let data = factors::dims(&mut rule, &outputs[0].shape, |i| (b..rest).contains(&i));
        let own: Vec<_> = (indices[b..].iter().zip(factors::INDEX_DIMS).enumerate())
            .map(|(i, (&n, name))| {
                let last = i + 1 == indices.len() - b;
                let sum = FactorKind::Reduce(ReduceKind::Sum);
                rule.factor(name, n, if last { FactorKind::Whole } else { sum })
            })
            .collect();
        let positions = &own[..own.len() - 1];
        rule.input([&data[..b], &own].concat().into_iter().map(Some));
        rule.input([&data[..b], positions, &data[rest..]].concat().into_iter().map(Some));
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
        let rows = rows(indices, self.batch_dims, &self.indexed)?;
        let inner = elements(&ty.shape[self.batch_dims + self.indexed.len()..]) as usize;
        for i in 0..g.len() {
            sums[rows[i / inner] * inner + i % inner] += g.f64_at(i);
        }
        Ok(vec![Tensor::from_f64(ty, |i| sums[i])?])
    }

    /// The lookup itself.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, indices) = (v.gradient()?, v.inputs[0]);
        let lookup = GatherNd { batch_dims: self.batch_dims };
        Ok(vec![None, Some(v.push(lookup, &[g, indices])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
