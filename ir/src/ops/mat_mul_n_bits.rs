//! Products with weights of a few bits, decoded into their dequantisation and a matrix product.
//!
//! - **ONNX**: com.microsoft MatMulNBits (2, 4 and 8 bits).
//! - **Semantics**: `A · Bᵀ + bias`, where `B` is `(quantised - zero point) · scale` with one scale and
//!   zero point for each block of columns. Bytes hold several numbers, the first in the lowest bits.

use super::Build;
use super::concat::Concat;
use super::decode::{Decoder, DecoderEntry};
use super::fused_attention::refuse;
use super::matmul::MatMul;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::microsoft("MatMulNBits", decode)];

/// Inputs: A, bytes `[n, blocks, bytes]`, scales, zero points, an index that is not supported, bias.
fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    refuse(d, &["weight_prepacked"], &[4])?;
    let positive = |name: &'static str, default: Option<i64>| {
        let n = d.int(name)?.or(default).ok_or(OpError::MissingAttribute { name })?;
        u64::try_from(n)
            .ok()
            .filter(|&n| n > 0)
            .ok_or_else(|| OpError::BadAttribute { name, why: format!("{n} is not positive") })
    };
    let (n, k) = (positive("N", None)?, positive("K", None)?);
    let (block, bits) = (positive("block_size", None)?, positive("bits", Some(4))?);
    if !matches!(bits, 2 | 4 | 8) {
        return Err(OpError::Unsupported(format!("weights of {bits} bits")));
    }
    let (a, bytes) = (d.input(0)?, d.input(1)?);
    let dtype = d.ty(a).dtype;
    let blocks = k.div_ceil(block);
    let stored = d.shape(bytes);
    if stored.len() != 3 || stored[..2] != [n, blocks] || stored[2].checked_mul(8 / bits) != Some(block)
    {
        let why = "the bytes are [N, blocks of K, bytes of a block]";
        return Err(OpError::ShapeMismatch { lhs: vec![n, blocks, block], rhs: stored, why });
    }
    let quantised = unpack(d, bytes, bits)?;
    let quantised = d.cast(quantised, dtype)?;
    let zero = match d.optional(3) {
        None => d.scalar(dtype, f64::from(1u32 << (bits - 1)))?,
        Some(zero) if d.ty(zero).dtype == DType::U8 => {
            let rows = d.ty(zero).elements() / n;
            let zero = d.reshape(zero, [n, rows])?;
            let zero = unpack(d, zero, bits)?;
            let zero = d.slice(zero, 1, 0, blocks)?;
            let zero = d.cast(zero, dtype)?;
            d.reshape(zero, [n, blocks, 1])?
        }
        Some(zero) => {
            let zero = d.cast(zero, dtype)?;
            d.reshape(zero, [n, blocks, 1])?
        }
    };
    let scale = d.cast(d.input(2)?, dtype)?;
    let scale = d.reshape(scale, [n, blocks, 1])?;
    let centred = d.map(F::Sub, &[quantised, zero])?;
    let weight = d.map(F::Mul, &[centred, scale])?;
    let weight = d.reshape(weight, [n, blocks.saturating_mul(block)])?;
    let weight = d.slice(weight, 1, 0, k)?;
    let mut y = d.push(MatMul { trans_a: false, trans_b: true }, &[a, weight])?;
    if let Some(bias) = d.optional(5) {
        y = d.map(F::Add, &[y, bias])?;
    }
    Ok(vec![y])
}

/// The numbers in bytes, along the last dimension.
fn unpack(d: &mut Decoder<'_>, bytes: ValueId, bits: u64) -> Result<ValueId, OpError> {
    if bits == 8 {
        return Ok(bytes);
    }
    let ty = d.ty(bytes);
    if ty.dtype != DType::U8 {
        return Err(OpError::UnsupportedType { found: ty.dtype });
    }
    let single = [&ty.shape[..], &[1]].concat();
    let mask = d.scalar(DType::U8, f64::from((1u32 << bits) - 1))?;
    let mut parts = Vec::new();
    for i in 0..8 / bits {
        let by = d.scalar(DType::U8, (i * bits) as f64)?;
        let part = d.map(F::ShiftRight, &[bytes, by])?;
        let part = d.map(F::BitwiseAnd, &[part, mask])?;
        parts.push(d.reshape(part, single.clone())?);
    }
    let all = d.push(Concat { axis: ty.rank() }, &parts)?;
    let mut shape = ty.shape;
    if let Some(last) = shape.last_mut() {
        *last = last.saturating_mul(8 / bits);
    }
    d.reshape(all, shape)
}
