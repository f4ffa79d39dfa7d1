//! Numbers as small integers with a scale, decoded into elementwise ops.
//!
//! - **ONNX**: QuantizeLinear, DequantizeLinear (since 10; one scale an index of an axis since 13,
//!   one a block since 21), DynamicQuantizeLinear (since 11); ONNX Runtime's forms of the first
//!   two.
//! - **Semantics**: `q = saturate(round(x / scale) + zero)` with ties to even, and
//!   `x = (q - zero) · scale`. Elements of 16 bits are computed in f32.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType, element_type};
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::sharding::ReduceKind;
use crate::{DType, OpError};

const QUANTIZED: &[ResultType] = &[ResultType::ElementOr(2, "output_dtype", DType::U8)];
const DEQUANTIZED: &[ResultType] = &[ResultType::Attribute("output_dtype", Some(1))];

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("QuantizeLinear", 10, quantize_linear).results(QUANTIZED),
    DecoderEntry::onnx("DequantizeLinear", 10, dequantize_linear).results(DEQUANTIZED),
    DecoderEntry::onnx("DynamicQuantizeLinear", 11, dynamic).results(&[
        ResultType::Element(DType::U8),
        ResultType::Element(DType::F32),
        ResultType::Element(DType::U8),
    ]),
    DecoderEntry::microsoft("QuantizeLinear", quantize_linear).results(QUANTIZED),
    DecoderEntry::microsoft("DequantizeLinear", dequantize_linear).results(DEQUANTIZED),
];

type Outputs = Result<Vec<ValueId>, OpError>;

/// How numbers are quantised.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// What one step is worth.
    pub scale: ValueId,
    /// What stands for zero, if not 0.
    pub zero: Option<ValueId>,
    /// The dimension along which they differ, if they do.
    pub axis: i64,
    /// How many indices of it share one; 0 if each has its own.
    pub block: i64,
}

impl Scheme {
    /// The scheme of the inputs at `scale` and behind it, the same for all elements.
    pub fn uniform(d: &Decoder<'_>, scale: usize) -> Result<Self, OpError> {
        Ok(Self { scale: d.input(scale)?, zero: d.optional(scale + 1), axis: 1, block: 0 })
    }

    fn decode(d: &Decoder<'_>) -> Result<Self, OpError> {
        let (axis, block) = (d.int_or("axis", 1)?, d.int_or("block_size", 0)?);
        Ok(Self { axis, block, ..Self::uniform(d, 1)? })
    }

    /// The scale, ready to be broadcast to `x`.
    fn scale(&self, d: &mut Decoder<'_>, x: ValueId) -> Result<ValueId, OpError> {
        spread(d, self.scale, &d.shape(x), self.axis, self.block)
    }

    /// The same of what stands for zero; `None` where it is known to be 0.
    fn zero(&self, d: &mut Decoder<'_>, x: ValueId) -> Result<Option<ValueId>, OpError> {
        let known = |t: &crate::Tensor| t.to_i64s().iter().all(|&z| z == 0);
        match self.zero {
            Some(zero) if !d.graph.constant_of(zero).is_some_and(known) => {
                spread(d, zero, &d.shape(x), self.axis, self.block).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Values, one for all elements of a shape, one an index of an axis, or one a block of indices, as
/// something that broadcasts to the shape.
fn spread(
    d: &mut Decoder<'_>,
    v: ValueId,
    to: &[u64],
    axis: i64,
    block: i64,
) -> Result<ValueId, OpError> {
    let shape = d.shape(v);
    if d.ty(v).elements() == 1 {
        return d.reshape(v, []);
    }
    let axis = crate::graph::resolve_axis(axis, to.len())?;
    let n = to[axis];
    let mismatch = |why| OpError::ShapeMismatch { lhs: to.to_vec(), rhs: shape.clone(), why };
    if block == 0 {
        if shape != [n] {
            return Err(mismatch("there is one scale for all elements, or one an index"));
        }
        let mut along = vec![1; to.len()];
        along[axis] = n;
        return d.reshape(v, along);
    }
    let block = u64::try_from(block).map_err(|_| OpError::BadAttribute {
        name: "block_size",
        why: format!("{block} is negative"),
    })?;
    let block = block.min(n.max(1));
    let blocks = n.div_ceil(block);
    let mut whole = to.to_vec();
    whole[axis] = blocks;
    if shape != whole {
        return Err(mismatch("there is one scale a block"));
    }
    whole.insert(axis + 1, 1);
    let apart = d.reshape(v, whole.clone())?;
    whole[axis + 1] = block;
    let repeated = d.expand(apart, whole.clone())?;
    let whole = [&to[..axis], &[blocks * block], &to[axis + 1..]].concat();
    let joined = d.reshape(repeated, whole)?;
    d.slice(joined, axis, 0, n)
}

/// The type in which elements of a type are divided and rounded.
const fn wide(dtype: DType) -> DType {
    if matches!(dtype, DType::F64) { DType::F64 } else { DType::F32 }
}

/// Quantises to a type.
pub fn quantize(
    d: &mut Decoder<'_>,
    x: ValueId,
    scheme: &Scheme,
    to: DType,
) -> Result<ValueId, OpError> {
    let wide = wide(d.ty(x).dtype);
    divide(d, x, scheme, to, wide)
}

/// The same with the type that the quotient has.
fn divide(
    d: &mut Decoder<'_>,
    x: ValueId,
    scheme: &Scheme,
    to: DType,
    quotient: DType,
) -> Result<ValueId, OpError> {
    if !to.is_int() {
        return Err(OpError::UnsupportedType { found: to });
    }
    let (scale, zero) = (scheme.scale(d, x)?, scheme.zero(d, x)?);
    let (x, scale) = (d.cast(x, quotient)?, d.cast(scale, quotient)?);
    let steps = d.map(F::Div, &[x, scale])?;
    // Integers that f32 does not hold are beyond what quantised types hold, too.
    let steps = d.cast(steps, wide(quotient))?;
    let mut steps = d.map(F::Round, &[steps])?;
    if let Some(zero) = zero {
        let zero = d.cast(zero, wide(quotient))?;
        steps = d.map(F::Add, &[steps, zero])?;
    }
    // Conversion to integers saturates.
    d.cast(steps, to)
}

/// The numbers that quantised ones stand for, in f32.
pub fn dequantize(d: &mut Decoder<'_>, q: ValueId, scheme: &Scheme) -> Result<ValueId, OpError> {
    let (scale, zero) = (scheme.scale(d, q)?, scheme.zero(d, q)?);
    let mut x = d.cast(q, DType::F32)?;
    if let Some(zero) = zero {
        let zero = d.cast(zero, DType::F32)?;
        x = d.map(F::Sub, &[x, zero])?;
    }
    let scale = d.cast(scale, DType::F32)?;
    d.map(F::Mul, &[x, scale])
}

/// The element type that an attribute names, if it does.
fn named_type(d: &Decoder<'_>, name: &'static str) -> Result<Option<DType>, OpError> {
    d.int(name)?.filter(|&number| number != 0).map(element_type).transpose()
}

fn quantize_linear(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let scheme = Scheme::decode(d)?;
    let named = named_type(d, "output_dtype")?;
    let to = match (scheme.zero.map(|zero| d.ty(zero).dtype), named) {
        (Some(lhs), Some(rhs)) if lhs != rhs => return Err(OpError::TypeMismatch { lhs, rhs }),
        (zero, named) => zero.or(named).unwrap_or(DType::U8),
    };
    let quotient = match named_type(d, "precision")? {
        Some(precision) => precision,
        None => wide(d.ty(x).dtype),
    };
    Ok(vec![divide(d, x, &scheme, to, quotient)?])
}

fn dequantize_linear(d: &mut Decoder<'_>) -> Outputs {
    let q = d.input(0)?;
    let scheme = Scheme::decode(d)?;
    let dtype = d.ty(q).dtype;
    if !dtype.is_int() {
        return Err(OpError::UnsupportedType { found: dtype });
    }
    if let Some(rhs) = scheme.zero.map(|zero| d.ty(zero).dtype).filter(|&zero| zero != dtype) {
        return Err(OpError::TypeMismatch { lhs: dtype, rhs });
    }
    let to = named_type(d, "output_dtype")?.unwrap_or(d.ty(scheme.scale).dtype);
    let x = dequantize(d, q, &scheme)?;
    Ok(vec![d.cast(x, to)?])
}

fn dynamic(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let (quantised, scheme) = quantize_dynamically(d, x)?;
    Ok([Some(quantised), Some(scheme.scale), scheme.zero].into_iter().flatten().collect())
}

/// Quantises to bytes with a scale and a zero that fit the numbers' range, which holds 0.
pub fn quantize_dynamically(
    d: &mut Decoder<'_>,
    x: ValueId,
) -> Result<(ValueId, Scheme), OpError> {
    let ty = d.ty(x);
    let axes: Vec<usize> = (0..ty.rank()).collect();
    let [none, most] = [d.scalar(ty.dtype, 0.0)?, d.scalar(ty.dtype, 255.0)?];
    let mut bound = |kind, f| {
        let bound = d.reduce(kind, x, &axes)?;
        let bound = d.reshape(bound, [])?;
        d.map(f, &[bound, none])
    };
    let (low, high) = (bound(ReduceKind::Min, F::Min)?, bound(ReduceKind::Max, F::Max)?);
    let range = d.map(F::Sub, &[high, low])?;
    let empty = d.map(F::Equal, &[high, low])?;
    let one = d.scalar(ty.dtype, 1.0)?;
    let range = d.map(F::Where, &[empty, one, range])?;
    let scale = d.map(F::Div, &[range, most])?;
    let below = d.map(F::Div, &[low, scale])?;
    let zero = d.map(F::Sub, &[none, below])?;
    let zero = d.map(F::Clip, &[zero, none, most])?;
    let zero = d.map(F::Round, &[zero])?;
    let zero = d.cast(zero, DType::U8)?;
    let scheme = Scheme { scale, zero: Some(zero), axis: 0, block: 0 };
    Ok((quantize(d, x, &scheme, DType::U8)?, scheme))
}
