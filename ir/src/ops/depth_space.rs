//! Moving blocks of pixels into channels and back, decoded into reshapes and a transpose.
//!
//! - **ONNX**: SpaceToDepth (since 1), DepthToSpace (since 1; the order of channels by attribute
//!   since 11).
//! - **Semantics**: the `b × b` pixels of a block become, row by row, `b · b` times the channels;
//!   or channels become blocks, the pixel being the slow part of a channel's number (`DCR`) or the
//!   fast one (`CRD`).

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use crate::OpError;
use crate::graph::ValueId;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("SpaceToDepth", 1, space_to_depth),
    DecoderEntry::onnx("DepthToSpace", 1, depth_to_space),
];

type Outputs = Result<Vec<ValueId>, OpError>;

/// The input's extents and the block's.
fn extents(d: &Decoder<'_>) -> Result<([u64; 4], u64), OpError> {
    let ty = d.ty(d.input(0)?);
    let &[n, c, h, w] = &ty.shape[..] else {
        return Err(OpError::Rank { index: 0, found: ty.rank(), expected: "4".into() });
    };
    let name = "blocksize";
    let block = d.int(name)?.ok_or(OpError::MissingAttribute { name })?;
    // 32 bits, so that its square is a number.
    match u32::try_from(block) {
        Ok(block) if block > 0 => Ok(([n, c, h, w], u64::from(block))),
        _ => Err(OpError::BadAttribute { name, why: format!("a block of {block}") }),
    }
}

fn indivisible(what: &str, n: u64, by: u64) -> OpError {
    OpError::BadAttribute { name: "blocksize", why: format!("{by} does not divide {n} {what}") }
}

/// Reshapes, permutes, reshapes.
fn rearrange(d: &mut Decoder<'_>, from: &[u64], perm: &[usize], to: [u64; 4]) -> Outputs {
    let x = d.input(0)?;
    let apart = d.reshape(x, from)?;
    let moved = d.transpose(apart, perm)?;
    Ok(vec![d.reshape(moved, to)?])
}

fn space_to_depth(d: &mut Decoder<'_>) -> Outputs {
    let ([n, c, h, w], b) = extents(d)?;
    if h % b != 0 || w % b != 0 {
        return Err(indivisible("rows or columns", if h % b == 0 { w } else { h }, b));
    }
    let to = [n, c.saturating_mul(b * b), h / b, w / b];
    rearrange(d, &[n, c, h / b, b, w / b, b], &[0, 3, 5, 1, 2, 4], to)
}

fn depth_to_space(d: &mut Decoder<'_>) -> Outputs {
    let ([n, c, h, w], b) = extents(d)?;
    if c % (b * b) != 0 {
        return Err(indivisible("channels squared", c, b));
    }
    let channels = c / (b * b);
    let to = [n, channels, h.saturating_mul(b), w.saturating_mul(b)];
    match d.string_or("mode", "DCR")?.as_str() {
        "DCR" => rearrange(d, &[n, b, b, channels, h, w], &[0, 3, 4, 1, 5, 2], to),
        "CRD" => rearrange(d, &[n, channels, b, b, h, w], &[0, 1, 4, 2, 5, 3], to),
        other => {
            let why = format!("{other:?} is neither DCR nor CRD");
            Err(OpError::BadAttribute { name: "mode", why })
        }
    }
}
