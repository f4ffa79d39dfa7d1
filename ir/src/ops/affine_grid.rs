//! The places that an affine map sends an image's pixels to, decoded into a product.
//!
//! - **ONNX**: AffineGrid (since 20).
//! - **Semantics**: `out[n, p..] = θ[n] · (x, y, 1)` with the place of pixel `p` from -1 to 1 between
//!   the outer edges, or the centres, of the first and last pixel; with three dimensions `(x, y, z, 1)`.

use super::Build;
use super::concat::Concat;
use super::decode::{Decoder, DecoderEntry, MAX_FOLDED_BYTES};
use super::matmul::MatMul;
use crate::graph::{TensorType, ValueId, elements};
use crate::{OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("AffineGrid", 20, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let theta = d.input(0)?;
    let size = d.known_ints(1, "it is the image's shape")?;
    let size: Option<Vec<u64>> = size.iter().map(|&n| u64::try_from(n).ok()).collect();
    let ty = d.ty(theta);
    let size = size.filter(|s| s.len() == 4 || s.len() == 5);
    let size = size.ok_or_else(|| OpError::Invalid("takes the shape of an image".into()))?;
    let spatial = &size[2..];
    let k = spatial.len();
    if ty.shape != [size[0], k as u64, k as u64 + 1] {
        return Err(OpError::ShapeMismatch {
            lhs: ty.shape,
            rhs: size,
            why: "there is one affine map an image",
        });
    }
    let corners = d.int_or("align_corners", 0)? != 0;
    let mut column = spatial.to_vec();
    column.push(1);
    let mut columns = Vec::with_capacity(k + 1);
    for (axis, &n) in spatial.iter().enumerate().rev() {
        let mut along = vec![1; k + 1];
        along[axis] = n;
        let along = TensorType::new(ty.dtype, along);
        if along.bytes() > MAX_FOLDED_BYTES {
            return Err(OpError::Unsupported(format!("an image of {n} pixels a side")));
        }
        let place = |i: usize| match (corners, n) {
            (true, 1) => -1.0,
            (true, _) => 2.0 * i as f64 / (n - 1) as f64 - 1.0,
            (false, _) => (2.0 * i as f64 + 1.0) / n as f64 - 1.0,
        };
        let places = Tensor::from_f64(along, place).map_err(|e| OpError::Invalid(e.to_string()))?;
        let places = d.constant(places);
        columns.push(d.expand(places, column.clone())?);
    }
    let one = d.scalar(ty.dtype, 1.0)?;
    columns.push(d.expand(one, column)?);
    let places = d.push(Concat { axis: k }, &columns)?;
    let rows = d.reshape(places, [elements(spatial), k as u64 + 1])?;
    let grid = d.push(MatMul { trans_a: false, trans_b: true }, &[rows, theta])?;
    let shape = [&[size[0]], spatial, &[k as u64]].concat();
    Ok(vec![d.reshape(grid, shape)?])
}
