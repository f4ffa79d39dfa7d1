//! Where a known tensor is not zero: how often decides a shape.
//!
//! - **ONNX**: NonZero (since 9).
//! - **Semantics**: one column for each element that is not 0, in row-major order; its rows are the
//!   element's indices. A scalar is a vector of one element.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType};
use crate::graph::{TensorType, ValueId};
use crate::tensor::unravel;
use crate::{DType, OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] =
    &[DecoderEntry::onnx("NonZero", 9, decode).results(&[ResultType::Element(DType::I64)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.known(0, "where it is not zero decides the output's shape")?;
    let shape = if x.shape().is_empty() { vec![1] } else { x.shape().to_vec() };
    let found: Vec<usize> = (0..x.len()).filter(|&i| x.f64_at(i) != 0.0).collect();
    let ty = TensorType::new(DType::I64, [shape.len() as u64, found.len() as u64]);
    let at = |i: usize| unravel(found[i % found.len()], &shape)[i / found.len()] as i128;
    let indices = Tensor::from_int(ty, at).map_err(|e| OpError::Invalid(e.to_string()))?;
    Ok(vec![d.constant(indices)])
}
