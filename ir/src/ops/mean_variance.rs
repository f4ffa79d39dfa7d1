//! Normalisation to mean 0 and variance 1, decoded into reductions and elementwise ops.
//!
//! - **ONNX**: MeanVarianceNormalization (since 9).
//! - **Semantics**: `(x - mean) / (sqrt(mean((x - mean)²)) + 1e-9)` over the dimensions `axes`.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] =
    &[DecoderEntry::onnx("MeanVarianceNormalization", 9, decode)];

/// Added to the deviation, as the definition says.
const EPSILON: f64 = 1e-9;

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let axes = d.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let mut axes = axes.into_iter().map(|a| ty.axis(a)).collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    let mean = d.mean(x, &axes)?;
    let centred = d.map(F::Sub, &[x, mean])?;
    let square = d.map(F::Mul, &[centred, centred])?;
    let variance = d.mean(square, &axes)?;
    let deviation = d.map(F::Sqrt, &[variance])?;
    let epsilon = d.scalar(ty.dtype, EPSILON)?;
    let deviation = d.map(F::Add, &[deviation, epsilon])?;
    Ok(vec![d.map(F::Div, &[centred, deviation])?])
}
