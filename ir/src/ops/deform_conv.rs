//! Deformable convolution, decoded into a sampling and a product.
//!
//! - **ONNX**: DeformConv (since 19; two spatial dimensions).
//! - **Semantics**: a convolution whose window reads each element at an offset of its own between
//!   pixels, times a mask. What the windows read is a matrix; the weight times it is the result.
//! - **Split**: samples and channels of the result are parallel, a group's channels are a sum.

use super::Build;
use super::conv::{add_bias, groups, kernel};
use super::decode::{Decoder, DecoderEntry};
use super::grid_sample::{GridSample, Outside, Sampling, Unit};
use super::matmul::MatMul;
use super::slice::{Cut, Slice};
use super::window;
use crate::graph::{TensorType, ValueId};
use crate::scalar::ScalarFn as F;
use crate::{OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("DeformConv", 19, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (x, weight, offset) = (d.input(0)?, d.input(1)?, d.input(2)?);
    let (tx, tw) = (d.ty(x), d.ty(weight));
    let extents = kernel(d, &tx, &tw)?;
    let (&[n, channels, height, width], &[m, per_group, kh, kw]) = (&tx.shape[..], &tw.shape[..])
    else {
        return Err(OpError::Unsupported(format!("deformable convolution of {tx}")));
    };
    let window = window::decode(d, &[height, width], &extents)?;
    let out = window::output(&[height, width], &extents, &window, false)?;
    let (taps, places) = (kh.saturating_mul(kw), out[0].saturating_mul(out[1]));
    let groups = groups(d)?;
    let name = "offset_group";
    let fields = d.int_or(name, 1)?;
    let fields = u64::try_from(fields).ok().filter(|&f| f > 0 && channels % f == 0);
    let fields = fields.ok_or_else(|| OpError::BadAttribute {
        name,
        why: format!("does not divide {channels} channels"),
    })?;
    let fits = groups > 0 && m % groups == 0 && per_group.checked_mul(groups) == Some(channels);
    let all = fields.saturating_mul(taps);
    if !fits || d.shape(offset) != [n, all.saturating_mul(2), out[0], out[1]] {
        return Err(OpError::ShapeMismatch {
            lhs: tx.shape,
            rhs: d.shape(offset),
            why: "there are two offsets for each field, element of the window and place",
        });
    }

    // One image a field of offsets, one row of places an element of the window.
    let images = n.saturating_mul(fields);
    let image = d.reshape(x, [images, channels / fields, height, width])?;
    let grid = places_read(d, offset, images, &extents, &out, &window)?;
    let grid = d.reshape(grid, [images, taps.saturating_mul(out[0]), out[1], 2])?;
    let sample =
        GridSample { sampling: Sampling::Linear, outside: Outside::Zero, unit: Unit::Pixels };
    let mut read = d.push(sample, &[image, grid])?;
    if let Some(mask) = d.optional(4) {
        if d.shape(mask) != [n, all, out[0], out[1]] {
            return Err(OpError::ShapeMismatch {
                lhs: tx.shape,
                rhs: d.shape(mask),
                why: "the mask has one value for each field, element of the window and place",
            });
        }
        let mask = d.reshape(mask, [images, 1, taps.saturating_mul(out[0]), out[1]])?;
        read = d.map(F::Mul, &[read, mask])?;
    }
    let rows = per_group.saturating_mul(taps);
    let read = d.reshape(read, [n, groups, rows, places])?;
    let weight = d.reshape(weight, [groups, m / groups, rows])?;
    let product = d.push(MatMul { trans_a: false, trans_b: false }, &[weight, read])?;
    let result = d.reshape(product, [n, m, out[0], out[1]])?;
    Ok(vec![add_bias(d, result, d.optional(3))?])
}

/// Where in pixels, column before row, each element of each window is read:
/// `[images, elements, rows, columns, 2]`.
fn places_read(
    d: &mut Decoder<'_>,
    offset: ValueId,
    images: u64,
    extents: &[u64],
    out: &[u64],
    window: &crate::program::Window,
) -> Result<ValueId, OpError> {
    let dtype = d.ty(offset).dtype;
    let taps = extents[0].saturating_mul(extents[1]);
    let mut place = d.reshape(offset, [images, taps, 2, out[0], out[1]])?;
    let mut add = |d: &mut Decoder<'_>, shape: [u64; 4], at: &dyn Fn(usize) -> f64| {
        let ty = TensorType::new(dtype, shape);
        if ty.bytes() > super::decode::MAX_FOLDED_BYTES {
            return Err(OpError::Unsupported(format!("windows at places {ty}")));
        }
        let constant = Tensor::from_f64(ty, at).map_err(|e| OpError::Invalid(e.to_string()))?;
        let constant = d.constant(constant);
        place = d.map(F::Add, &[place, constant])?;
        Ok(place)
    };
    let kw = extents[1] as usize;
    let within = |i: usize| {
        let (tap, axis) = (i / 2, i % 2);
        let at = if axis == 0 { tap / kw } else { tap % kw };
        at as f64 * window.dilations[axis] as f64
    };
    add(d, [taps, 2, 1, 1], &within)?;
    // Along each dimension where windows begin, 0 for the other one.
    let begin = |axis: usize, i: usize| {
        let n = out[axis] as usize;
        let start = (i % n) as f64 * window.strides[axis] as f64 - window.before[axis] as f64;
        if i / n == axis { start } else { 0.0 }
    };
    add(d, [1, 2, out[0], 1], &|i| begin(0, i))?;
    let place = add(d, [1, 2, 1, out[1]], &|i| begin(1, i))?;
    let last = d.transpose(place, &[0, 1, 3, 4, 2])?;
    let mut cuts = vec![None; 5];
    cuts[4] = Some(Cut { start: 1, step: -1, extent: 2 });
    d.push(Slice { cuts }, &[last])
}
