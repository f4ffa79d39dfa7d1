//! Causal depthwise convolution with a state, decoded into a concatenation and a convolution.
//!
//! - **ONNX**: CausalConvWithState (since 27).
//! - **Semantics**: each channel is convolved with its own window over its past: what came before the
//!   input is the state, or 0 without one. The new state is the end of both.

use super::Build;
use super::concat::Concat;
use super::conv::Conv;
use super::decode::{Decoder, DecoderEntry};
use super::fill::Fill;
use crate::OpError;
use crate::graph::ValueId;
use crate::program::Window;
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("CausalConvWithState", 27, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (x, weight) = (d.input(0)?, d.input(1)?);
    let (tx, tw) = (d.ty(x), d.ty(weight));
    let [samples, channels, length] = tx.shape[..] else {
        return Err(OpError::Rank { index: 0, found: tx.rank(), expected: "3".into() });
    };
    let taps = match tw.shape[..] {
        [c, 1, taps] if c == channels && taps > 0 => taps,
        _ => {
            let why = "the weight is one window a channel";
            return Err(OpError::ShapeMismatch { lhs: tx.shape, rhs: tw.shape, why });
        }
    };
    let before = [samples, channels, taps - 1];
    let past = match d.optional(3) {
        Some(past) => past,
        None => d.push(Fill { dtype: tx.dtype, shape: before.to_vec(), value: 0.0 }, &[])?,
    };
    if d.shape(past) != before {
        let why = "the state has a position less than the window";
        return Err(OpError::ShapeMismatch { lhs: before.to_vec(), rhs: d.shape(past), why });
    }
    let all = d.push(Concat { axis: 2 }, &[past, x])?;
    let window =
        Window { strides: vec![1], dilations: vec![1], before: vec![0], after: vec![0] };
    let mut y = d.push(Conv { window, groups: channels }, &[all, weight])?;
    if let Some(bias) = d.optional(2) {
        let bias = d.reshape(bias, [channels, 1])?;
        y = d.map(F::Add, &[y, bias])?;
    }
    match d.string_or("activation", "none")?.as_str() {
        "none" => {}
        "silu" | "swish" => {
            let gate = d.map(F::Sigmoid, &[y])?;
            y = d.map(F::Mul, &[y, gate])?;
        }
        other => {
            return Err(OpError::BadAttribute {
                name: "activation",
                why: format!("expected none, silu or swish, found {other:?}"),
            });
        }
    }
    let state = d.slice(all, 2, length, length.saturating_add(taps - 1))?;
    Ok(vec![y, state])
}
