//! ONNX's attention, decoded into [`Attention`].
//!
//! - **ONNX**: Attention (since 23).
//! - **Semantics**: `softmax(Q·Kᵀ·scale + mask) · V` for each head. Groups of query heads may share
//!   a key and value head. Keys and values may come after those of earlier calls. A query that may
//!   look at no key gets 0. Where the scores are an output too, or the softmax is asked for in less
//!   than the operands' precision, it becomes matrix products, elementwise ops and a softmax.

use super::Build;
use super::attention::Attention;
use super::concat::Concat;
use super::decode::{Decoder, DecoderEntry, element_type};
use super::matmul::MatMul;
use super::pad::Pad;
use super::range;
use super::softmax::Softmax;
use crate::graph::ValueId;
use crate::program::kernel::PadMode;
use crate::scalar::ScalarFn as F;
use crate::sharding::ReduceKind;
use crate::{DType, OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Attention", 23, decode)];

/// Extents: batch, query heads, key and value heads, queries, keys.
pub(super) struct Extents {
    pub batch: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub queries: u64,
    pub keys: u64,
}

impl Extents {
    /// Of queries and keys `[batch, heads, positions, elements]`.
    pub fn new(q: &[u64], k: &[u64]) -> Result<Self, OpError> {
        let mismatch = |why| OpError::ShapeMismatch { lhs: q.to_vec(), rhs: k.to_vec(), why };
        match (q, k) {
            (&[batch, heads, queries, _], &[_, kv_heads, keys, _]) => {
                if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
                    return Err(mismatch("key heads must divide query heads"));
                }
                Ok(Self { batch, heads, kv_heads, queries, keys })
            }
            _ => Err(mismatch("queries and keys have four dimensions")),
        }
    }
}

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let flat = d.ty(d.input(0)?).rank() == 3;
    let q = heads(d, 0, "q_num_heads")?;
    let [mut k, mut v] = [heads(d, 1, "kv_num_heads")?, heads(d, 2, "kv_num_heads")?];
    let past = match (d.optional(4), d.optional(5)) {
        (Some(past_k), Some(past_v)) => {
            let before = d.ty(past_k);
            if before.rank() != 4 {
                let found = before.rank();
                return Err(OpError::Rank { index: 4, found, expected: "4".into() });
            }
            k = d.push(Concat { axis: 2 }, &[past_k, k])?;
            v = d.push(Concat { axis: 2 }, &[past_v, v])?;
            Some(before.shape[2])
        }
        (None, None) => None,
        _ => return Err(OpError::Invalid("has a past key or a past value, but not both".into())),
    };
    let e = Extents::new(&d.shape(q), &d.shape(k))?;

    let precision = match d.int("softmax_precision")? {
        Some(number) => element_type(number)?,
        None => d.ty(q).dtype,
    };
    let scale = f64::from(d.float_or("scale", 1.0 / (d.shape(q)[3] as f32).sqrt())?);
    let softcap = Some(f64::from(d.float_or("softcap", 0.0)?)).filter(|c| *c > 0.0 && c.is_finite());
    let mask = mask(d, &e, past)?;
    let (mut y, scores) = if d.outputs > 3 || precision.bytes() < d.ty(q).dtype.bytes() {
        let attention = Scores { e: &e, scale, softcap, mask, precision };
        let (y, scores) = attention.push(d, [q, k, v])?;
        (y, Some(scores))
    } else {
        let (op, mask) = mask.into_op(d, &Attention { softcap, ..Attention::plain(scale) })?;
        let inputs: Vec<ValueId> = [q, k, v].into_iter().chain(mask).collect();
        (d.push(op, &inputs)?, None)
    };
    if flat {
        y = d.transpose(y, &[0, 2, 1, 3])?;
        let width = e.heads.saturating_mul(d.shape(v)[3]);
        y = d.reshape(y, [e.batch, e.queries, width])?;
    }
    Ok([y, k, v].into_iter().chain(scores).collect())
}

/// An attention whose parts are nodes of their own.
struct Scores<'a> {
    e: &'a Extents,
    scale: f64,
    softcap: Option<f64>,
    mask: Mask,
    /// What the softmax is computed in.
    precision: DType,
}

impl Scores<'_> {
    /// The result and the scores as `qk_matmul_output_mode` asks for them.
    fn push(
        self,
        d: &mut Decoder<'_>,
        [q, k, v]: [ValueId; 3],
    ) -> Result<(ValueId, ValueId), OpError> {
        // The square root goes to both sides, which keeps products of narrow floats in range.
        let half = self.scale.sqrt();
        let [scaled_q, scaled_k] = [d.scale(q, half)?, d.scale(k, half)?];
        let mut scores = product(d, self.e, scaled_q, scaled_k, true)?;
        if let Some(softcap) = self.softcap {
            let small = d.scale(scores, 1.0 / softcap)?;
            let bent = d.map(F::Tanh, &[small])?;
            scores = d.scale(bent, softcap)?;
        }
        let mode = d.int_or("qk_matmul_output_mode", 0)?;
        let mut shown = scores;
        let dtype = d.ty(q).dtype;
        let may_cover_rows = self.mask.may_cover_rows;
        let mask = self.mask.into_bias(d, self.e, dtype)?;
        if let Some(mask) = mask {
            scores = d.map(F::Add, &[scores, mask])?;
        }
        if mode == 2 {
            shown = scores;
        }
        let wide = d.cast(scores, self.precision)?;
        let mut weights = d.push(Softmax { axis: 3, log: false }, &[wide])?;
        if let Some(mask) = mask.filter(|_| may_cover_rows) {
            // The mask decides, since scores may be NaN.
            let most = d.reduce(ReduceKind::Max, mask, &[d.ty(mask).rank() - 1])?;
            let covered = d.map(F::IsInf { positive: false, negative: true }, &[most])?;
            let zero = d.scalar(self.precision, 0.0)?;
            weights = d.map(F::Where, &[covered, zero, weights])?;
        }
        let weights = d.cast(weights, dtype)?;
        if mode == 3 {
            shown = weights;
        }
        Ok((product(d, self.e, weights, v, false)?, shown))
    }
}

/// An input as `[batch, heads, positions, elements]`.
fn heads(d: &mut Decoder<'_>, index: usize, name: &'static str) -> Result<ValueId, OpError> {
    let x = d.input(index)?;
    match d.shape(x)[..] {
        [_, _, _, _] => Ok(x),
        [batch, positions, hidden] => {
            let heads = d.int(name)?.ok_or(OpError::MissingAttribute { name })?;
            let heads = u64::try_from(heads).ok().filter(|&h| h > 0 && hidden % h == 0);
            let heads = heads.ok_or_else(|| OpError::BadAttribute {
                name,
                why: format!("does not divide the last extent of input {index}, {hidden}"),
            })?;
            let x = d.reshape(x, [batch, positions, heads, hidden / heads])?;
            d.transpose(x, &[0, 2, 1, 3])
        }
        ref shape => Err(OpError::Rank { index, found: shape.len(), expected: "3 or 4".into() }),
    }
}

/// The product of something of each query head with something of its key and value head. Query
/// heads that share one are a dimension of their own, along which the other side is broadcast.
pub(super) fn product(
    d: &mut Decoder<'_>,
    e: &Extents,
    left: ValueId,
    right: ValueId,
    trans_b: bool,
) -> Result<ValueId, OpError> {
    let product = MatMul { trans_a: false, trans_b };
    if e.heads == e.kv_heads {
        return d.push(product, &[left, right]);
    }
    let (ls, rs) = (d.shape(left), d.shape(right));
    let left =
        d.reshape(left, [e.batch, e.kv_heads, e.heads / e.kv_heads, ls[2], ls[3]])?;
    let right = d.reshape(right, [e.batch, e.kv_heads, 1, rs[2], rs[3]])?;
    let result = d.push(product, &[left, right])?;
    let columns = d.shape(result)[4];
    d.reshape(result, [e.batch, e.heads, ls[2], columns])
}

/// What hides keys.
struct Mask {
    /// The mask input, if it is one of floats.
    bias: Option<ValueId>,
    /// What else hides keys: all must be true for a key to be seen.
    allowed: Vec<ValueId>,
    /// The position of the first query among the keys, if queries see no key behind their own.
    causal: Option<i64>,
    /// Whether all keys may be hidden from some query.
    may_cover_rows: bool,
}

impl Mask {
    /// The conditions together.
    fn condition(&self, d: &mut Decoder<'_>) -> Result<Option<ValueId>, OpError> {
        let Some((&first, others)) = self.allowed.split_first() else { return Ok(None) };
        let mut all = first;
        for &other in others {
            all = d.map(F::And, &[all, other])?;
        }
        Ok(Some(all))
    }

    /// Everything as one bias of 0 and -∞ (or what the mask input holds).
    fn into_bias(
        mut self,
        d: &mut Decoder<'_>,
        e: &Extents,
        dtype: DType,
    ) -> Result<Option<ValueId>, OpError> {
        if let Some(offset) = self.causal {
            let (column, row) = (range::along(d, 0, e.keys, 1, 2)?, range::along(d, 0, e.queries, 0, 2)?);
            let offset = d.constant(Tensor::scalar(offset));
            let position = d.map(F::Add, &[row, offset])?;
            self.allowed.push(d.map(F::LessOrEqual, &[column, position])?);
        }
        let bias = self.bias.map(|bias| d.cast(bias, dtype)).transpose()?;
        let Some(all) = self.condition(d)? else { return Ok(bias) };
        let (zero, hidden) = (d.scalar(dtype, 0.0)?, d.scalar(dtype, f64::NEG_INFINITY)?);
        let hiding = d.map(F::Where, &[all, zero, hidden])?;
        Ok(Some(match bias {
            None => hiding,
            Some(given) => d.map(F::Add, &[given, hiding])?,
        }))
    }

    /// The mask as an operand and attributes of the op.
    fn into_op(
        self,
        d: &mut Decoder<'_>,
        op: &Attention,
    ) -> Result<(Attention, Option<ValueId>), OpError> {
        let op = Attention { causal: self.causal, zero_unseeing: true, ..op.clone() };
        let all = self.condition(d)?;
        let mask = match (self.bias, all) {
            (Some(bias), Some(all)) => {
                let hidden = d.scalar(d.ty(bias).dtype, f64::NEG_INFINITY)?;
                Some(d.map(F::Where, &[all, bias, hidden])?)
            }
            (bias, all) => bias.or(all),
        };
        Ok((op, mask))
    }
}

/// All that hides keys: the mask input, causality, a window of neighbours, and padding behind the
/// keys.
fn mask(d: &mut Decoder<'_>, e: &Extents, past: Option<u64>) -> Result<Mask, OpError> {
    let mut allowed: Vec<ValueId> = Vec::new();
    let mut bias = None;
    if let Some(input) = d.optional(3) {
        let mask = pad_mask(d, input, e.keys)?;
        if d.ty(mask).dtype == DType::Bool {
            allowed.push(mask);
        } else {
            bias = Some(mask);
        }
    }
    let unpadded = match d.optional(6) {
        None => None,
        Some(_) if past.is_some() => {
            return Err(OpError::Invalid("has both past keys and padding behind keys".into()));
        }
        Some(count) => {
            let count = d.cast(count, DType::I64)?;
            Some(d.reshape(count, [e.batch, 1, 1, 1])?)
        }
    };
    let causal = d.int_or("is_causal", 0)? != 0;
    let window = [d.int_or("left_window_size", -1)?, d.int_or("right_window_size", -1)?];
    let column = range::along(d, 0, e.keys, 1, 2)?;
    if (causal && unpadded.is_some()) || window.iter().any(|&w| w >= 0) {
        // The position of each query among the keys.
        let offset = match unpadded {
            Some(count) => {
                let queries = d.scalar(DType::I64, e.queries as f64)?;
                d.map(F::Sub, &[count, queries])?
            }
            None => d.scalar(DType::I64, past.unwrap_or(0) as f64)?,
        };
        let row = range::along(d, 0, e.queries, 0, 2)?;
        let position = d.map(F::Add, &[row, offset])?;
        if causal && unpadded.is_some() {
            allowed.push(d.map(F::LessOrEqual, &[column, position])?);
        }
        for (reach, (nearer, farther)) in
            window.into_iter().zip([(column, position), (position, column)])
        {
            if reach >= 0 {
                let reach = d.constant(Tensor::scalar(reach));
                let limit = d.map(F::Add, &[nearer, reach])?;
                allowed.push(d.map(F::LessOrEqual, &[farther, limit])?);
            }
        }
    }
    if let Some(count) = unpadded {
        allowed.push(d.map(F::Less, &[column, count])?);
    }
    let offset = i64::try_from(past.unwrap_or(0)).unwrap_or(i64::MAX);
    Ok(Mask {
        // Causality alone leaves every query its own position.
        may_cover_rows: bias.is_some() || !allowed.is_empty(),
        causal: Some(offset).filter(|_| causal && unpadded.is_none()),
        bias,
        allowed,
    })
}

/// A mask for fewer keys than there are hides the others.
fn pad_mask(d: &mut Decoder<'_>, mask: ValueId, keys: u64) -> Result<ValueId, OpError> {
    let ty = d.ty(mask);
    let Some(&own) = ty.shape.last() else {
        return Err(OpError::Rank { index: 3, found: 0, expected: "1 to 4".into() });
    };
    if own >= keys {
        return Ok(mask);
    }
    let (before, mut after) = (vec![0; ty.rank()], vec![0; ty.rank()]);
    after[ty.rank() - 1] = (keys - own) as i64;
    let value = if ty.dtype == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
    d.push(Pad { before, after, mode: PadMode::Constant, value }, &[mask])
}
