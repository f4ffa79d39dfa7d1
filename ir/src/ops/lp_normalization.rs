//! Division by the norm, decoded into a reduction and elementwise ops.
//!
//! - **ONNX**: LpNormalization (since 1).
//! - **Semantics**: `x / (Σ |x|ᵖ)^(1/p)` along a dimension for `p` of 1 or 2; 0 where the norm is 0.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::sharding::ReduceKind;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("LpNormalization", 1, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let axis = ty.axis(d.int_or("axis", -1)?)?;
    let norm = match d.int_or("p", 2)? {
        1 => {
            let absolute = d.map(F::Abs, &[x])?;
            d.reduce(ReduceKind::Sum, absolute, &[axis])?
        }
        2 => {
            let square = d.map(F::Mul, &[x, x])?;
            let sum = d.reduce(ReduceKind::Sum, square, &[axis])?;
            d.map(F::Sqrt, &[sum])?
        }
        other => {
            return Err(OpError::BadAttribute {
                name: "p",
                why: format!("expected 1 or 2, found {other}"),
            });
        }
    };
    let zero = d.scalar(ty.dtype, 0.0)?;
    let none = d.map(F::Equal, &[norm, zero])?;
    let quotient = d.map(F::Div, &[x, norm])?;
    Ok(vec![d.map(F::Where, &[none, zero, quotient])?])
}
