//! ONNX Runtime's operators that add a bias and do one thing more.
//!
//! - **ONNX**: com.microsoft BiasAdd, BiasSplitGelu, BiasSoftmax, BiasDropout.
//! - **Semantics**: `x + bias + skip`; `left · gelu(right)` of the halves of `x + bias`; the softmax of
//!   `x + bias` over the dimensions from `axis` on; `dropout(x + bias) + residual`, where nothing is dropped
//!   unless the model is trained (see [`dropout`](super::dropout)).

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType};
use super::dropout::dropped;
use super::fill::Fill;
use super::softmax::Softmax;
use crate::graph::{ValueId, elements};
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::microsoft("BiasAdd", |d| Ok(vec![add_all(d, 3)?])),
    DecoderEntry::microsoft("BiasSplitGelu", split_gelu),
    DecoderEntry::microsoft("BiasSoftmax", softmax),
    DecoderEntry::microsoft("BiasDropout", dropout)
        .results(&[ResultType::ElementOf(0), ResultType::Element(DType::Bool)]),
];

type Outputs = Result<Vec<ValueId>, OpError>;

/// The sum of the first inputs, as far as they are there.
fn add_all(d: &mut Decoder<'_>, count: usize) -> Result<ValueId, OpError> {
    let mut sum = d.input(0)?;
    for index in 1..count {
        if let Some(other) = d.optional(index) {
            sum = d.map(F::Add, &[sum, other])?;
        }
    }
    Ok(sum)
}

fn split_gelu(d: &mut Decoder<'_>) -> Outputs {
    let x = add_all(d, 2)?;
    let axis = d.ty(x).axis(-1)?;
    let n = d.shape(x)[axis];
    if !n.is_multiple_of(2) {
        return Err(OpError::Invalid(format!("splits {n} elements into two halves")));
    }
    let [left, right] = [d.slice(x, axis, 0, n / 2)?, d.slice(x, axis, n / 2, n)?];
    let right = d.map(F::Gelu, &[right])?;
    Ok(vec![d.map(F::Mul, &[left, right])?])
}

fn softmax(d: &mut Decoder<'_>) -> Outputs {
    let x = add_all(d, 2)?;
    let ty = d.ty(x);
    let axis = ty.axis(d.int_or("axis", 1)?)?;
    let mut flat = ty.shape[..axis].to_vec();
    flat.push(elements(&ty.shape[axis..]));
    let flattened = d.reshape(x, flat)?;
    let result = d.push(Softmax { axis, log: false }, &[flattened])?;
    Ok(vec![d.reshape(result, ty.shape)?])
}

fn dropout(d: &mut Decoder<'_>) -> Outputs {
    if d.drops {
        let sum = add_all(d, 2)?;
        let mut results = dropped(d, sum, 3)?;
        if let Some(residual) = d.optional(2) {
            results[0] = d.map(F::Add, &[results[0], residual])?;
        }
        return Ok(results);
    }
    if d.optional(4).is_some() && d.known(4, "training changes the result")?.to_i64s() != [0] {
        return Err(OpError::Unsupported("dropout in training mode is random".into()));
    }
    let sum = add_all(d, 3)?;
    if d.outputs < 2 {
        return Ok(vec![sum]);
    }
    let kept = Fill { dtype: DType::Bool, shape: d.shape(sum), value: 1.0 };
    Ok(vec![sum, d.push(kept, &[])?])
}
