//! ONNX Runtime's mixture of experts: a router's choice and a layer of experts. Layers with biases, and
//! with functions that the op does not know, become products of all tokens with the weights of all
//! experts, so that they split along the experts, and a weighted sum.
//!
//! - **ONNX**: com.microsoft MoE.
//! - **Semantics**: the `k` most probable experts of each token process it, `fc2(act(fc1(x)))` or, gated,
//!   `fc2(act(fc1(x)) · fc3(x))`; their results are weighted by their probabilities, which may be scaled
//!   to add up to 1.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use super::fill::Fill;
use super::fused_attention::refuse;
use super::matmul::MatMul;
use super::mixture_of_experts::MixtureOfExperts;
use super::scatter::Update;
use super::scatter_elements::ScatterElements;
use super::softmax::Softmax;
use super::top_k::TopK;
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::{Gate, ScalarFn as F};
use crate::sharding::ReduceKind;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::microsoft("MoE", decode)];

/// Inputs: x, router's scores, then weight and bias of fc1, fc2 and fc3.
fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    refuse(d, &["use_sparse_mixer", "swiglu_limit_after_activation"], &[])?;
    let x = d.input(0)?;
    let shape = d.shape(x);
    let Some((&width, outer)) = shape.split_last() else {
        return Err(OpError::Rank { index: 0, found: 0, expected: "2 or 3".into() });
    };
    let tokens = crate::graph::elements(outer);
    let choice = choice(d, tokens)?;
    if let Some(f) = function(d)? {
        let x = d.reshape(x, [tokens, width])?;
        let experts = d.shape(choice.probabilities)[1];
        let op = MixtureOfExperts { experts, f, fused: false, trans_in: true, trans_out: true };
        let layers = [Some(2), op.is_gated().then_some(6), Some(4)].into_iter().flatten();
        let layers = layers.map(|i| d.input(i)).collect::<Result<Vec<_>, _>>()?;
        let y = d.push(op, &[&[x, choice.experts, choice.weights], &layers[..]].concat())?;
        return Ok(vec![d.reshape(y, shape)?]);
    }
    let weights = spread(d, &choice)?;
    let x = d.reshape(x, [1, tokens, width])?;
    let hidden = hidden(d, x)?;
    let y = layer(d, hidden, 4)?;
    let y = d.map(F::Mul, &[y, weights])?;
    let y = d.reduce(ReduceKind::Sum, y, &[0])?;
    Ok(vec![d.reshape(y, shape)?])
}

/// What a router chose.
struct Choice {
    /// Of each expert for each token, `[tokens, experts]`.
    probabilities: ValueId,
    /// The experts of each token, `[tokens, k]`.
    experts: ValueId,
    /// Their weights, `[tokens, k]`.
    weights: ValueId,
}

fn choice(d: &mut Decoder<'_>, tokens: u64) -> Result<Choice, OpError> {
    let scores = d.input(1)?;
    let ty = d.ty(scores);
    let [rows, _] = ty.shape[..] else {
        return Err(OpError::Rank { index: 1, found: ty.rank(), expected: "2".into() });
    };
    if rows != tokens {
        let why = "the router has one row a token";
        return Err(OpError::ShapeMismatch { lhs: vec![tokens], rhs: ty.shape, why });
    }
    let k = u64::try_from(d.int_or("k", 1)?).unwrap_or(0);
    let probabilities = d.push(Softmax { axis: 1, log: false }, &[scores])?;
    let [mut weights, experts] =
        d.push_multi(TopK { axis: 1, k, largest: true }, &[probabilities])?[..]
    else {
        return Err(OpError::Invalid("has no choice of experts".into()));
    };
    if d.int_or("normalize_routing_weights", 0)? != 0 {
        let total = d.reduce(ReduceKind::Sum, weights, &[1])?;
        weights = d.map(F::Div, &[weights, total])?;
    }
    Ok(Choice { probabilities, experts, weights })
}

/// The function between the layers, if the op knows it and no layer has a bias.
fn function(d: &Decoder<'_>) -> Result<Option<F>, OpError> {
    if [3, 5, 7].iter().any(|&bias| d.optional(bias).is_some()) {
        return Ok(None);
    }
    #[allow(clippy::float_cmp)] // as written or not
    let is_plain = |name, default: f32| Ok::<_, OpError>(d.float_or(name, default)? == default);
    let is_silu = d.attribute("swiglu_limit").is_none()
        && d.int_or("swiglu_fusion", 0)? == 0
        && is_plain("activation_alpha", 1.0)?
        && is_plain("activation_beta", 0.0)?;
    let is_gated = d.optional(6).is_some();
    Ok(match (d.string_or("activation_type", "relu")?.as_str(), is_gated) {
        ("swiglu", true) if is_silu => Some(F::Gated(Gate::Silu)),
        ("silu", true) => Some(F::Gated(Gate::Silu)),
        ("gelu", true) => Some(F::Gated(Gate::GeluTanh)),
        ("identity", false) => Some(F::Identity),
        ("relu", false) => Some(F::Relu),
        ("gelu", false) => Some(F::GeluTanh),
        ("silu", false) => Some(F::Swish { alpha: 1.0 }),
        _ => None,
    })
}

/// The weight of each expert for each token, `[experts, tokens, 1]`; 0 for those not chosen.
fn spread(d: &mut Decoder<'_>, choice: &Choice) -> Result<ValueId, OpError> {
    let ty = d.ty(choice.probabilities);
    let [tokens, experts] = ty.shape[..] else {
        return Err(OpError::Rank { index: 1, found: ty.rank(), expected: "2".into() });
    };
    let none = d.push(Fill { dtype: ty.dtype, shape: ty.shape, value: 0.0 }, &[])?;
    let scatter = ScatterElements { axis: 1, update: Update::Set };
    let weights = d.push(scatter, &[none, choice.experts, choice.weights])?;
    let weights = d.transpose(weights, &[1, 0])?;
    d.reshape(weights, [experts, tokens, 1])
}

/// `x · weightᵀ + bias` of each expert, with the weight in input `index` and the bias behind it.
fn layer(d: &mut Decoder<'_>, x: ValueId, index: usize) -> Result<ValueId, OpError> {
    let weight = d.input(index)?;
    let ty = d.ty(weight);
    let [experts, outputs, _] = ty.shape[..] else {
        return Err(OpError::Rank { index, found: ty.rank(), expected: "3".into() });
    };
    let y = d.push(MatMul { trans_a: false, trans_b: true }, &[x, weight])?;
    match d.optional(index + 1) {
        None => Ok(y),
        Some(bias) => {
            let bias = d.reshape(bias, [experts, 1, outputs])?;
            d.map(F::Add, &[y, bias])
        }
    }
}

/// What goes into the second layer.
fn hidden(d: &mut Decoder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let first = layer(d, x, 2)?;
    let activation = d.string_or("activation_type", "relu")?;
    if activation == "swiglu" {
        let (gate, up) = match d.int_or("swiglu_fusion", 0)? {
            0 => (first, layer(d, x, 6)?),
            1 => halves(d, first, true)?,
            2 => halves(d, first, false)?,
            other => {
                let why = format!("expected 0, 1 or 2, found {other}");
                return Err(OpError::BadAttribute { name: "swiglu_fusion", why });
            }
        };
        return swiglu(d, gate, up);
    }
    let active = match activation.as_str() {
        "identity" => first,
        "relu" => d.map(F::Relu, &[first])?,
        "gelu" => d.map(F::GeluTanh, &[first])?,
        "silu" => {
            let gate = d.map(F::Sigmoid, &[first])?;
            d.map(F::Mul, &[first, gate])?
        }
        other => return Err(OpError::Unsupported(format!("activation `{other}`"))),
    };
    if d.optional(6).is_none() {
        return Ok(active);
    }
    let third = layer(d, x, 6)?;
    d.map(F::Mul, &[active, third])
}

/// Gate and up projection from one product: neighbours if interleaved, else one half each.
fn halves(
    d: &mut Decoder<'_>,
    x: ValueId,
    interleaved: bool,
) -> Result<(ValueId, ValueId), OpError> {
    let [experts, tokens, width] = d.shape(x)[..] else {
        return Err(OpError::Rank { index: 2, found: d.ty(x).rank(), expected: "3".into() });
    };
    if width % 2 != 0 {
        return Err(OpError::Invalid(format!("{width} elements are no pairs of gate and value")));
    }
    let (pairs, at) = if interleaved { ([width / 2, 2], 3) } else { ([2, width / 2], 2) };
    let apart = d.reshape(x, [&[experts, tokens], &pairs[..]].concat())?;
    let [gate, up] = [d.slice(apart, at, 0, 1)?, d.slice(apart, at, 1, 2)?];
    let half = [experts, tokens, width / 2];
    Ok((d.reshape(gate, half)?, d.reshape(up, half)?))
}

/// `g · sigmoid(alpha · g) · (up + beta)`, both sides bounded by a limit if there is one.
fn swiglu(d: &mut Decoder<'_>, mut gate: ValueId, mut up: ValueId) -> Result<ValueId, OpError> {
    let dtype = d.ty(gate).dtype;
    if d.attribute("swiglu_limit").is_some() {
        let limit = f64::from(d.float_or("swiglu_limit", 0.0)?);
        let (low, high) = (d.scalar(dtype, -limit)?, d.scalar(dtype, limit)?);
        gate = d.map(F::Min, &[gate, high])?;
        up = d.map(F::Clip, &[up, low, high])?;
    }
    let scaled = d.scale(gate, f64::from(d.float_or("activation_alpha", 1.0)?))?;
    let sigmoid = d.map(F::Sigmoid, &[scaled])?;
    let active = d.map(F::Mul, &[gate, sigmoid])?;
    let beta = f64::from(d.float_or("activation_beta", 0.0)?);
    if beta != 0.0 {
        let beta = d.scalar(dtype, beta)?;
        up = d.map(F::Add, &[up, beta])?;
    }
    d.map(F::Mul, &[active, up])
}
