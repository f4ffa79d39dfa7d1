//! Gemm: a matrix product with a scale and a bias, decoded into [`MatMul`](super::matmul::MatMul)
//! and elementwise ops.
//!
//! - **ONNX**: Gemm (since 7); com.microsoft FusedMatMul.
//! - **Semantics**: `alpha · A' · B' + beta · C`, where `'` transposes if the attribute says so.

use super::Build;
use super::broadcast;
use super::decode::{Decoder, DecoderEntry};
use super::matmul::MatMul;
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] =
    &[DecoderEntry::onnx("Gemm", 7, gemm), DecoderEntry::microsoft("FusedMatMul", fused_matmul)];

pub(super) fn gemm(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (a, b) = (d.input(0)?, d.input(1)?);
    for (index, v) in [a, b].into_iter().enumerate() {
        let found = d.ty(v).rank();
        if found != 2 {
            return Err(OpError::Rank { index, found, expected: "2".into() });
        }
    }
    let product = MatMul {
        trans_a: d.int_or("transA", 0)? != 0,
        trans_b: d.int_or("transB", 0)? != 0,
    };
    let product = d.push(product, &[a, b])?;
    let mut result = d.scale(product, f64::from(d.float_or("alpha", 1.0)?))?;
    let beta = f64::from(d.float_or("beta", 1.0)?);
    if let Some(c) = d.optional(2).filter(|_| beta != 0.0) {
        let (out, bias) = (d.shape(result), d.shape(c));
        if broadcast(&out, &bias)? != out {
            return Err(OpError::ShapeMismatch {
                lhs: bias,
                rhs: out,
                why: "the bias must broadcast to the product",
            });
        }
        let bias = d.scale(c, beta)?;
        result = d.map(ScalarFn::Add, &[result, bias])?;
    }
    Ok(vec![result])
}

/// Batch dimensions are transposed first: the first dimension becomes the last but one.
fn fused_matmul(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let operand = |d: &mut Decoder<'_>, index: usize, trans_batch: &'static str| {
        let x = d.input(index)?;
        let rank = d.ty(x).rank();
        if d.int_or(trans_batch, 0)? == 0 || rank < 3 {
            return Ok(x);
        }
        let perm: Vec<usize> = (1..rank - 1).chain([0, rank - 1]).collect();
        d.transpose(x, &perm)
    };
    let (a, b) = (operand(d, 0, "transBatchA")?, operand(d, 1, "transBatchB")?);
    let product = MatMul {
        trans_a: d.int_or("transA", 0)? != 0,
        trans_b: d.int_or("transB", 0)? != 0,
    };
    let product = d.push(product, &[a, b])?;
    Ok(vec![d.scale(product, f64::from(d.float_or("alpha", 1.0)?))?])
}
