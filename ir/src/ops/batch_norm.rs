//! Batch normalisation, decoded into elementwise ops and reductions.
//!
//! - **ONNX**: BatchNormalization (since 7; training mode by attribute since 14).
//! - **Semantics**: `(x - mean) · scale / sqrt(variance + ε) + bias` with one value a channel. In
//!   training mode mean and variance are the batch's; further outputs are running ones,
//!   `running · momentum + batch · (1 - momentum)`.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("BatchNormalization", 7, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let training = d.int_or("training_mode", 0)? != 0;
    if d.outputs > if training { 3 } else { 1 } {
        return Err(OpError::Unsupported("the statistics that batch normalisation saves".into()));
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
    let [scale, bias, mut mean, mut variance] = per_channel[..] else {
        return Err(OpError::InputCount { expected: "5".into(), found: d.inputs.len() });
    };
    let mut running = Vec::new();
    if training {
        let batch = statistics(d, x)?;
        let momentum = f64::from(d.float_or("momentum", 0.9)?);
        for (index, (before, batch)) in [mean, variance].into_iter().zip(batch).enumerate() {
            let (before, new) = (d.scale(before, momentum)?, d.scale(batch, 1.0 - momentum)?);
            let sum = d.map(F::Add, &[before, new])?;
            let dtype = d.ty(d.input(3 + index)?).dtype;
            running.push(d.cast(sum, dtype)?);
        }
        [mean, variance] = batch;
    }
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
    Ok(std::iter::once(result).chain(running).collect())
}

/// The mean and variance of each channel.
fn statistics(d: &mut Decoder<'_>, x: ValueId) -> Result<[ValueId; 2], OpError> {
    let ty = d.ty(x);
    let axes: Vec<usize> = (0..ty.rank()).filter(|&axis| axis != 1).collect();
    let mean = d.mean(x, &axes)?;
    let centred = d.map(F::Sub, &[x, mean])?;
    let square = d.map(F::Mul, &[centred, centred])?;
    let variance = d.mean(square, &axes)?;
    Ok([d.reshape(mean, [ty.shape[1]])?, d.reshape(variance, [ty.shape[1]])?])
}
