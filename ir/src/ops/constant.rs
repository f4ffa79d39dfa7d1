//! Values that are known when the model is imported, and values that pass unchanged.
//!
//! - **ONNX**: Constant, Shape (since 1, `start` and `end` since 15), Size, Identity.

use super::Build;
use super::decode::{Attribute, Decoder, DecoderEntry, ResultType};
use crate::graph::{ValueDef, ValueId};
use crate::{DType, OpError, Tensor};
use std::sync::Arc;

type Outputs = Result<Vec<ValueId>, OpError>;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Constant", 1, constant),
    DecoderEntry::onnx("Shape", 1, shape).results(&[ResultType::Element(DType::I64)]),
    DecoderEntry::onnx("Size", 1, size).results(&[ResultType::Element(DType::I64)]),
    DecoderEntry::onnx("Identity", 1, |d| Ok(vec![d.input(0)?])),
];

fn constant(d: &mut Decoder<'_>) -> Outputs {
    let Some((name, value)) = d.attributes.iter().find(|(name, _)| name.contains("value")) else {
        return Err(OpError::MissingAttribute { name: "value" });
    };
    let tensor = match (name.as_str(), value) {
        ("value", Attribute::Tensor(t)) => Arc::clone(t),
        ("value_float", &Attribute::Float(x)) => Arc::new(Tensor::scalar(x)),
        ("value_int", &Attribute::Int(x)) => Arc::new(Tensor::scalar(x)),
        ("value_floats", Attribute::Floats(x)) => Arc::new(Tensor::vector(x.clone())),
        ("value_ints", Attribute::Ints(x)) => Arc::new(Tensor::vector(x.clone())),
        (other, _) => return Err(OpError::Unsupported(format!("constant by `{other}`"))),
    };
    let name = format!("{}:value", d.name);
    let ty = tensor.ty().clone();
    Ok(vec![d.graph.add_value(name, ty, ValueDef::Constant(tensor))])
}

fn shape(d: &mut Decoder<'_>) -> Outputs {
    let shape = d.shape(d.input(0)?);
    let rank = shape.len() as i64;
    let clamp = |i: i64| (if i < 0 { i.saturating_add(rank) } else { i }).clamp(0, rank) as usize;
    let (start, end) = (clamp(d.int_or("start", 0)?), clamp(d.int_or("end", rank)?));
    let part = shape.get(start..end).unwrap_or(&[]);
    let part = part.iter().map(|&n| n as i64).collect::<Vec<_>>();
    Ok(vec![d.constant(Tensor::vector(part))])
}

fn size(d: &mut Decoder<'_>) -> Outputs {
    let n = d.ty(d.input(0)?).elements() as i64;
    Ok(vec![d.constant(Tensor::scalar(n))])
}
