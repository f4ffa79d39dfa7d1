//! Writing slices at positions along several dimensions at once.
//!
//! - **ONNX**: ScatterND (since 11).
//! - **Semantics**: `out = data`, then `out[indices[i.., :].., r..]` is combined with `updates[i..,
//!   r..]` for each position in order.
//! - **Split**: `v.. r.., i.. q, i.. r.. -> v.. r..`; all but `r` stay whole. Setting and adding
//!   are linear in data and updates together.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::gather_nd::GatherNd;
use super::lanes::index;
use super::scatter::Update;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors, range, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
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

    /// An element that was replaced has none; of updates that replace, only the last has one.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, indices) = (v.gradient()?, v.inputs[1]);
        let read = GatherNd { batch_dims: 0 };
        if !self.update.is_linear() {
            return self.update.combined(
                v,
                |v, from| v.push(read.clone(), &[from, indices]),
                |v, update, [to, from]| v.push(Self { update }, &[to, indices, from]),
            );
        }
        let set = self.update == Update::Set;
        let replace = Self { update: Update::Set };
        let (mut data, mut updates) = (v.wants(0).then_some(g), None);
        if v.wants(0) && set {
            let zeros = v.zeros(v.ty(v.inputs[2]))?;
            data = Some(v.push(replace.clone(), &[g, indices, zeros])?);
        }
        if v.wants(2) {
            let mut gradient = v.push(read.clone(), &[g, indices])?;
            if set {
                let (shape, named) = (v.shape(indices), depth(&v.shape(indices)));
                let mut positions = shape[..shape.len() - 1].to_vec();
                let own = range::along(v, 0, elements(&positions), 0, 1)?;
                let own = v.reshape(own, positions.clone())?;
                let table = TensorType::new(DType::I64, &v.shape(v.inputs[0])[..named]);
                let table = v.zeros(table)?;
                let last = v.push(replace, &[table, indices, own])?;
                let last = v.push(read, &[last, indices])?;
                let stays = v.map(ScalarFn::Equal, &[last, own])?;
                positions.resize(v.shape(gradient).len(), 1);
                let stays = v.reshape(stays, positions)?;
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
