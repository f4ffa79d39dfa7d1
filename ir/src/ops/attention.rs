//! Scaled dot-product attention, decoded into matrix products, elementwise ops and a softmax.
//!
//! - **ONNX**: Attention (since 23).
//! - **Semantics**: `softmax(Q·Kᵀ·scale + mask) · V` for each head. Groups of query heads may share
//!   a key and value head. Keys and values may come after those of earlier calls. A query that may
//!   look at no key gets 0.

use super::concat::Concat;
use super::decode::{Decoder, DecoderEntry, element_type};
use super::matmul::MatMul;
use super::pad::Pad;
use super::softmax::Softmax;
use crate::graph::{TensorType, ValueId};
use crate::program::kernel::PadMode;
use crate::scalar::ScalarFn as F;
use crate::sharding::ReduceKind;
use crate::{DType, OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Attention", 23, decode)];

/// Extents: batch, query heads, key and value heads, queries, keys.
struct Extents {
    batch: u64,
    heads: u64,
    kv_heads: u64,
    queries: u64,
    keys: u64,
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
    let (qs, ks) = (d.shape(q), d.shape(k));
    let e =
        Extents { batch: qs[0], heads: qs[1], kv_heads: ks[1], queries: qs[2], keys: ks[2] };
    if e.kv_heads == 0 || !e.heads.is_multiple_of(e.kv_heads) {
        return Err(OpError::ShapeMismatch {
            lhs: qs,
            rhs: ks,
            why: "key heads must divide query heads",
        });
    }

    // The square root goes to both sides, which keeps products of narrow floats in range.
    let scale = f64::from(d.float_or("scale", 1.0 / (qs[3] as f32).sqrt())?).sqrt();
    let [scaled_q, scaled_k] = [d.scale(q, scale)?, d.scale(k, scale)?];
    let mut scores = product(d, &e, scaled_q, scaled_k, true)?;
    let softcap = f64::from(d.float_or("softcap", 0.0)?);
    if softcap > 0.0 {
        let small = d.scale(scores, 1.0 / softcap)?;
        let bent = d.map(F::Tanh, &[small])?;
        scores = d.scale(bent, softcap)?;
    }
    let mode = d.int_or("qk_matmul_output_mode", 0)?;
    let mut shown = scores;
    let mask = mask(d, &e, past)?;
    if let Some(mask) = &mask {
        scores = d.map(F::Add, &[scores, mask.bias])?;
    }
    if mode == 2 {
        shown = scores;
    }
    let dtype = d.ty(q).dtype;
    let precision = match d.int("softmax_precision")? {
        Some(number) => element_type(number)?,
        None => dtype,
    };
    let wide = d.cast(scores, precision)?;
    let mut weights = d.push(Softmax { axis: 3, log: false }, &[wide])?;
    if let Some(mask) = mask.filter(|m| m.may_cover_rows) {
        // The mask decides, since scores may be NaN.
        let most = d.reduce(ReduceKind::Max, mask.bias, &[d.ty(mask.bias).rank() - 1])?;
        let covered = d.map(F::IsInf { positive: false, negative: true }, &[most])?;
        let zero = d.scalar(precision, 0.0)?;
        weights = d.map(F::Where, &[covered, zero, weights])?;
    }
    let weights = d.cast(weights, dtype)?;
    if mode == 3 {
        shown = weights;
    }
    let mut y = product(d, &e, weights, v, false)?;
    if flat {
        y = d.transpose(y, &[0, 2, 1, 3])?;
        let width = e.heads.saturating_mul(d.shape(v)[3]);
        y = d.reshape(y, [e.batch, e.queries, width])?;
    }
    Ok(vec![y, k, v, shown])
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
fn product(
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

/// What is added to the scores.
struct Mask {
    bias: ValueId,
    /// Whether it may hide all keys from some query.
    may_cover_rows: bool,
}

/// All that hides keys: the mask input, causality, a window of neighbours, and padding behind the
/// keys, together as one bias of 0 and -∞ (or what the mask input holds).
fn mask(d: &mut Decoder<'_>, e: &Extents, past: Option<u64>) -> Result<Option<Mask>, OpError> {
    let dtype = d.ty(d.input(0)?).dtype;
    let mut allowed: Vec<ValueId> = Vec::new();
    let mut bias = None;
    if let Some(input) = d.optional(3) {
        let mask = pad_mask(d, input, e.keys)?;
        if d.ty(mask).dtype == DType::Bool {
            allowed.push(mask);
        } else {
            bias = Some(d.cast(mask, dtype)?);
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
    let column = range(d, [1, e.keys])?;
    if causal || window.iter().any(|&w| w >= 0) {
        // The position of each query among the keys.
        let offset = match unpadded {
            Some(count) => {
                let queries = d.scalar(DType::I64, e.queries as f64)?;
                d.map(F::Sub, &[count, queries])?
            }
            None => d.scalar(DType::I64, past.unwrap_or(0) as f64)?,
        };
        let row = range(d, [e.queries, 1])?;
        let position = d.map(F::Add, &[row, offset])?;
        if causal {
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
    if let Some(&first) = allowed.first() {
        let mut all = first;
        for &other in &allowed[1..] {
            all = d.map(F::And, &[all, other])?;
        }
        let (zero, hidden) = (d.scalar(dtype, 0.0)?, d.scalar(dtype, f64::NEG_INFINITY)?);
        let hiding = d.map(F::Where, &[all, zero, hidden])?;
        bias = Some(match bias {
            None => hiding,
            Some(given) => d.map(F::Add, &[given, hiding])?,
        });
    }
    // Causality alone leaves every query its own position.
    let may_cover_rows = !causal || allowed.len() > 1 || d.optional(3).is_some();
    Ok(bias.map(|bias| Mask { bias, may_cover_rows }))
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

/// 0, 1, 2, … in this shape.
fn range(d: &mut Decoder<'_>, shape: [u64; 2]) -> Result<ValueId, OpError> {
    let range = Tensor::from_int(TensorType::new(DType::I64, shape), |i| i as i128)
        .map_err(|e| OpError::Invalid(e.to_string()))?;
    Ok(d.constant(range))
}
