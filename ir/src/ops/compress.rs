//! Compress: the slices whose condition holds, decoded into a lookup of their positions.
//!
//! - **ONNX**: Compress (since 9), by a known condition, which decides the extent.
//! - **Semantics**: the slices along `axis`, or the elements if there is none, at whose position the
//!   condition is true; one that is too short is false where it ends.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use super::gather::Gather;
use crate::graph::ValueId;
use crate::{OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Compress", 9, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let mut x = d.input(0)?;
    let axis = if let Some(axis) = d.int("axis")? {
        d.ty(x).axis(axis)?
    } else {
        x = d.reshape(x, [d.ty(x).elements()])?;
        0
    };
    let condition = d.known(1, "it decides the output's shape")?;
    if condition.ty().rank() != 1 || condition.len() as u64 > d.shape(x)[axis] {
        return Err(OpError::ShapeMismatch {
            lhs: d.shape(x),
            rhs: condition.shape().to_vec(),
            why: "the condition is a list, no longer than the dimension",
        });
    }
    let kept = (0..condition.len()).filter(|&i| condition.int_at(i) != 0);
    let kept = d.constant(Tensor::vector(kept.map(|i| i as i64).collect()));
    Ok(vec![d.push(Gather { axis }, &[x, kept])?])
}
