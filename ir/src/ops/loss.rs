//! Classification losses, decoded into a comparison of classes, choices and sums, so that they split
//! along the samples and along the classes.
//!
//! - **ONNX**: NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss (since 12).
//! - **Semantics**: of `x[n, c, p..]` and the classes `t[n, p..]` of its samples, `-x[n, t, p..] ·
//!   weight[t]`, or 0 where `t` is the class to be ignored; then nothing more, the sum, or the mean
//!   in terms of the weights. Cross entropy takes the logarithm of the softmax of `x` first.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use super::range;
use super::softmax::Softmax;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::sharding::ReduceKind;
use crate::{DType, OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("NegativeLogLikelihoodLoss", 12, |d| Ok(vec![likelihood(d, d.input(0)?)?])),
    DecoderEntry::onnx("SoftmaxCrossEntropyLoss", 12, cross_entropy),
];

fn cross_entropy(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let log_probabilities = d.push(Softmax { axis: 1, log: true }, &[d.input(0)?])?;
    Ok(vec![likelihood(d, log_probabilities)?, log_probabilities])
}

/// The negative log-likelihood of the classes in input 1, weighted by input 2.
fn likelihood(d: &mut Decoder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let ty = d.ty(x);
    let Some((&samples, [classes, positions @ ..])) = ty.shape.split_first() else {
        return Err(OpError::Rank { index: 0, found: 0, expected: "2 or more".into() });
    };
    let target = d.input(1)?;
    let own = [&[samples], positions].concat();
    if d.shape(target) != own {
        let why = "there is one class a sample and position";
        return Err(OpError::ShapeMismatch { lhs: ty.shape, rhs: d.shape(target), why });
    }
    let one_class = [&[samples, 1], positions].concat();
    let mut along_classes = vec![1; ty.rank()];
    along_classes[1] = *classes;

    let target = d.cast(target, DType::I64)?;
    let target = d.reshape(target, one_class)?;
    let numbers = range::along(d, 0, *classes, 1, ty.rank())?;
    let mut chosen = d.map(F::Equal, &[target, numbers])?;
    let ignored = d.int("ignore_index")?;
    if let Some(ignored) = ignored {
        let ignored = d.constant(Tensor::scalar(ignored));
        let ignored = d.map(F::Equal, &[target, ignored])?;
        let counts = d.map(F::Not, &[ignored])?;
        chosen = d.map(F::And, &[chosen, counts])?;
    }

    let zero = d.scalar(ty.dtype, 0.0)?;
    let weight = match d.optional(2) {
        None => d.scalar(ty.dtype, 1.0)?,
        Some(weight) => {
            let weight = d.cast(weight, ty.dtype)?;
            d.reshape(weight, along_classes)?
        }
    };
    let weighted = d.map(F::Mul, &[x, weight])?;
    let weighted = d.map(F::Neg, &[weighted])?;
    let loss = d.map(F::Where, &[chosen, weighted, zero])?;
    let every: Vec<usize> = (0..ty.rank()).collect();
    match d.string_or("reduction", "mean")?.as_str() {
        "none" => {
            let loss = d.reduce(ReduceKind::Sum, loss, &[1])?;
            d.reshape(loss, own)
        }
        "sum" => {
            let loss = d.reduce(ReduceKind::Sum, loss, &every)?;
            d.reshape(loss, [])
        }
        "mean" => {
            let loss = d.reduce(ReduceKind::Sum, loss, &every)?;
            let weight = d.map(F::Where, &[chosen, weight, zero])?;
            let total = d.reduce(ReduceKind::Sum, weight, &every)?;
            let mean = d.map(F::Div, &[loss, total])?;
            d.reshape(mean, [])
        }
        other => Err(OpError::BadAttribute {
            name: "reduction",
            why: format!("expected none, sum or mean, found {other:?}"),
        }),
    }
}
