//! Writing slices at positions along several dimensions at once.
//!
//! - **ONNX**: ScatterND (since 11).
//! - **Semantics**: `out = data`, then `out[indices[i.., :].., r..]` is combined with `updates[i..,
//!   r..]` for each position in order.
//! - **Split**: `v.. r.., i.. q, i.. r.. -> v.. r..`; all but `r` stay whole. Setting and adding
//!   are linear in data and updates together.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::lanes::index;
use super::scatter::Update;
use super::{Build, OpDef, Work, expect_inputs, factors, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A write of slices. Inputs: data, indices, updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScatterNd {
    /// How updates combine.
    pub update: Update,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("ScatterND", 11, decode).results(&[ResultType::SameAs(0)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let inputs = [d.input(0)?, d.input(1)?, d.input(2)?];
    Ok(vec![d.push(ScatterNd { update: Update::decode(d)? }, &inputs)?])
}

/// How many dimensions an index names.
fn depth(indices: &[u64]) -> usize {
    indices.last().map_or(0, |&q| q as usize)
}

impl OpDef for ScatterNd {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 3)?;
        let (data, indices, updates) = (&inputs[0], &inputs[1], &inputs[2]);
        same_dtype(data, updates)?;
        if !indices.dtype.is_int() {
            return Err(OpError::UnsupportedType { found: indices.dtype });
        }
        let Some((&q, positions)) = indices.shape.split_last() else {
            return Err(OpError::Rank { index: 1, found: 0, expected: "1 or more".into() });
        };
        if q > data.rank() as u64 {
            return Err(OpError::ShapeMismatch {
                lhs: data.shape.clone(),
                rhs: indices.shape.clone(),
                why: "an index is longer than the data's rank",
            });
        }
        let expected = [positions, &data.shape[q as usize..]].concat();
        if updates.shape != expected {
            return Err(OpError::ShapeMismatch {
                lhs: expected,
                rhs: updates.shape.clone(),
                why: "updates have the indices' positions and the rest of the data's extents",
            });
        }
        Ok(vec![data.clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let (data, indices) = (&inputs[0].shape, &inputs[1].shape);
        let q = depth(indices);
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, data, |i| i < q);
        let own = factors::named(&mut rule, &factors::INDEX_DIMS, indices, |_| true);
        let positions = &own[..own.len() - 1];
        rule.input(dims.iter().copied().map(Some));
        rule.input(own.iter().copied().map(Some));
        rule.input([positions, &dims[q..]].concat().into_iter().map(Some));
        rule.output(dims.iter().copied().map(Some));
        if self.update.is_linear() && inputs[0].dtype.is_float() {
            rule.linear([0, 2]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (data, indices) = (inputs[0], inputs[1]);
        let q = depth(indices.shape());
        let (named, rest) = data.shape().split_at(q);
        let positions = elements(&indices.shape()[..indices.shape().len() - 1]) as usize;
        let rows = (0..positions)
            .map(|p| {
                named.iter().enumerate().try_fold(0, |row, (k, &n)| {
                    Ok(row * n as usize + index(indices.int_at(p * q + k), n)?)
                })
            })
            .collect::<Result<Vec<usize>, EvalError>>()?;
        let inner = elements(rest) as usize;
        let pairs = rows.iter().enumerate().flat_map(|(p, row)| {
            (0..inner).map(move |i| (row * inner + i, p * inner + i))
        });
        Ok(vec![self.update.apply(data, inputs[2], pairs)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
