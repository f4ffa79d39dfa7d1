//! Products of quantised operands, decoded into products of integers.
//!
//! - **ONNX**: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv (since 10); of ONNX
//!   Runtime's: MatMulIntegerToFloat, DynamicQuantizeMatMul, QLinearAdd, QLinearMul,
//!   QLinearSigmoid, QLinearLeakyRelu.
//! - **Semantics**: operands less what stands for zero are multiplied exactly; what the sums are
//!   worth, the product of the scales, becomes the result or is quantised again.
//! - **Split**: as the product of [`MatMul`](super::matmul) or [`Conv`](super::conv) that they are.

use super::Build;
use super::conv::convolve;
use super::decode::{Decoder, DecoderEntry, ResultType};
use super::matmul::product;
use super::quantize::{Scheme, dequantize, quantize, quantize_dynamically};
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError};

const INTEGER: &[ResultType] = &[ResultType::Element(DType::I32)];
const LIKE_SCALE: &[ResultType] = &[ResultType::ElementOf(2)];

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("MatMulInteger", 10, matmul_integer).results(INTEGER),
    DecoderEntry::onnx("ConvInteger", 10, conv_integer).results(INTEGER),
    DecoderEntry::onnx("QLinearMatMul", 10, matmul_linear).results(&[ResultType::ElementOf(7)]),
    DecoderEntry::onnx("QLinearConv", 10, conv_linear).results(&[ResultType::ElementOf(7)]),
    DecoderEntry::microsoft("MatMulIntegerToFloat", matmul_to_float).results(LIKE_SCALE),
    DecoderEntry::microsoft("DynamicQuantizeMatMul", matmul_dynamic),
    DecoderEntry::microsoft("QLinearAdd", |d| pair(d, F::Add)),
    DecoderEntry::microsoft("QLinearMul", |d| pair(d, F::Mul)),
    DecoderEntry::microsoft("QLinearSigmoid", |d| single(d, F::Sigmoid)),
    DecoderEntry::microsoft("QLinearLeakyRelu", |d| {
        single(d, F::LeakyRelu { alpha: d.float_or("alpha", 0.01)? })
    }),
];

type Outputs = Result<Vec<ValueId>, OpError>;

/// A quantised operand less what stands for zero, in a type that holds the difference.
fn centred(
    d: &mut Decoder<'_>,
    q: ValueId,
    zero: Option<ValueId>,
    to: DType,
) -> Result<ValueId, OpError> {
    let dtype = d.ty(q).dtype;
    if !matches!(dtype, DType::U8 | DType::I8 | DType::U16 | DType::I16) {
        return Err(OpError::UnsupportedType { found: dtype });
    }
    let x = d.cast(q, to)?;
    let Some(zero) = zero else { return Ok(x) };
    let zero = d.cast(zero, to)?;
    d.map(F::Sub, &[x, zero])
}

/// A value of one element as a scalar; one that differs by row of a left operand as a column.
fn by_row(d: &mut Decoder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let shape = d.shape(v);
    match shape[..] {
        [1] => d.reshape(v, []),
        [n] => d.reshape(v, [n, 1]),
        _ => Ok(v),
    }
}

/// A value of one element as a scalar; others broadcast along columns as they are.
fn by_column(d: &mut Decoder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    if d.shape(v) == [1] { d.reshape(v, []) } else { Ok(v) }
}

/// The product of two quantised matrices, in i32.
fn integer_product(
    d: &mut Decoder<'_>,
    [a, b]: [ValueId; 2],
    [zero_a, zero_b]: [Option<ValueId>; 2],
) -> Result<ValueId, OpError> {
    let zero_a = zero_a.map(|zero| by_row(d, zero)).transpose()?;
    let zero_b = zero_b.map(|zero| by_column(d, zero)).transpose()?;
    let a = centred(d, a, zero_a, DType::I32)?;
    let b = centred(d, b, zero_b, DType::I32)?;
    product(d, a, b)
}

fn matmul_integer(d: &mut Decoder<'_>) -> Outputs {
    let operands = [d.input(0)?, d.input(1)?];
    let zeros = [d.optional(2), d.optional(3)];
    Ok(vec![integer_product(d, operands, zeros)?])
}

/// Scales an integer product by row and column, and adds a bias.
fn to_float(
    d: &mut Decoder<'_>,
    product: ValueId,
    [scale_a, scale_b]: [ValueId; 2],
    bias: Option<ValueId>,
) -> Outputs {
    let dtype = d.ty(scale_b).dtype;
    let (scale_a, scale_b) = (by_row(d, scale_a)?, by_column(d, scale_b)?);
    let scale = d.map(F::Mul, &[scale_a, scale_b])?;
    let product = d.cast(product, dtype)?;
    let mut result = d.map(F::Mul, &[product, scale])?;
    if let Some(bias) = bias {
        result = d.map(F::Add, &[result, bias])?;
    }
    Ok(vec![result])
}

fn matmul_to_float(d: &mut Decoder<'_>) -> Outputs {
    let operands = [d.input(0)?, d.input(1)?];
    let scales = [d.input(2)?, d.input(3)?];
    let product = integer_product(d, operands, [d.optional(4), d.optional(5)])?;
    to_float(d, product, scales, d.optional(6))
}

fn matmul_dynamic(d: &mut Decoder<'_>) -> Outputs {
    let (a, b, scale_b) = (d.input(0)?, d.input(1)?, d.input(2)?);
    let (a, scheme) = quantize_dynamically(d, a)?;
    let product = integer_product(d, [a, b], [scheme.zero, d.optional(3)])?;
    to_float(d, product, [scheme.scale, scale_b], d.optional(4))
}

/// Quantises sums that are worth `a · b` each.
fn requantize(
    d: &mut Decoder<'_>,
    sums: ValueId,
    [a, b]: [ValueId; 2],
    to: &Scheme,
) -> Outputs {
    let zero = to.zero.ok_or(OpError::MissingInput { index: 7 })?;
    let dtype = d.ty(zero).dtype;
    let [a, b] = [d.cast(a, DType::F32)?, d.cast(b, DType::F32)?];
    let worth = d.map(F::Mul, &[a, b])?;
    let sums = d.cast(sums, DType::F32)?;
    let x = d.map(F::Mul, &[sums, worth])?;
    Ok(vec![quantize(d, x, to, dtype)?])
}

fn matmul_linear(d: &mut Decoder<'_>) -> Outputs {
    let operands = [d.input(0)?, d.input(3)?];
    let zeros = [d.input(2)?, d.input(5)?];
    let sums = integer_product(d, operands, zeros.map(Some))?;
    let (scale_a, scale_b) = (d.input(1)?, d.input(4)?);
    let scales = [by_row(d, scale_a)?, by_column(d, scale_b)?];
    let to = Scheme::uniform(d, 6)?;
    requantize(d, sums, scales, &to)
}

/// One value a channel of dimension `axis`, or one for all, ready to be broadcast.
fn by_channel(
    d: &mut Decoder<'_>,
    v: ValueId,
    rank: usize,
    axis: usize,
) -> Result<ValueId, OpError> {
    match d.shape(v)[..] {
        [] => Ok(v),
        [1] => d.reshape(v, []),
        [n] if axis < rank => {
            let mut along = vec![1; rank];
            along[axis] = n;
            d.reshape(v, along)
        }
        ref other => {
            Err(OpError::Invalid(format!("{other:?} is neither one value nor one a channel")))
        }
    }
}

/// The convolution of quantised operands, exact in f64, where integers up to 2^53 are.
fn integer_convolution(
    d: &mut Decoder<'_>,
    [x, weight]: [ValueId; 2],
    [zero_x, zero_w]: [Option<ValueId>; 2],
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let rank = d.ty(weight).rank();
    let zero_x = zero_x.map(|zero| by_column(d, zero)).transpose()?;
    let zero_w = zero_w.map(|zero| by_channel(d, zero, rank, 0)).transpose()?;
    let x = centred(d, x, zero_x, DType::F64)?;
    let weight = centred(d, weight, zero_w, DType::F64)?;
    let bias = bias.map(|bias| d.cast(bias, DType::F64)).transpose()?;
    convolve(d, x, weight, bias)
}

fn conv_integer(d: &mut Decoder<'_>) -> Outputs {
    let operands = [d.input(0)?, d.input(1)?];
    let zeros = [d.optional(2), d.optional(3)];
    let sums = integer_convolution(d, operands, zeros, None)?;
    Ok(vec![d.cast(sums, DType::I32)?])
}

fn conv_linear(d: &mut Decoder<'_>) -> Outputs {
    let operands = [d.input(0)?, d.input(3)?];
    let zeros = [Some(d.input(2)?), Some(d.input(5)?)];
    let sums = integer_convolution(d, operands, zeros, d.optional(8))?;
    let (scale_x, scale_w, rank) = (d.input(1)?, d.input(4)?, d.ty(sums).rank());
    let scales = [by_column(d, scale_x)?, by_channel(d, scale_w, rank, 1)?];
    let to = Scheme::uniform(d, 6)?;
    requantize(d, sums, scales, &to)
}

/// A function of two quantised operands. Inputs: each operand and the result's scheme.
fn pair(d: &mut Decoder<'_>, f: F) -> Outputs {
    let (a, b) = (d.input(0)?, d.input(3)?);
    let [from_a, from_b, to] =
        [Scheme::uniform(d, 1)?, Scheme::uniform(d, 4)?, Scheme::uniform(d, 6)?];
    let dtype = d.ty(a).dtype;
    let (a, b) = (dequantize(d, a, &from_a)?, dequantize(d, b, &from_b)?);
    let result = d.map(f, &[a, b])?;
    Ok(vec![quantize(d, result, &to, dtype)?])
}

/// A function of a quantised operand. Inputs: the operand, its scheme, the result's.
fn single(d: &mut Decoder<'_>, f: F) -> Outputs {
    let x = d.input(0)?;
    let (from, to) = (Scheme::uniform(d, 1)?, Scheme::uniform(d, 3)?);
    let dtype = d.ty(x).dtype;
    let x = dequantize(d, x, &from)?;
    let result = d.map(f, &[x])?;
    Ok(vec![quantize(d, result, &to, dtype)?])
}
