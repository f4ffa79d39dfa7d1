//! Tile: a tensor repeated along its dimensions, decoded into reshapes and a broadcast.
//!
//! - **ONNX**: Tile (since 6).
//! - **Semantics**: `[a, b]` repeated `r, s` times is `[1, a, 1, b]` broadcast to `[r, a, s, b]`,
//!   seen as `[r·a, s·b]`. So the factor rules of reshape and broadcast say how it splits.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use crate::OpError;
use crate::graph::ValueId;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Tile", 6, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let from = d.shape(x);
    let bad = |why: String| OpError::BadAttribute { name: "repeats", why };
    let repeats = d.known_ints(1, "it decides the output's shape")?;
    if repeats.len() != from.len() {
        return Err(bad(format!("{} numbers for rank {}", repeats.len(), from.len())));
    }
    let (mut apart, mut repeated, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (&n, &r) in from.iter().zip(&repeats) {
        let r = u64::try_from(r).map_err(|_| bad(format!("{r} is negative")))?;
        if r != 1 {
            apart.push(1);
            repeated.push(r);
        }
        apart.push(n);
        repeated.push(n);
        joined.push(n.checked_mul(r).ok_or_else(|| bad(format!("{n} times {r} overflows")))?);
    }
    let apart = d.reshape(x, apart)?;
    let repeated = d.expand(apart, repeated)?;
    Ok(vec![d.reshape(repeated, joined)?])
}
