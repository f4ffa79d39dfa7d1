//! Cropping or padding about the middle, decoded into a slice and a padding.
//!
//! - **ONNX**: CenterCropPad (since 18).
//! - **Semantics**: listed dimensions get the extents asked for; what is cut off, and the zeros that
//!   are added, lie half in front, rounded down, and half behind.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use super::pad::Pad;
use crate::OpError;
use crate::graph::ValueId;
use crate::program::kernel::PadMode;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("CenterCropPad", 18, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let mut x = d.input(0)?;
    let ty = d.ty(x);
    let axes = match d.ints("axes")? {
        Some(axes) => {
            super::reshape::distinct_axes(&axes, ty.rank())?;
            axes.iter().map(|&a| ty.axis(a)).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..ty.rank()).collect(),
    };
    let shape = d.known_ints(1, "it is the output's shape")?;
    if shape.len() != axes.len() {
        let why = format!("{} extents for {} axes", shape.len(), axes.len());
        return Err(OpError::BadAttribute { name: "axes", why });
    }
    let (mut before, mut after) = (vec![0; ty.rank()], vec![0; ty.rank()]);
    for (&axis, &asked) in axes.iter().zip(&shape) {
        let n = ty.shape[axis];
        let extent =
            u64::try_from(asked).map_err(|_| OpError::Invalid(format!("asks for {asked}")))?;
        if extent < n {
            let start = (n - extent) / 2;
            x = d.slice(x, axis, start, start + extent)?;
        } else {
            let more = (extent - n) as i64;
            (before[axis], after[axis]) = (more / 2, more - more / 2);
        }
    }
    if after.iter().any(|&n| n != 0) {
        x = d.push(Pad { before, after, mode: PadMode::Constant, value: 0.0 }, &[x])?;
    }
    Ok(vec![x])
}
