//! Dropout, and operators that are random.
//!
//! - **ONNX**: Dropout (since 7; training by an input since 12). Bernoulli, Multinomial,
//!   RandomNormal, RandomNormalLike, RandomUniform, RandomUniformLike are errors that say so.
//! - **Semantics**: passes its input through, unless it trains: then each element is 0 with
//!   probability `ratio` and grows by `1 / (1 - ratio)` otherwise. Without a seed that is random, and
//!   no plan computes it twice.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType};
use super::fill::Fill;
use super::uniform::Uniform;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Dropout", 7, dropout)
        .results(&[ResultType::SameAs(0), ResultType::Element(DType::Bool)]),
    DecoderEntry::onnx("Bernoulli", 15, random),
    DecoderEntry::onnx("Multinomial", 7, random),
    DecoderEntry::onnx("RandomNormal", 1, random),
    DecoderEntry::onnx("RandomNormalLike", 1, random),
    DecoderEntry::onnx("RandomUniform", 1, random),
    DecoderEntry::onnx("RandomUniformLike", 1, random),
];

type Outputs = Result<Vec<ValueId>, OpError>;

fn random(_: &mut Decoder<'_>) -> Outputs {
    Err(OpError::Unsupported("its result is random".into()))
}

/// A mask that is asked for says which elements were kept.
fn dropout(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let training = match d.optional(2) {
        None => false,
        Some(_) => d.known(2, "training changes the result")?.to_i64s().contains(&1),
    };
    let ratio = match d.optional(1) {
        Some(_) if training => d.known(1, "it changes the result")?.to_f64s().first().copied(),
        _ => None,
    };
    let ratio = ratio.unwrap_or(0.5);
    if training && ratio != 0.0 {
        return drop_some(d, x, ratio);
    }
    if d.outputs < 2 {
        return Ok(vec![x]);
    }
    // Until opset 10 the mask had the input's type.
    let dtype = if d.opset < 10 { d.ty(x).dtype } else { DType::Bool };
    let mask = d.push(Fill { dtype, shape: d.shape(x), value: 1.0 }, &[])?;
    Ok(vec![x, mask])
}

fn drop_some(d: &mut Decoder<'_>, x: ValueId, ratio: f64) -> Outputs {
    if !(0.0..1.0).contains(&ratio) {
        return Err(OpError::Invalid(format!("drops a share of {ratio}")));
    }
    let seed = d.int("seed")?.and_then(|seed| u32::try_from(seed).ok());
    let Some(seed) = seed else {
        return Err(OpError::Unsupported("dropout in training mode without a seed is random".into()));
    };
    let ty = d.ty(x);
    let numbers = d.push(Uniform { dtype: DType::F64, shape: ty.shape, seed }, &[])?;
    let share = d.scalar(DType::F64, ratio)?;
    let mask = d.map(F::GreaterOrEqual, &[numbers, share])?;
    let (grown, none) = (d.scale(x, 1.0 / (1.0 - ratio))?, d.scalar(ty.dtype, 0.0)?);
    Ok(vec![d.map(F::Where, &[mask, grown, none])?, mask])
}
