//! ONNX Runtime's variants of convolution and of matrix products with an activation.
//!
//! - **ONNX**: com.microsoft NhwcConv, FusedConv, FusedGemm.
//! - **Semantics**: a convolution of images whose channels stand last; a convolution or Gemm, plus a
//!   sum if there is one, then an activation.

use super::Build;
use super::conv::decode as conv;
use super::decode::{Attribute, Decoder, DecoderEntry};
use super::gemm::gemm;
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::microsoft("NhwcConv", nhwc),
    DecoderEntry::microsoft("FusedConv", |d| {
        let mut y = conv(d)?[0];
        if let Some(sum) = d.optional(3) {
            y = d.map(F::Add, &[y, sum])?;
        }
        let parameters = match d.attribute("activation_params") {
            Some(Attribute::Floats(list)) => list.clone(),
            _ => Vec::new(),
        };
        activate(d, y, &parameters)
    }),
    DecoderEntry::microsoft("FusedGemm", |d| {
        let y = gemm(d)?[0];
        let mut parameters = Vec::new();
        for name in ["activation_alpha", "activation_beta", "activation_gamma"] {
            if d.attribute(name).is_some() {
                parameters.push(d.float_or(name, 0.0)?);
            }
        }
        activate(d, y, &parameters)
    }),
];

/// The channels are brought to their place; the weight has them there already.
fn nhwc(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let rank = d.ty(x).rank();
    if rank < 3 {
        return Err(OpError::Rank { index: 0, found: rank, expected: "3 to 5".into() });
    }
    let forth: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let back: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    d.inputs[0] = Some(d.transpose(x, &forth)?);
    let y = conv(d)?[0];
    Ok(vec![d.transpose(y, &back)?])
}

/// The function that the attribute `activation` names.
fn activate(d: &mut Decoder<'_>, x: ValueId, parameters: &[f32]) -> Result<Vec<ValueId>, OpError> {
    let parameter = |i: usize, default: f32| parameters.get(i).copied().unwrap_or(default);
    let f = match d.string_or("activation", "")?.as_str() {
        "" => return Ok(vec![x]),
        "Relu" => F::Relu,
        "Tanh" => F::Tanh,
        "Sigmoid" => F::Sigmoid,
        "LeakyRelu" => F::LeakyRelu { alpha: parameter(0, 0.01) },
        "HardSigmoid" => {
            F::HardSigmoid { alpha: parameter(0, 0.2), beta: parameter(1, 0.5) }
        }
        "Clip" => {
            let dtype = d.ty(x).dtype;
            let low = d.scalar(dtype, f64::from(parameter(0, f32::MIN)))?;
            let high = d.scalar(dtype, f64::from(parameter(1, f32::MAX)))?;
            return Ok(vec![d.map(F::Clip, &[x, low, high])?]);
        }
        other => return Err(OpError::Unsupported(format!("activation `{other}`"))),
    };
    Ok(vec![d.map(f, &[x])?])
}
