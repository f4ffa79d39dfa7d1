//! Rotary position embedding, decoded into slices, elementwise ops and concatenation.
//!
//! - **ONNX**: RotaryEmbedding (since 23).
//! - **Semantics**: pairs of each head's elements are rotated by the angle of their position: `x₁
//!   cos - x₂ sin`, `x₁ sin + x₂ cos`. A pair is one element of each half, or two neighbours if
//!   interleaved.

use super::concat::Concat;
use super::decode::{Decoder, DecoderEntry};
use super::gather::Gather;
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("RotaryEmbedding", 23, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let shape = d.shape(x);
    // Heads apart: [batch, heads, positions, elements], or [batch, positions, heads, elements].
    let (apart, heads_at) = match shape[..] {
        [_, _, _, _] => (shape.clone(), 1),
        [batch, positions, hidden] => {
            let heads = d.int_or("num_heads", 0)?;
            let heads = u64::try_from(heads).ok().filter(|&h| h > 0 && hidden % h == 0);
            let heads = heads.ok_or_else(|| OpError::BadAttribute {
                name: "num_heads",
                why: format!("does not divide the last extent, {hidden}"),
            })?;
            (vec![batch, positions, heads, hidden / heads], 2)
        }
        _ => {
            return Err(OpError::Rank { index: 0, found: shape.len(), expected: "3 or 4".into() });
        }
    };
    let head = apart[3];
    let bad = |why: String| OpError::BadAttribute { name: "rotary_embedding_dim", why };
    let rotated = match d.int_or("rotary_embedding_dim", 0)? {
        0 => head,
        n => u64::try_from(n).ok().filter(|&n| n <= head).ok_or_else(|| {
            bad(format!("{n} of heads of {head} elements"))
        })?,
    };
    if rotated % 2 != 0 {
        return Err(bad(format!("{rotated} elements do not form pairs")));
    }
    let [cos, sin] = [angles(d, 1, heads_at, rotated / 2)?, angles(d, 2, heads_at, rotated / 2)?];

    let x = d.reshape(x, apart.clone())?;
    let turning = d.slice(x, 3, 0, rotated)?;
    let interleaved = d.int_or("interleaved", 0)? != 0;
    // Pairs apart: a dimension of 2 behind or before that of the pairs.
    let (paired, pair_at) =
        if interleaved { ([rotated / 2, 2], 4) } else { ([2, rotated / 2], 3) };
    let pairs = d.reshape(turning, [&apart[..3], &paired].concat())?;
    let half = [&apart[..3], &[rotated / 2]].concat();
    let [first, second] = [d.slice(pairs, pair_at, 0, 1)?, d.slice(pairs, pair_at, 1, 2)?];
    let [first, second] = [d.reshape(first, half.clone())?, d.reshape(second, half.clone())?];
    let rotate = |d: &mut Decoder<'_>, by: ValueId, with: ValueId, f: F| {
        let (x, y) = (d.map(F::Mul, &[first, by])?, d.map(F::Mul, &[second, with])?);
        d.map(f, &[x, y])
    };
    let real = rotate(d, cos, sin, F::Sub)?;
    let imaginary = rotate(d, sin, cos, F::Add)?;

    let mut single = half;
    single.insert(pair_at, 1);
    let halves = [d.reshape(real, single.clone())?, d.reshape(imaginary, single)?];
    let joined = d.push(Concat { axis: pair_at }, &halves)?;
    let mut result = d.reshape(joined, [&apart[..3], &[rotated]].concat())?;
    if rotated < head {
        let rest = d.slice(x, 3, rotated, head)?;
        result = d.push(Concat { axis: 3 }, &[result, rest])?;
    }
    Ok(vec![d.reshape(result, shape)?])
}

/// Cosines or sines, one for each position and pair, with a dimension of 1 for the heads. With
/// position ids the input is a table.
fn angles(
    d: &mut Decoder<'_>,
    index: usize,
    heads_at: usize,
    pairs: u64,
) -> Result<ValueId, OpError> {
    let mut angles = d.input(index)?;
    if let Some(positions) = d.optional(3) {
        if d.ty(angles).rank() != 2 {
            let found = d.ty(angles).rank();
            return Err(OpError::Rank { index, found, expected: "2, a table".into() });
        }
        angles = d.push(Gather { axis: 0 }, &[angles, positions])?;
    }
    let mut shape = d.shape(angles);
    if shape.len() != 3 || shape[2] != pairs {
        let expected = format!("3, its last extent {pairs}");
        return Err(OpError::Rank { index, found: shape.len(), expected });
    }
    shape.insert(heads_at, 1);
    d.reshape(angles, shape)
}
