//! ONNX Runtime's fused attention, decoded into projections and [`Attention`].
//!
//! - **ONNX**: com.microsoft Attention, MultiHeadAttention.
//! - **Semantics**: `softmax(Q·Kᵀ·scale + mask + bias) · V` for each head, computed in f32 at least.
//!   Attention projects its input to queries, keys and values first; MultiHeadAttention may add a
//!   bias to them. A mask adds `mask_filter_value` to the scores of the keys that it hides; a
//!   `unidirectional` one hides those behind the query.

use super::attention::Attention;
use super::concat::Concat;
use super::decode::{Decoder, DecoderEntry};
use super::matmul::MatMul;
use super::onnx_attention::{Extents, product};
use super::{Build, heads, range};
use super::softmax::Softmax;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::microsoft("Attention", attention),
    DecoderEntry::microsoft("MultiHeadAttention", multi_head),
];

type Outputs = Result<Vec<ValueId>, OpError>;

/// What happens between queries, keys and values `[batch, heads, positions, elements]`.
pub(super) struct Attend {
    /// Factor of the scores; `None` for one over the root of the elements.
    pub scale: Option<f64>,
    /// `c · tanh(score / c)` bounds the scores.
    pub softcap: Option<f64>,
    /// Query `i` sees keys `0 ..= i + offset`.
    pub causal: Option<i64>,
    /// Which keys are seen, broadcasting to the scores.
    pub visible: Option<ValueId>,
    /// What is added to the scores, each broadcasting to them.
    pub biases: Vec<ValueId>,
    /// One value a head that takes part in the softmax like the score of a key without a value.
    pub sink: Option<ValueId>,
    /// Whether the scores are asked for.
    pub shows_scores: bool,
}

impl Attend {
    /// With the attributes `scale` and `softcap`.
    pub fn new(d: &Decoder<'_>) -> Result<Self, OpError> {
        let positive = |x: f32| Some(f64::from(x)).filter(|x| *x > 0.0 && x.is_finite());
        Ok(Self {
            scale: Some(f64::from(d.float_or("scale", 0.0)?)).filter(|s| *s != 0.0),
            softcap: positive(d.float_or("softcap", 0.0)?),
            causal: None,
            visible: None,
            biases: Vec::new(),
            sink: None,
            shows_scores: false,
        })
    }

    /// Adds what a mask input and the attribute `unidirectional` hide.
    fn mask(
        &mut self,
        d: &mut Decoder<'_>,
        q: ValueId,
        k: ValueId,
        mask: Option<ValueId>,
    ) -> Result<(), OpError> {
        let e = Extents::new(&d.shape(q), &d.shape(k))?;
        if let Some(mask) = mask {
            let visible = visible(d, mask, &e)?;
            let hidden = f64::from(d.float_or("mask_filter_value", -10_000.0)?);
            self.biases.push(hide(d, visible, hidden)?);
        }
        if d.int_or("unidirectional", 0)? != 0 {
            // The queries are the last of the keys.
            self.causal = Some(e.keys.saturating_sub(e.queries) as i64);
        }
        Ok(())
    }

    /// The result, and the scores with what was added to them if they are asked for.
    pub fn push(
        mut self,
        d: &mut Decoder<'_>,
        [q, k, v]: [ValueId; 3],
    ) -> Result<(ValueId, Option<ValueId>), OpError> {
        let e = Extents::new(&d.shape(q), &d.shape(k))?;
        let scale = self.scale.unwrap_or_else(|| 1.0 / (d.shape(q)[3] as f64).sqrt());
        if self.sink.is_some() || self.shows_scores {
            return self.decomposed(d, &e, scale, [q, k, v]);
        }
        let op = Attention { softcap: self.softcap, causal: self.causal, ..Attention::plain(scale) };
        let mut inputs = vec![q, k, v];
        if self.biases.is_empty() {
            inputs.extend(self.visible);
        } else {
            if let Some(visible) = self.visible {
                self.biases.push(hide(d, visible, f64::NEG_INFINITY)?);
            }
            let mut sum = d.cast(self.biases[0], DType::F32)?;
            for &bias in &self.biases[1..] {
                let bias = d.cast(bias, DType::F32)?;
                sum = d.map(F::Add, &[sum, bias])?;
            }
            inputs.push(sum);
        }
        Ok((d.push(op, &inputs)?, None))
    }

    /// As matrix products, elementwise ops and a softmax.
    fn decomposed(
        self,
        d: &mut Decoder<'_>,
        e: &Extents,
        scale: f64,
        [q, k, v]: [ValueId; 3],
    ) -> Result<(ValueId, Option<ValueId>), OpError> {
        let dtype = d.ty(q).dtype;
        let wide = if dtype.bytes() < 4 { DType::F32 } else { dtype };
        let [q, k, v] = [d.cast(q, wide)?, d.cast(k, wide)?, d.cast(v, wide)?];
        let q = d.scale(q, scale)?;
        let mut scores = product(d, e, q, k, true)?;
        if let Some(softcap) = self.softcap {
            let small = d.scale(scores, 1.0 / softcap)?;
            let bent = d.map(F::Tanh, &[small])?;
            scores = d.scale(bent, softcap)?;
        }
        let mut biases = self.biases;
        if let Some(offset) = self.causal {
            let column = range::along(d, 0, e.keys, 1, 2)?;
            let row = range::along(d, offset, e.queries, 0, 2)?;
            let visible = d.map(F::LessOrEqual, &[column, row])?;
            biases.push(hide(d, visible, f64::NEG_INFINITY)?);
        }
        if let Some(visible) = self.visible {
            biases.push(hide(d, visible, f64::NEG_INFINITY)?);
        }
        for bias in biases {
            let bias = d.cast(bias, wide)?;
            scores = d.map(F::Add, &[scores, bias])?;
        }
        let softmax = Softmax { axis: 3, log: false };
        let weights = match self.sink {
            None => d.push(softmax, &[scores])?,
            Some(sink) => {
                let sink = d.cast(sink, wide)?;
                let sink = d.reshape(sink, [1, e.heads, 1, 1])?;
                let sink = d.expand(sink, [e.batch, e.heads, e.queries, 1])?;
                let with_sink = d.push(Concat { axis: 3 }, &[scores, sink])?;
                let weights = d.push(softmax, &[with_sink])?;
                d.slice(weights, 3, 0, e.keys)?
            }
        };
        let y = product(d, e, weights, v, false)?;
        Ok((d.cast(y, dtype)?, Some(d.cast(scores, dtype)?)))
    }
}

/// Inputs: x, weight, bias, mask, past, bias of the scores.
fn attention(d: &mut Decoder<'_>) -> Outputs {
    refuse(d, &["do_rotary", "past_present_share_buffer"], &[6])?;
    let heads = heads::count(d, "num_heads")?;
    let product = MatMul { trans_a: false, trans_b: false };
    let mut qkv = d.push(product, &[d.input(0)?, d.input(1)?])?;
    if let Some(bias) = d.optional(2) {
        qkv = d.map(F::Add, &[qkv, bias])?;
    }
    let [_, _, width] = d.shape(qkv)[..] else {
        return Err(OpError::Rank { index: 0, found: d.ty(qkv).rank(), expected: "3".into() });
    };
    let widths = match d.ints("qkv_hidden_sizes")? {
        None => vec![width / 3; 3],
        Some(list) => list.iter().map(|&n| u64::try_from(n).unwrap_or(0)).collect(),
    };
    let [q, k, v] = split(d, qkv, 2, &widths)?;
    let [q, mut k, mut v] =
        [heads::apart(d, q, heads)?, heads::apart(d, k, heads)?, heads::apart(d, v, heads)?];
    if let Some(past) = d.optional(4) {
        let shape = d.shape(past);
        if shape.len() != 5 || shape[0] != 2 {
            let expected = "5, the first extent 2".to_string();
            return Err(OpError::Rank { index: 4, found: shape.len(), expected });
        }
        for (i, x) in [&mut k, &mut v].into_iter().enumerate() {
            let past = d.slice(past, 0, i as u64, i as u64 + 1)?;
            let past = d.reshape(past, &shape[1..])?;
            *x = d.push(Concat { axis: 2 }, &[past, *x])?;
        }
    }
    let mut attend = Attend::new(d)?;
    attend.mask(d, q, k, d.optional(3))?;
    attend.biases.extend(d.optional(5));
    let (y, _) = attend.push(d, [q, k, v])?;
    let mut outputs = vec![heads::joined(d, y)?];
    if d.outputs > 1 {
        let parts = [k, v].map(|x| {
            let shape = [&[1], &d.shape(x)[..]].concat();
            d.reshape(x, shape)
        });
        let [k, v] = parts;
        outputs.push(d.push(Concat { axis: 0 }, &[k?, v?])?);
    }
    Ok(outputs)
}

/// Inputs: queries, keys, values, their bias, mask, bias of the scores, past keys, past values.
fn multi_head(d: &mut Decoder<'_>) -> Outputs {
    refuse(d, &[], &[8, 9])?;
    let heads = heads::count(d, "num_heads")?;
    let [q, mut k, mut v] = projected(d, heads)?;
    match (d.optional(6), d.optional(7)) {
        (Some(past_k), Some(past_v)) => {
            k = d.push(Concat { axis: 2 }, &[past_k, k])?;
            v = d.push(Concat { axis: 2 }, &[past_v, v])?;
        }
        (None, None) => {}
        _ => return Err(OpError::Invalid("has a past key or a past value, but not both".into())),
    }
    let mut attend = Attend::new(d)?;
    attend.mask(d, q, k, d.optional(4))?;
    attend.biases.extend(d.optional(5));
    attend.shows_scores = d.outputs > 3;
    let (y, scores) = attend.push(d, [q, k, v])?;
    let y = heads::joined(d, y)?;
    Ok([y, k, v].into_iter().chain(scores).collect())
}

/// Queries, keys and values with their bias, heads apart. Keys and values may come with heads apart,
/// then without bias; all three, or the last two, may come packed as `[batch, positions, heads, 3 or
/// 2, elements]`.
fn projected(d: &mut Decoder<'_>, heads: u64) -> Result<[ValueId; 3], OpError> {
    let flat = |d: &mut Decoder<'_>, packed: ValueId, which: u64| {
        let part = d.slice(packed, 3, which, which + 1)?;
        let [batch, positions, heads, _, elements] = d.shape(part)[..] else {
            return Err(OpError::Invalid("has packed operands of not 5 dimensions".into()));
        };
        d.reshape(part, [batch, positions, heads.saturating_mul(elements)])
    };
    let packed_parts = |d: &Decoder<'_>, x: ValueId| match d.shape(x)[..] {
        [_, _, _, parts, _] => Some(parts),
        _ => None,
    };
    let query = d.input(0)?;
    let operands = match d.optional(1) {
        None if packed_parts(d, query) == Some(3) => {
            [flat(d, query, 0)?, flat(d, query, 1)?, flat(d, query, 2)?]
        }
        Some(key) if packed_parts(d, key) == Some(2) => {
            [query, flat(d, key, 0)?, flat(d, key, 1)?]
        }
        _ => [query, d.input(1)?, d.input(2)?],
    };
    let mut offset = 0u64;
    let mut result = operands;
    for x in &mut result {
        let [_, _, width] = d.shape(*x)[..] else { continue };
        if let Some(bias) = d.optional(3) {
            let end = offset.saturating_add(width);
            if d.ty(bias).rank() != 1 || d.shape(bias)[0] < end {
                let why = "the bias is one list for queries, keys and values";
                let (lhs, rhs) = (d.shape(bias), d.shape(*x));
                return Err(OpError::ShapeMismatch { lhs, rhs, why });
            }
            let bias = d.slice(bias, 0, offset, end)?;
            *x = d.map(F::Add, &[*x, bias])?;
            offset = end;
        }
        *x = heads::apart(d, *x, heads)?;
    }
    Ok(result)
}

/// A tensor cut into three along a dimension.
fn split(
    d: &mut Decoder<'_>,
    x: ValueId,
    axis: usize,
    extents: &[u64],
) -> Result<[ValueId; 3], OpError> {
    let &[a, b, c] = extents else {
        return Err(OpError::Invalid(format!("has {} hidden sizes, not 3", extents.len())));
    };
    let ends = [a, a.saturating_add(b), a.saturating_add(b).saturating_add(c)];
    if ends[2] != d.shape(x)[axis] {
        let why = format!("the hidden sizes {extents:?} are not {} together", d.shape(x)[axis]);
        return Err(OpError::Invalid(why));
    }
    Ok([d.slice(x, axis, 0, ends[0])?, d.slice(x, axis, ends[0], ends[1])?, {
        d.slice(x, axis, ends[1], ends[2])?
    }])
}

/// 0 where something holds, else `hidden`.
pub(super) fn hide(
    d: &mut Decoder<'_>,
    visible: ValueId,
    hidden: f64,
) -> Result<ValueId, OpError> {
    let (zero, hidden) = (d.scalar(DType::F32, 0.0)?, d.scalar(DType::F32, hidden)?);
    d.map(F::Where, &[visible, zero, hidden])
}

/// Which keys a mask shows, broadcasting to the scores. It is a number a key, a number a query and
/// key, or, one a sample, where the keys end, followed by where they start, if they start late.
fn visible(d: &mut Decoder<'_>, mask: ValueId, e: &Extents) -> Result<ValueId, OpError> {
    let shape = d.shape(mask);
    let zero = |d: &mut Decoder<'_>| d.scalar(d.graph.ty(mask).dtype, 0.0);
    match shape[..] {
        [n] if n == e.batch || n == 2 * e.batch => {
            let mask = d.cast(mask, DType::I64)?;
            let bound = |d: &mut Decoder<'_>, from: u64| {
                let part = d.slice(mask, 0, from, from + e.batch)?;
                d.reshape(part, [e.batch, 1, 1, 1])
            };
            let column = range::along(d, 0, e.keys, 1, 2)?;
            let end = bound(d, 0)?;
            let before = d.map(F::Less, &[column, end])?;
            if n == e.batch {
                return Ok(before);
            }
            let start = bound(d, e.batch)?;
            let after = d.map(F::GreaterOrEqual, &[column, start])?;
            d.map(F::And, &[before, after])
        }
        [b, t] if b == e.batch && t == e.keys => {
            let zero = zero(d)?;
            let visible = d.map(F::Greater, &[mask, zero])?;
            d.reshape(visible, [b, 1, 1, t])
        }
        [b, s, t] if b == e.batch && s == e.queries && t == e.keys => {
            let zero = zero(d)?;
            let visible = d.map(F::Greater, &[mask, zero])?;
            d.reshape(visible, [b, 1, s, t])
        }
        _ => Err(OpError::Unsupported(format!(
            "a mask {} for {} samples of {} queries and {} keys",
            d.ty(mask),
            e.batch,
            e.queries,
            e.keys
        ))),
    }
}

/// Fails if one of these attributes is set or one of these inputs is there.
pub(super) fn refuse(
    d: &Decoder<'_>,
    attributes: &[&'static str],
    inputs: &[usize],
) -> Result<(), OpError> {
    for &name in attributes {
        if d.int_or(name, 0)? != 0 {
            return Err(OpError::Unsupported(format!("attribute `{name}`")));
        }
    }
    match inputs.iter().find(|&&i| d.optional(i).is_some()) {
        Some(index) => Err(OpError::Unsupported(format!("input {index}"))),
        None => Ok(()),
    }
}
