//! Values that are known when the model is imported, and values that pass unchanged.
//!
//! - **ONNX**: Constant, Shape (since 1, `start` and `end` since 15), Size, Identity, Dropout
//!   (inference).

use super::decode::{Attribute, Decoder, DecoderEntry};
use super::fill::Fill;
use crate::graph::{ValueDef, ValueId};
use crate::{DType, OpError, Tensor};
use std::sync::Arc;

type Outputs = Result<Vec<ValueId>, OpError>;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Constant", 1, constant),
    DecoderEntry::onnx("Shape", 1, shape),
    DecoderEntry::onnx("Size", 1, size),
    DecoderEntry::onnx("Identity", 1, |d| Ok(vec![d.input(0)?])),
    DecoderEntry::onnx("Dropout", 7, dropout),
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

/// Passes its input through. A mask that is asked for says that everything was kept.
fn dropout(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let training = match d.optional(2) {
        None => false,
        Some(_) => d.known(2, "training changes the result")?.to_i64s().contains(&1),
    };
    if training {
        let ratio = match d.optional(1) {
            None => 0.5,
            Some(_) => d.known(1, "it changes the result")?.to_f64s().first().map_or(0.5, |&r| r),
        };
        if ratio != 0.0 {
            return Err(OpError::Unsupported("dropout in training mode is random".into()));
        }
    }
    if d.outputs < 2 {
        return Ok(vec![x]);
    }
    // Until opset 10 the mask had the input's type.
    let dtype = if d.opset < 10 { d.ty(x).dtype } else { DType::Bool };
    let mask = d.push(Fill { dtype, shape: d.shape(x), value: 1.0 }, &[])?;
    Ok(vec![x, mask])
}
