//! Adding up blocks of pixels, decoded into a transposed convolution.
//!
//! - **ONNX**: Col2Im (since 18).
//! - **Semantics**: each column holds the pixels of one block for each channel; every pixel of the
//!   image is the sum of those that lie on it. A transposed convolution does so whose weight says
//!   that element `k` of a column is pixel `k` of its block.

use super::Build;
use super::conv_transpose::ConvTranspose;
use super::decode::{Decoder, DecoderEntry, MAX_FOLDED_BYTES};
use super::window;
use crate::graph::{TensorType, ValueId, elements};
use crate::{OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Col2Im", 18, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let extents = |d: &Decoder<'_>, index| -> Result<Vec<u64>, OpError> {
        let list = d.known_ints(index, "it decides the output's shape")?;
        let positive: Option<Vec<u64>> =
            list.iter().map(|&n| u64::try_from(n).ok().filter(|&n| n > 0)).collect();
        positive.ok_or_else(|| OpError::Invalid(format!("input {index} is {list:?}")))
    };
    let (image, block) = (extents(d, 1)?, extents(d, 2)?);
    let window = window::explicit(d, image.len())?;
    let positions = window::output(&image, &block, &window, false)?;
    let pixels = elements(&block);
    let &[n, rows, columns] = &ty.shape[..] else {
        return Err(OpError::Rank { index: 0, found: ty.rank(), expected: "3".into() });
    };
    if rows % pixels != 0 || columns != elements(&positions) {
        return Err(OpError::ShapeMismatch {
            lhs: ty.shape,
            rhs: image,
            why: "columns are the blocks of an image, their elements the channels' pixels",
        });
    }
    let weight = TensorType::new(ty.dtype, [&[1, pixels, 1], &block[..]].concat());
    if weight.bytes() > MAX_FOLDED_BYTES {
        return Err(OpError::Unsupported(format!("blocks of {pixels} pixels")));
    }
    let own = |i: usize| f64::from(u8::from(i / pixels as usize == i % pixels as usize));
    let weight = Tensor::from_f64(weight, own).map_err(|e| OpError::Invalid(e.to_string()))?;
    let weight = d.constant(weight);
    let channels = rows / pixels;
    let weight = d.expand(weight, [&[channels, pixels, 1], &block[..]].concat())?;

    // What no block reaches because another one would not fit.
    let none = vec![0; image.len()];
    let reached = window::transposed_output(&positions, &block, &window, &none)?;
    let extra = image.iter().zip(&reached).map(|(n, reached)| n.saturating_sub(*reached)).collect();
    let blocks = d.reshape(x, [&[n, rows], &positions[..]].concat())?;
    Ok(vec![d.push(ConvTranspose { window, extra }, &[blocks, weight])?])
}
