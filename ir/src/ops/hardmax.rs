//! Hardmax: 1 at the first of the largest elements, 0 elsewhere, decoded into the index of that
//! element and a comparison.
//!
//! - **ONNX**: Hardmax (since 1; along one dimension since 13, before that along all from `axis` on
//!   taken together).

use super::Build;
use super::arg_reduce::ArgReduce;
use super::decode::{Decoder, DecoderEntry};
use super::range;
use crate::OpError;
use crate::graph::{ValueId, elements};
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Hardmax", 1, |d| {
        let (x, shape) = (d.input(0)?, d.shape(d.input(0)?));
        // The axis may be the rank: then each element is alone.
        let axis = match d.int_or("axis", 1)? {
            axis if axis == shape.len() as i64 => shape.len(),
            axis => d.ty(x).axis(axis)?,
        };
        let (outer, inner) = shape.split_at(axis);
        let flat = d.reshape(x, [elements(outer), elements(inner)])?;
        let hard = hardmax(d, flat, 1)?;
        Ok(vec![d.reshape(hard, shape)?])
    }),
    DecoderEntry::onnx("Hardmax", 13, |d| {
        let x = d.input(0)?;
        let axis = d.ty(x).axis(d.int_or("axis", -1)?)?;
        Ok(vec![hardmax(d, x, axis)?])
    }),
];

fn hardmax(d: &mut Decoder<'_>, x: ValueId, axis: usize) -> Result<ValueId, OpError> {
    let ty = d.ty(x);
    let largest = d.push(ArgReduce { axis, largest: true, keep: true, last: false }, &[x])?;
    let numbers = range::along(d, 0, ty.shape[axis], axis, ty.rank())?;
    let hot = d.map(F::Equal, &[largest, numbers])?;
    d.cast(hot, ty.dtype)
}
