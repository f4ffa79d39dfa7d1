//! Looking up along several dimensions at once.
//!
//! - **ONNX**: GatherND (since 11; batch dimensions since 12).
//! - **Semantics**: `out[b.., i.., r..] = data[b.., indices[b.., i.., :].., r..]`.
//! - **Split**: `b.. v.. r.., b.. i.. q -> b.. i.. r..`; the indexed dimensions `v` and the index
//!   itself `q` stay whole. Linear in the data.

use super::decode::{Decoder, DecoderEntry};
use super::gather_nd_grad::GatherNdGrad;
use super::lanes::index;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A lookup. Inputs: data, indices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatherNd {
    /// Leading dimensions that both inputs share.
    pub batch_dims: usize,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("GatherND", 11, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (data, indices) = (d.input(0)?, d.input(1)?);
    let batch_dims = usize::try_from(d.int_or("batch_dims", 0)?).map_err(|_| {
        OpError::BadAttribute { name: "batch_dims", why: "is negative".into() }
    })?;
    Ok(vec![d.push(GatherNd { batch_dims }, &[data, indices])?])
}

impl GatherNd {
    /// First dimension of the data that is not indexed, from the indices' shape.
    fn rest(&self, indices: &[u64]) -> usize {
        self.batch_dims + indices.last().map_or(0, |&q| q as usize)
    }

    fn shape(&self, data: &[u64], indices: &[u64]) -> Vec<u64> {
        [&indices[..indices.len() - 1], &data[self.rest(indices)..]].concat()
    }
}

/// For each position of the indices, the row-major index of what it names in the batch dimensions and the
/// indexed ones.
pub(super) fn rows(
    indices: &Tensor,
    batch_dims: usize,
    indexed: &[u64],
) -> Result<Vec<usize>, EvalError> {
    let (batch, depth) = (&indices.shape()[..batch_dims], indexed.len());
    let positions = elements(&indices.shape()[..indices.shape().len() - 1]) as usize;
    let per_batch = (positions / (elements(batch) as usize).max(1)).max(1);
    (0..positions)
        .map(|p| {
            let coord = indexed.iter().enumerate();
            coord.map(|(k, &n)| (p * depth + k, n)).try_fold(p / per_batch, |row, (i, n)| {
                Ok(row * n as usize + index(indices.int_at(i), n)?)
            })
        })
        .collect()
}

impl OpDef for GatherNd {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let (data, indices) = (&inputs[0], &inputs[1]);
        if !indices.dtype.is_int() {
            return Err(OpError::UnsupportedType { found: indices.dtype });
        }
        let b = self.batch_dims;
        if indices.rank() <= b || data.rank() <= b {
            let (index, t) = if data.rank() <= b { (0, data) } else { (1, indices) };
            let expected = format!("more than {b} (batch_dims)");
            return Err(OpError::Rank { index, found: t.rank(), expected });
        }
        let depth = indices.shape[indices.rank() - 1];
        if depth > (data.rank() - b) as u64 || data.shape[..b] != indices.shape[..b] {
            return Err(OpError::ShapeMismatch {
                lhs: data.shape.clone(),
                rhs: indices.shape.clone(),
                why: "batch dimensions differ, or an index is longer than the data's rank",
            });
        }
        Ok(vec![TensorType::new(data.dtype, self.shape(&data.shape, &indices.shape))])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let (data, indices) = (&inputs[0].shape, &inputs[1].shape);
        let (b, rest) = (self.batch_dims, self.rest(indices));
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, data, |i| (b..rest).contains(&i));
        let own = factors::named(&mut rule, &factors::INDEX_DIMS, &indices[b..], |i| {
            i + 1 == indices.len() - b
        });
        let positions = &own[..own.len() - 1];
        rule.input(dims.iter().copied().map(Some));
        rule.input([&dims[..b], &own].concat().into_iter().map(Some));
        rule.output([&dims[..b], positions, &dims[rest..]].concat().into_iter().map(Some));
        if inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(&[inputs[1].clone(), outputs[0].clone()], outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (data, indices) = (inputs[0], inputs[1]);
        let (b, rest) = (self.batch_dims, self.rest(indices.shape()));
        let rows = rows(indices, b, &data.shape()[b..rest])?;
        let inner = elements(&data.shape()[rest..]) as usize;
        let shape = self.shape(data.shape(), indices.shape());
        Ok(vec![data.select(shape, |i| rows[i / inner] * inner + i % inner)?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, indices) = (v.gradient()?, v.inputs[1]);
        let (data, rest) = (v.shape(v.inputs[0]), self.rest(&v.shape(indices)));
        let indexed = data[self.batch_dims..rest].to_vec();
        let op = GatherNdGrad { batch_dims: self.batch_dims, indexed };
        Ok(vec![Some(v.push(op, &[indices, g])?), None])
    }

    fn lower(&self) -> Kernel {
        Kernel::GatherNd { batch_dims: self.batch_dims }
    }
}
