//! Batch normalisation at inference, decoded into elementwise ops.
//!
//! - **ONNX**: BatchNormalization (since 7; training mode, since 14, is not supported).
//! - **Semantics**: `(x - mean) · scale / sqrt(variance + ε) + bias` with one value a channel.

use super::decode::{Decoder, DecoderEntry};
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("BatchNormalization", 7, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    if d.int_or("training_mode", 0)? != 0 || d.outputs > 1 {
        return Err(OpError::Unsupported("batch normalisation in training mode".into()));
    }
    let x = d.input(0)?;
    let ty = d.ty(x);
    if ty.rank() < 2 {
        return Err(OpError::Rank { index: 0, found: ty.rank(), expected: "2 or more".into() });
    }
    let mut per_channel = Vec::new();
    for index in 1..5 {
        let v = d.input(index)?;
        let shape = d.shape(v);
        if shape != [ty.shape[1]] {
            let why = "each parameter has one value a channel";
            return Err(OpError::ShapeMismatch { lhs: ty.shape, rhs: shape, why });
        }
        per_channel.push(d.cast(v, ty.dtype)?);
    }
    let [scale, bias, mean, variance] = per_channel[..] else {
        return Err(OpError::InputCount { expected: "5".into(), found: d.inputs.len() });
    };
    let epsilon = d.scalar(ty.dtype, f64::from(d.float_or("epsilon", 1e-5)?))?;
    let variance = d.map(F::Add, &[variance, epsilon])?;
    let deviation = d.map(F::Sqrt, &[variance])?;
    let factor = d.map(F::Div, &[scale, deviation])?;
    let mut along = vec![1; ty.rank() - 1];
    along[0] = ty.shape[1];
    let mut result = x;
    for (v, f) in [(mean, F::Sub), (factor, F::Mul), (bias, F::Add)] {
        let v = d.reshape(v, along.clone())?;
        result = d.map(f, &[result, v])?;
    }
    Ok(vec![result])
}
