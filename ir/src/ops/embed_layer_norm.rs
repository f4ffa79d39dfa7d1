//! BERT's embeddings, decoded into lookups, their sum and its normalisation.
//!
//! - **ONNX**: com.microsoft EmbedLayerNormalization.
//! - **Semantics**: the layer norm of `word[ids] + position[p] + segment[segments]`, where `p` counts
//!   if it is not given; how many words of each sample the mask keeps; and the sum itself.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType};
use super::gather::Gather;
use super::normalize::{Normalize, normalize};
use super::range;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::sharding::ReduceKind;
use crate::{DType, OpError};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::microsoft("EmbedLayerNormalization", decode)
    .results(&[ResultType::ElementOf(2), ResultType::Element(DType::I32), ResultType::ElementOf(2)])];

/// Inputs: words, segments, tables of words, positions and segments, scale, bias, mask, positions.
fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let words = d.input(0)?;
    let [batch, length] = d.shape(words)[..] else {
        return Err(OpError::Rank { index: 0, found: d.ty(words).rank(), expected: "2".into() });
    };
    let lookup = |d: &mut Decoder<'_>, table: usize, at: ValueId| {
        let table = d.input(table)?;
        d.push(Gather { axis: 0 }, &[table, at])
    };
    let mut sum = lookup(d, 2, words)?;
    let positions = match d.optional(8) {
        Some(positions) => positions,
        None => range::along(d, 0, length, 1, 2)?,
    };
    let position = lookup(d, 3, positions)?;
    sum = d.map(F::Add, &[sum, position])?;
    if let (Some(segments), Some(_)) = (d.optional(1), d.optional(4)) {
        let segment = lookup(d, 4, segments)?;
        sum = d.map(F::Add, &[sum, segment])?;
    }
    let axis = d.ty(sum).axis(-1)?;
    let norm = Normalize { axis, epsilon: d.float_or("epsilon", 1e-12)?, rms: false };
    let (scale, bias) = (d.input(5)?, d.input(6)?);
    let y = normalize(d, &norm, sum, scale, Some(bias))?;
    if d.outputs < 2 {
        return Ok(vec![y]);
    }
    let kept = match d.optional(7) {
        None => {
            let zero = d.scalar(DType::I32, 0.0)?;
            d.expand(zero, [batch])?
        }
        Some(mask) => {
            let mask = d.cast(mask, DType::I32)?;
            let one = d.scalar(DType::I32, 1.0)?;
            let kept = d.map(F::Equal, &[mask, one])?;
            let kept = d.cast(kept, DType::I32)?;
            let count = d.reduce(ReduceKind::Sum, kept, &[1])?;
            d.reshape(count, [batch])?
        }
    };
    Ok(vec![y, kept, sum])
}
