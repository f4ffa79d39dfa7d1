//! ONNX's activation functions and Clip, decoded into [`Map`](super::map::Map).
//!
//! - **ONNX**: Relu, Sigmoid, HardSigmoid, HardSwish, LeakyRelu, Elu, Celu, Selu, ThresholdedRelu,
//!   Softplus, Softsign, Mish, Gelu, Shrink, Swish, Clip; of ONNX Runtime's: Gelu, FastGelu,
//!   BiasGelu, QuickGelu.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{OpError, Tensor};

type Outputs = Result<Vec<ValueId>, OpError>;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Relu", 6, |d| unary(d, F::Relu)),
    DecoderEntry::onnx("Sigmoid", 6, |d| unary(d, F::Sigmoid)),
    DecoderEntry::onnx("HardSwish", 14, |d| unary(d, F::HardSwish)),
    DecoderEntry::onnx("Softplus", 1, |d| unary(d, F::Softplus)),
    DecoderEntry::onnx("Softsign", 1, |d| unary(d, F::Softsign)),
    DecoderEntry::onnx("Mish", 18, |d| unary(d, F::Mish)),
    DecoderEntry::onnx("HardSigmoid", 6, |d| {
        let alpha = d.float_or("alpha", 0.2)?;
        unary(d, F::HardSigmoid { alpha, beta: d.float_or("beta", 0.5)? })
    }),
    DecoderEntry::onnx("LeakyRelu", 6, |d| {
        unary(d, F::LeakyRelu { alpha: d.float_or("alpha", 0.01)? })
    }),
    DecoderEntry::onnx("Elu", 6, |d| unary(d, F::Elu { alpha: d.float_or("alpha", 1.0)? })),
    DecoderEntry::onnx("Celu", 12, |d| unary(d, F::Celu { alpha: d.float_or("alpha", 1.0)? })),
    DecoderEntry::onnx("Selu", 6, |d| {
        let alpha = d.float_or("alpha", 1.673_263_2)?;
        unary(d, F::Selu { alpha, gamma: d.float_or("gamma", 1.050_701)? })
    }),
    DecoderEntry::onnx("ThresholdedRelu", 10, |d| {
        unary(d, F::ThresholdedRelu { alpha: d.float_or("alpha", 1.0)? })
    }),
    DecoderEntry::onnx("Shrink", 9, |d| {
        let bias = d.float_or("bias", 0.0)?;
        unary(d, F::Shrink { bias, lambd: d.float_or("lambd", 0.5)? })
    }),
    DecoderEntry::onnx("Gelu", 20, gelu),
    DecoderEntry::onnx("Swish", 24, |d| {
        unary(d, F::Swish { alpha: d.float_or("alpha", 1.0)? })
    }),
    DecoderEntry::onnx("Clip", 6, clip),
    DecoderEntry::microsoft("Gelu", |d| unary(d, F::Gelu)),
    DecoderEntry::microsoft("FastGelu", |d| biased(d, F::GeluTanh)),
    DecoderEntry::microsoft("BiasGelu", |d| biased(d, F::Gelu)),
    DecoderEntry::microsoft("QuickGelu", |d| {
        unary(d, F::Swish { alpha: d.float_or("alpha", 1.702)? })
    }),
];

fn unary(d: &mut Decoder<'_>, f: F) -> Outputs {
    Ok(vec![d.map(f, &[d.input(0)?])?])
}

fn gelu(d: &mut Decoder<'_>) -> Outputs {
    match d.string_or("approximate", "none")?.as_str() {
        "none" => unary(d, F::Gelu),
        "tanh" => unary(d, F::GeluTanh),
        other => Err(OpError::BadAttribute {
            name: "approximate",
            why: format!("expected none or tanh, found {other:?}"),
        }),
    }
}

/// A function after an optional bias.
fn biased(d: &mut Decoder<'_>, f: F) -> Outputs {
    let mut x = d.input(0)?;
    if let Some(bias) = d.optional(1) {
        x = d.map(F::Add, &[x, bias])?;
    }
    Ok(vec![d.map(f, &[x])?])
}

/// Bounds are attributes before opset 11 and scalar inputs since; either may be left out.
fn clip(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let dtype = d.ty(x).dtype;
    let bound = |d: &mut Decoder<'_>, name, index| -> Result<Option<ValueId>, OpError> {
        if let Some(bound) = d.optional(index) {
            let ty = d.ty(bound);
            if ty.elements() != 1 {
                return Err(OpError::Rank { index, found: ty.rank(), expected: "0".into() });
            }
            return Ok(Some(d.reshape(bound, [])?));
        }
        if d.attribute(name).is_none() {
            return Ok(None);
        }
        let at = f64::from(d.float_or(name, 0.0)?);
        let at = Tensor::from_f64(crate::TensorType::new(dtype, []), |_| at);
        Ok(Some(d.constant(at.map_err(|e| OpError::Invalid(e.to_string()))?)))
    };
    let (low, high) = (bound(d, "min", 1)?, bound(d, "max", 2)?);
    Ok(vec![match (low, high) {
        (None, None) => x,
        (Some(low), None) => d.map(F::Max, &[x, low])?,
        (None, Some(high)) => d.map(F::Min, &[x, high])?,
        (Some(low), Some(high)) => d.map(F::Clip, &[x, low, high])?,
    }])
}
