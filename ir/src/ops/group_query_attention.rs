//! ONNX Runtime's grouped-query attention with a cache of keys and values.
//!
//! - **ONNX**: com.microsoft GroupQueryAttention (without quantised or windowed caches).
//! - **Semantics**: as attention, groups of query heads sharing a key and value head. Sample `n` has
//!   `total[n]` keys in all, the last of which are new: they are written into the cache behind those of
//!   earlier calls. A query sees the keys up to its own position, at most `local_window_size` of them.
//!   Queries and keys may be rotated by their positions first.

use super::decode::{Decoder, DecoderEntry};
use super::fused_attention::{Attend, refuse};
use super::gather::Gather;
use super::normalize::{Normalize, normalize};
use super::pad::Pad;
use super::rotary_embedding::rotate;
use super::scatter::Update;
use super::scatter_elements::ScatterElements;
use super::{Build, heads, range};
use crate::graph::ValueId;
use crate::program::kernel::PadMode;
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::microsoft("GroupQueryAttention", decode)];

/// Inputs: queries, keys, values, past keys, past values, the last position of each sample, the
/// number of keys, cosines, sines, positions, bias of the scores, sinks, two scales, two norms.
fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    refuse(d, &["qk_output", "sliding_window_cache"], &[12, 13, 16])?;
    let (query_heads, kv_heads) = (heads::count(d, "num_heads")?, heads::count(d, "kv_num_heads")?);
    let [q, k, v] = projected(d, query_heads, kv_heads)?;
    let mut q = heads::apart(d, q, query_heads)?;
    let [mut k, v] = [heads::apart(d, k, kv_heads)?, heads::apart(d, v, kv_heads)?];
    let (batch, queries) = (d.shape(q)[0], d.shape(q)[2]);
    if d.shape(k)[2] != queries {
        let why = "there is a new key for each query";
        return Err(OpError::ShapeMismatch { lhs: d.shape(q), rhs: d.shape(k), why });
    }

    // How many keys each sample has, and how many of them are from earlier calls.
    let last = d.cast(d.input(5)?, DType::I64)?;
    let last = d.reshape(last, [batch, 1, 1, 1])?;
    let one = d.scalar(DType::I64, 1.0)?;
    let total = d.map(F::Add, &[last, one])?;
    let cached = d.optional(3).is_some();
    let before = if cached {
        let (new, zero) = (d.scalar(DType::I64, queries as f64)?, d.scalar(DType::I64, 0.0)?);
        let before = d.map(F::Sub, &[total, new])?;
        d.map(F::Max, &[before, zero])?
    } else {
        d.scalar(DType::I64, 0.0)?
    };
    let row = range::along(d, 0, queries, 2, 4)?;
    let position = d.map(F::Add, &[row, before])?;

    if let (Some(q_norm), Some(k_norm)) = (d.optional(14), d.optional(15)) {
        let epsilon = d.float_or("qk_norm_epsilon", 1e-6)?;
        let q_epsilon = d.float_or("q_norm_epsilon", epsilon)?;
        let k_epsilon = d.float_or("k_norm_epsilon", epsilon)?;
        let norm = |epsilon| Normalize { axis: 3, epsilon, rms: true };
        q = normalize(d, &norm(q_epsilon), q, q_norm, None)?;
        k = normalize(d, &norm(k_epsilon), k, k_norm, None)?;
    }
    let keys = if cached {
        let keys = d.known_ints(6, "it decides the cache's extent")?;
        let keys = keys.first().and_then(|&n| u64::try_from(n).ok()).filter(|&n| n >= queries);
        keys.ok_or_else(|| OpError::Invalid("has fewer keys than queries".into()))?
    } else {
        queries
    };
    if d.int_or("do_rotary", 0)? != 0 {
        let position = match d.optional(9) {
            None => position,
            Some(given) if keys == queries => {
                // Of the first call, only the very first position counts.
                let given = d.cast(given, DType::I64)?;
                let given = d.reshape(given, [d.ty(given).elements()])?;
                let first = d.slice(given, 0, 0, 1)?;
                d.map(F::Add, &[row, first])?
            }
            Some(given) => {
                let given = d.cast(given, DType::I64)?;
                d.reshape(given, [batch, 1, queries, 1])?
            }
        };
        let positions = d.expand(position, [batch, 1, queries, 1])?;
        let positions = d.reshape(positions, [batch, queries])?;
        let angles = [angles(d, 7, positions)?, angles(d, 8, positions)?];
        let rotated = d.shape(angles[0])[3].saturating_mul(2);
        if rotated > d.shape(q)[3] {
            let (lhs, rhs) = (d.shape(q), d.shape(angles[0]));
            let why = "there are no more angles than pairs of a head";
            return Err(OpError::ShapeMismatch { lhs, rhs, why });
        }
        let interleaved = d.int_or("rotary_interleaved", 0)? != 0;
        q = rotate(d, q, angles, rotated, interleaved)?;
        k = rotate(d, k, angles, rotated, interleaved)?;
    }

    let (present_k, present_v) = if cached {
        (cache(d, 3, k, keys, position)?, cache(d, 4, v, keys, position)?)
    } else {
        (k, v)
    };
    let (k, v) = (d.slice(present_k, 2, 0, keys)?, d.slice(present_v, 2, 0, keys)?);

    let mut attend = Attend::new(d)?;
    let causal = d.int_or("causal", 1)? != 0;
    let window = d.int_or("local_window_size", -1)?;
    if causal && window <= 0 && !cached {
        attend.causal = Some(0);
    } else {
        let column = range::along(d, 0, keys, 3, 4)?;
        attend.visible = Some(if causal {
            let visible = d.map(F::LessOrEqual, &[column, position])?;
            within(d, visible, column, position, window)?
        } else {
            d.map(F::Less, &[column, total])?
        });
    }
    attend.biases.extend(d.optional(10));
    attend.sink = match d.optional(11) {
        Some(sink) => Some(sink),
        None if d.int_or("smooth_softmax", -1)? == 1 => {
            let zero = d.scalar(DType::F32, 0.0)?;
            Some(d.expand(zero, [query_heads])?)
        }
        None => None,
    };
    let (y, _) = attend.push(d, [q, k, v])?;
    Ok(vec![heads::joined(d, y)?, present_k, present_v])
}

/// What is visible, without the keys further than a window in front of the query's position.
fn within(
    d: &mut Decoder<'_>,
    visible: ValueId,
    column: ValueId,
    position: ValueId,
    window: i64,
) -> Result<ValueId, OpError> {
    if window <= 0 {
        return Ok(visible);
    }
    let window = d.constant(Tensor::scalar(window));
    let reach = d.map(F::Add, &[column, window])?;
    let near = d.map(F::Greater, &[reach, position])?;
    d.map(F::And, &[visible, near])
}

/// Queries, keys and values; without keys, the queries hold all three.
fn projected(
    d: &mut Decoder<'_>,
    query_heads: u64,
    kv_heads: u64,
) -> Result<[ValueId; 3], OpError> {
    let q = d.input(0)?;
    if d.optional(1).is_some() {
        return Ok([q, d.input(1)?, d.input(2)?]);
    }
    let heads = kv_heads.checked_mul(2).and_then(|n| n.checked_add(query_heads));
    let (Some(heads), [_, _, width]) = (heads, &d.shape(q)[..]) else {
        return Err(OpError::Rank { index: 0, found: d.ty(q).rank(), expected: "3".into() });
    };
    if width % heads != 0 {
        let why = format!("{heads} heads do not divide the {width} packed elements");
        return Err(OpError::Invalid(why));
    }
    let elements = width / heads;
    let (first, second) = (query_heads * elements, (query_heads + kv_heads) * elements);
    Ok([d.slice(q, 2, 0, first)?, d.slice(q, 2, first, second)?, d.slice(q, 2, second, *width)?])
}

/// The rows of a table at some positions, with a dimension for the heads.
fn angles(d: &mut Decoder<'_>, index: usize, positions: ValueId) -> Result<ValueId, OpError> {
    let table = d.input(index)?;
    if d.ty(table).rank() != 2 || d.ty(positions).rank() != 2 {
        let found = d.ty(table).rank();
        return Err(OpError::Rank { index, found, expected: "2, as its positions".into() });
    }
    let rows = d.push(Gather { axis: 0 }, &[table, positions])?;
    let mut shape = d.shape(rows);
    shape.insert(1, 1);
    d.reshape(rows, shape)
}

/// The cache in input `index` with something new `[batch, heads, positions, elements]` written at
/// its positions; long enough for `keys`.
fn cache(
    d: &mut Decoder<'_>,
    index: usize,
    new: ValueId,
    keys: u64,
    position: ValueId,
) -> Result<ValueId, OpError> {
    let mut past = d.input(index)?;
    let [.., length, _] = d.shape(past)[..] else {
        return Err(OpError::Rank { index, found: d.ty(past).rank(), expected: "4".into() });
    };
    if d.ty(past).rank() != 4 {
        return Err(OpError::Rank { index, found: d.ty(past).rank(), expected: "4".into() });
    }
    if length < keys {
        let after = vec![0, 0, (keys - length) as i64, 0];
        let pad = Pad { before: vec![0; 4], after, mode: PadMode::Constant, value: 0.0 };
        past = d.push(pad, &[past])?;
    }
    let position = d.expand(position, d.shape(new))?;
    d.push(ScatterElements { axis: 2, update: Update::Set }, &[past, position, new])
}
