//! Instance and group normalisation, decoded into reductions and elementwise ops.
//!
//! - **ONNX**: InstanceNormalization (since 6), GroupNormalization (since 18; scale and bias have
//!   one value a group before 21, one a channel since).
//! - **Semantics**: `(x - mean) / sqrt(variance + ε) · scale + bias`, statistics over each group of
//!   channels and all positions of one sample.

use super::decode::{Decoder, DecoderEntry};
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("InstanceNormalization", 6, instance),
    DecoderEntry::onnx("GroupNormalization", 18, group),
];

type Outputs = Result<Vec<ValueId>, OpError>;

fn instance(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let channels = channels(d, x, 3)?;
    let axes: Vec<usize> = (2..d.ty(x).rank()).collect();
    let normal = standardise(d, x, &axes)?;
    affine(d, normal, channels)
}

fn group(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let channels = channels(d, x, 2)?;
    let shape = d.shape(x);
    let groups =
        d.int("num_groups")?.ok_or(OpError::MissingAttribute { name: "num_groups" })?;
    let groups = u64::try_from(groups).ok().filter(|&g| g > 0 && channels % g == 0);
    let groups = groups.ok_or_else(|| OpError::BadAttribute {
        name: "num_groups",
        why: format!("does not divide {channels} channels"),
    })?;
    let mut grouped = vec![shape[0], groups, channels / groups];
    grouped.extend(&shape[2..]);
    let axes: Vec<usize> = (2..grouped.len()).collect();
    let grouped = d.reshape(x, grouped)?;
    let normal = standardise(d, grouped, &axes)?;
    if d.opset < 21 {
        let scaled = affine(d, normal, groups)?[0];
        return Ok(vec![d.reshape(scaled, shape)?]);
    }
    let normal = d.reshape(normal, shape)?;
    affine(d, normal, channels)
}

/// The number of channels of an input of at least some rank.
fn channels(d: &Decoder<'_>, x: ValueId, least: usize) -> Result<u64, OpError> {
    let ty = d.ty(x);
    if ty.rank() < least {
        let expected = format!("{least} or more");
        return Err(OpError::Rank { index: 0, found: ty.rank(), expected });
    }
    Ok(ty.shape[1])
}

/// `(x - mean) / sqrt(variance + ε)`, in f32 at least.
fn standardise(d: &mut Decoder<'_>, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
    let dtype = d.ty(x).dtype;
    let wide = if dtype.bytes() < 4 { DType::F32 } else { dtype };
    let x = d.cast(x, wide)?;
    let mean = d.mean(x, axes)?;
    let centred = d.map(F::Sub, &[x, mean])?;
    let square = d.map(F::Mul, &[centred, centred])?;
    let variance = d.mean(square, axes)?;
    let epsilon = d.scalar(wide, f64::from(d.float_or("epsilon", 1e-5)?))?;
    let variance = d.map(F::Add, &[variance, epsilon])?;
    let deviation = d.map(F::Sqrt, &[variance])?;
    let normal = d.map(F::Div, &[centred, deviation])?;
    d.cast(normal, dtype)
}

/// `x · scale + bias` with inputs 1 and 2, one value for each index of dimension 1.
fn affine(d: &mut Decoder<'_>, mut x: ValueId, count: u64) -> Outputs {
    let ty = d.ty(x);
    let mut along = vec![1; ty.rank() - 1];
    along[0] = count;
    for (index, f) in [(1, F::Mul), (2, F::Add)] {
        let v = d.input(index)?;
        if d.shape(v) != [count] {
            return Err(OpError::ShapeMismatch {
                lhs: ty.shape,
                rhs: d.shape(v),
                why: "the scale and bias have one value a channel or group",
            });
        }
        let v = d.reshape(v, along.clone())?;
        x = d.map(f, &[x, v])?;
    }
    Ok(vec![x])
}
