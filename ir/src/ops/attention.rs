//! Scaled dot-product attention.
//!
//! - **ONNX**: Attention is decoded in [`onnx_attention`](super::onnx_attention); the planner raises
//!   to this op what exporters wrote as matrix products around a softmax.
//! - **Semantics**: `softmax(mask(softcap(q · kᵀ · scale))) · v` for each head. Inputs: q
//!   `[batch, heads, queries, d]`, k `[batch, kv heads, keys, d]`, v `[batch, kv heads, keys, e]`, and a
//!   mask if there is one, which broadcasts to `[batch, heads, queries, keys]`. Query heads come in
//!   groups that share a key head. A mask of floats is added, and the sum rounded to its element type;
//!   where it is -∞ the key is hidden, whatever the score. A mask of bools hides keys where it is false,
//!   causality those behind the query's own position: their scores become [`Attention::hidden_score`]. A
//!   query all of whose scores are -∞ gets zeros or NaN.
//! - **Split**: batch, key heads, groups, queries and the elements of v are parallel; keys and the
//!   elements of q and k stay whole, since the softmax stands between.

use super::attention_grad::AttentionGrad;
use super::{Build, OpDef, Vjp, Work, WorkKind, broadcast, broadcast_index, same_dtype};
use crate::graph::{TensorType, ValueId};
use crate::ops::work::traffic;
use crate::program::Kernel;
use crate::sharding::{FactorId, FactorKind, FactorRule, RuleBuilder};
use crate::tensor::round_to;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// An attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Factor of the scores.
    #[serde(with = "crate::number")]
    pub scale: f64,
    /// `c · tanh(score / c)` bounds the scores, before any mask.
    pub softcap: Option<f64>,
    /// Query `i` sees keys `0 ..= i + offset`.
    pub causal: Option<i64>,
    /// The score of a key that a mask of bools or causality hides. If it is finite, a query that sees no
    /// key attends to all of them alike.
    #[serde(with = "crate::number")]
    pub hidden_score: f64,
    /// A query all of whose scores are -∞ gets 0 instead of NaN.
    pub zero_unseeing: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[super::DecoderEntry] = &[];

impl Attention {
    /// Attention without masks.
    pub const fn plain(scale: f64) -> Self {
        Self {
            scale,
            softcap: None,
            causal: None,
            hidden_score: f64::NEG_INFINITY,
            zero_unseeing: false,
        }
    }

    /// The masked score of a key; `added` is the float mask's element and type, `seen` whether neither
    /// bool mask nor causality hide the key.
    pub fn masked(&self, score: f64, added: Option<(f64, DType)>, seen: bool) -> f64 {
        let score = score * self.scale;
        let score = self.softcap.map_or(score, |c| c * (score / c).tanh());
        match added {
            _ if !seen => self.hidden_score,
            Some((added, _)) if added == f64::NEG_INFINITY => added,
            Some((added, dtype)) => round_to(dtype, score + added),
            None => score,
        }
    }

    /// Whether the masked score of a key follows its score; else it is constant.
    pub fn follows(added: Option<(f64, DType)>, seen: bool) -> bool {
        seen && added.is_none_or(|(added, _)| added != f64::NEG_INFINITY)
    }

    /// The derivative of the masked score of a key by its score, where it follows it.
    pub fn slope(&self, score: f64) -> f64 {
        let bent = self.softcap.map_or(0.0, |c| (score * self.scale / c).tanh());
        self.scale * (1.0 - bent * bent)
    }

    /// Whether causality lets query `i` see key `j`.
    pub fn reaches(&self, i: u64, j: u64) -> bool {
        self.causal.is_none_or(|offset| i128::from(j) <= i128::from(i) + i128::from(offset))
    }
}

/// Extents of an attention.
pub(super) struct Extents {
    pub batch: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub queries: u64,
    pub keys: u64,
    pub depth: u64,
    pub width: u64,
}

impl Extents {
    pub fn new(inputs: &[TensorType]) -> Result<Self, OpError> {
        if inputs.len() < 3 || inputs.len() > 4 {
            return Err(OpError::InputCount { expected: "3 or 4".into(), found: inputs.len() });
        }
        if let Some(index) = (0..3).find(|&i| inputs[i].rank() != 4) {
            let found = inputs[index].rank();
            return Err(OpError::Rank { index, found, expected: "4".into() });
        }
        let (q, k, v) = (&inputs[0].shape, &inputs[1].shape, &inputs[2].shape);
        let mismatch = |lhs: &[u64], rhs: &[u64], why| {
            Err(OpError::ShapeMismatch { lhs: lhs.to_vec(), rhs: rhs.to_vec(), why })
        };
        if k[..3] != v[..3] {
            return mismatch(k, v, "each key has a value");
        }
        if q[0] != k[0] || q[3] != k[3] {
            return mismatch(q, k, "queries and keys have one batch and depth");
        }
        if q[1] != 0 && (k[1] == 0 || q[1] % k[1] != 0) {
            return mismatch(q, k, "key heads must divide query heads");
        }
        Ok(Self {
            batch: q[0],
            heads: q[1],
            kv_heads: k[1],
            queries: q[2],
            keys: k[2],
            depth: q[3],
            width: v[3],
        })
    }

    pub fn scores(&self) -> [u64; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// The factors of a mask's dimensions, from those of the scores.
    pub fn mask_dims(&self, mask: &[u64], full: &[Vec<FactorId>; 4]) -> Vec<Vec<FactorId>> {
        let (skip, scores) = (4 - mask.len(), self.scores());
        let own = mask.iter().zip(&scores[skip..]).zip(&full[skip..]);
        own.map(|((&n, &of), dim)| if n == of { dim.clone() } else { Vec::new() }).collect()
    }

    pub fn group(&self) -> u64 {
        self.heads.checked_div(self.kv_heads).unwrap_or(1)
    }
}

impl OpDef for Attention {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let e = Extents::new(inputs)?;
        let dtype = same_dtype(&inputs[0], &inputs[1])?;
        same_dtype(&inputs[0], &inputs[2])?;
        if !dtype.is_float() {
            return Err(OpError::UnsupportedType { found: dtype });
        }
        if let Some(mask) = inputs.get(3) {
            if !mask.dtype.is_float() && mask.dtype != DType::Bool {
                return Err(OpError::UnsupportedType { found: mask.dtype });
            }
            let scores = e.scores();
            if mask.rank() > 4 || broadcast(&mask.shape, &scores)? != scores {
                return Err(OpError::ShapeMismatch {
                    lhs: mask.shape.clone(),
                    rhs: scores.to_vec(),
                    why: "the mask must broadcast to the scores",
                });
            }
        }
        Ok(vec![TensorType::new(dtype, [e.batch, e.heads, e.queries, e.width])])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let Ok(e) = Extents::new(inputs) else {
            return FactorRule::opaque(&vec![4; inputs.len()], &[4], "its extents do not fit");
        };
        let mut rule = RuleBuilder::new();
        let mut parallel = |name, size| rule.factor(name, size, FactorKind::Parallel);
        let [b, h, g] = [parallel("b", e.batch), parallel("h", e.kv_heads), parallel("g", e.group())];
        let [s, w] = [parallel("s", e.queries), parallel("e", e.width)];
        let mut whole = |name, size| rule.factor(name, size, FactorKind::Whole);
        let [t, d] = [whole("t", e.keys), whole("d", e.depth)];
        // Each key head with its group of query heads.
        let heads = if e.kv_heads == 0 { vec![h] } else { vec![h, g] };
        rule.input_products(vec![vec![b], heads.clone(), vec![s], vec![d]]);
        rule.input_products(vec![vec![b], vec![h], vec![t], vec![d]]);
        rule.input_products(vec![vec![b], vec![h], vec![t], vec![w]]);
        if let Some(mask) = inputs.get(3) {
            let full = [vec![b], heads.clone(), vec![s], vec![t]];
            rule.input_products(e.mask_dims(&mask.shape, &full));
        }
        rule.output_products(vec![vec![b], heads, vec![s], vec![w]]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let bytes = traffic(inputs, outputs);
        let Ok(e) = Extents::new(inputs) else {
            return Work { kind: WorkKind::Memory, flops: 0.0, bytes };
        };
        let products = [e.batch, e.heads, e.queries, e.keys].iter().fold(2.0, |n, &x| n * x as f64);
        let kind = WorkKind::Attention {
            batch: e.batch.saturating_mul(e.heads),
            queries: e.queries,
            keys: e.keys,
            depth: e.depth,
            width: e.width,
        };
        Work { kind, flops: products * (e.depth as f64 + e.width as f64), bytes }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let scores = Scores::new(self, inputs)?;
        let e = &scores.extents;
        let (keys, width) = (e.keys as usize, e.width as usize);
        let v = inputs[2].to_f64s();
        let mut out = Vec::new();
        for row in 0..scores.rows() {
            let (weights, kv) = (scores.weights(row), scores.first_key(row));
            out.extend((0..width).map(|c| {
                (0..keys).map(|j| weights[j] * v[(kv + j) * width + c]).sum::<f64>()
            }));
        }
        let ty = TensorType::new(inputs[0].dtype(), [e.batch, e.heads, e.queries, e.width]);
        Ok(vec![Tensor::from_f64(ty, |i| out[i])?])
    }

    /// One op, which computes the weights again instead of keeping them.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let inputs = [&[v.gradient()?], &v.inputs[..]].concat();
        let op = AttentionGrad { attention: self.clone(), mask: v.wants(3) };
        let mut gradients: Vec<Option<ValueId>> =
            v.push_multi(op, &inputs)?.into_iter().map(Some).collect();
        gradients.resize(v.inputs.len(), None);
        if let Some(Some(of_mask)) = gradients.get_mut(3) {
            *of_mask = v.cast(*of_mask, v.ty(inputs[4]).dtype)?;
        }
        Ok(gradients)
    }

    fn lower(&self) -> Kernel {
        Kernel::Attention(self.clone())
    }
}

/// The scores of an attention on these operands, for reference evaluations. Queries are numbered
/// through all heads of all batches, and so are keys.
pub(super) struct Scores<'a> {
    pub extents: Extents,
    attention: &'a Attention,
    q: Vec<f64>,
    k: Vec<f64>,
    mask: Option<&'a Tensor>,
}

impl<'a> Scores<'a> {
    /// Of the attention's operands.
    pub fn new(attention: &'a Attention, inputs: &[&'a Tensor]) -> Result<Self, EvalError> {
        let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
        let extents = Extents::new(&types).map_err(|e| EvalError::Invalid(e.to_string()))?;
        let (q, k) = (inputs[0].to_f64s(), inputs[1].to_f64s());
        Ok(Self { extents, attention, q, k, mask: inputs.get(3).copied() })
    }

    /// How many queries there are.
    pub const fn rows(&self) -> usize {
        (self.extents.batch * self.extents.heads * self.extents.queries) as usize
    }

    /// The first key that a query meets.
    pub fn first_key(&self, row: usize) -> usize {
        let e = &self.extents;
        row / e.queries as usize / e.group() as usize * e.keys as usize
    }

    /// The elements of a query and of one of the keys that it meets.
    pub fn pair(&self, row: usize, j: usize) -> (&[f64], &[f64]) {
        let depth = self.extents.depth as usize;
        let key = self.first_key(row) + j;
        (&self.q[row * depth..][..depth], &self.k[key * depth..][..depth])
    }

    /// The score before scale and masks.
    pub fn raw(&self, row: usize, j: usize) -> f64 {
        let (q, k) = self.pair(row, j);
        q.iter().zip(k).map(|(x, y)| x * y).sum()
    }

    /// Which element of a mask of this shape stands for a key.
    pub fn mask_index(&self, mask: &[u64], row: usize, j: usize) -> usize {
        let at = row * self.extents.keys as usize + j;
        broadcast_index(mask, &self.extents.scores(), at)
    }

    /// What the masks say of a key: what is added to its score, and whether it is seen.
    pub fn masks(&self, row: usize, j: usize) -> (Option<(f64, DType)>, bool) {
        let given = self.mask.map(|m| {
            let at = self.mask_index(m.shape(), row, j);
            (m.f64_at(at), m.dtype())
        });
        let hidden = matches!(given, Some((x, DType::Bool)) if x == 0.0);
        let query = row as u64 % self.extents.queries;
        let seen = !hidden && self.attention.reaches(query, j as u64);
        (given.filter(|(_, dtype)| *dtype != DType::Bool), seen)
    }

    /// The weights of all keys.
    pub fn weights(&self, row: usize) -> Vec<f64> {
        let masked = |j| {
            let (added, seen) = self.masks(row, j);
            self.attention.masked(self.raw(row, j), added, seen)
        };
        let mut weights: Vec<f64> = (0..self.extents.keys as usize).map(masked).collect();
        softmax(&mut weights, self.attention.zero_unseeing);
        weights
    }
}

/// Softmax of one query's scores; of one that sees no key, zeros if asked for.
fn softmax(scores: &mut [f64], zero_unseeing: bool) {
    if zero_unseeing && scores.iter().all(|&x| x == f64::NEG_INFINITY) {
        scores.fill(0.0);
        return;
    }
    let max = scores.iter().fold(f64::NEG_INFINITY, |a, &b| if b > a || b.is_nan() { b } else { a });
    let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
    for x in scores {
        *x = (*x - max).exp() / sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(op: &Attention, mask: Option<&Tensor>) -> Vec<f64> {
        let q = Tensor::new([1, 1, 2, 1], vec![1f64, 2.0]).unwrap();
        let k = Tensor::new([1, 1, 3, 1], vec![0f64, 1.0, 2.0]).unwrap();
        let v = Tensor::new([1, 1, 3, 1], vec![1f64, 10.0, 100.0]).unwrap();
        let inputs: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(mask).collect();
        op.eval(&inputs).unwrap().remove(0).to_f64s()
    }

    fn close(found: &[f64], expected: &[f64]) {
        for (x, y) in found.iter().zip(expected) {
            assert!((x - y).abs() < 1e-9 || (x.is_nan() && y.is_nan()), "{found:?} {expected:?}");
        }
    }

    #[test]
    fn causality_counts_from_the_offset() {
        let op = Attention { causal: Some(0), ..Attention::plain(1.0) };
        let e = 2f64.exp();
        close(&eval(&op, None), &[1.0, (1.0 + 10.0 * e) / (1.0 + e)]);
        let past = Attention { causal: Some(2), ..Attention::plain(1.0) };
        close(&eval(&past, None), &eval(&Attention::plain(1.0), None));
    }

    #[test]
    fn a_query_that_sees_nothing_gets_what_is_asked_for() {
        let hidden = Tensor::new([1, 3], vec![false; 3]).unwrap();
        let hide = || Some(&hidden);
        let plain = Attention::plain(1.0);
        assert!(eval(&plain, hide()).iter().all(|x| x.is_nan()));
        close(&eval(&Attention { zero_unseeing: true, ..plain.clone() }, hide()), &[0.0; 2]);
        let finite = Attention { hidden_score: f64::from(f32::MIN), ..plain.clone() };
        close(&eval(&finite, hide()), &[37.0; 2]);
        let low = Tensor::new([3], vec![f32::MIN; 3]).unwrap();
        close(&eval(&plain, Some(&low)), &[37.0; 2]);
    }

    #[test]
    fn scores_are_scaled_bent_and_masked_in_this_order() {
        let op = Attention { softcap: Some(0.5), ..Attention::plain(0.25) };
        let mask = Tensor::new([3], vec![1f64, f64::NEG_INFINITY, -1.0]).unwrap();
        let bent = |x: f64| 0.5 * (x * 0.25 / 0.5).tanh();
        let expected = [1.0, 2.0].map(|q| {
            let (a, b) = (1f64.exp(), (bent(2.0 * q) - 1.0).exp());
            (a + 100.0 * b) / (a + b)
        });
        close(&eval(&op, Some(&mask)), &expected);
    }

    #[test]
    fn a_narrow_mask_rounds_the_scores() {
        let op = Attention::plain(1.0);
        let low = Tensor::new([3], vec![half::f16::MIN; 3]).unwrap();
        close(&eval(&op, Some(&low)), &[37.0; 2]);
    }
}
