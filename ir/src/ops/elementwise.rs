//! ONNX's elementwise operators without a parameter, decoded into [`Map`](super::map::Map).
//!
//! - **ONNX**: arithmetic, comparison, logic, rounding, trigonometry, Where, Cast, CastLike. Min,
//!   Max, Sum and Mean of many operands become a chain of pairs.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType, element_type};
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError};

type Outputs = Result<Vec<ValueId>, OpError>;

/// Of the type, and the extents, of the operand.
const SAME: &[ResultType] = &[ResultType::SameAs(0)];
/// Of the type of the first operand.
const FIRST: &[ResultType] = &[ResultType::ElementOf(0)];
const SECOND: &[ResultType] = &[ResultType::ElementOf(1)];
const BOOL: &[ResultType] = &[ResultType::Element(DType::Bool)];

macro_rules! table {
    ($($count:ident $results:ident: $(($name:literal, $since:literal, $f:expr)),+;)+) => {
        &[
            $($(DecoderEntry::onnx($name, $since, |d| $count(d, $f)).results($results),)+)+
            DecoderEntry::onnx("Pow", 1, pow),
            DecoderEntry::onnx("Mod", 10, modulo),
            DecoderEntry::onnx("BitShift", 11, bit_shift),
            DecoderEntry::onnx("IsInf", 10, is_inf).results(BOOL),
            DecoderEntry::onnx("Cast", 6, cast).results(&[ResultType::Attribute("to", None)]),
            DecoderEntry::onnx("CastLike", 15, cast_like).results(SECOND),
            DecoderEntry::onnx("Mean", 6, mean),
        ]
    };
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = table! {
    unary SAME:
        ("Neg", 1, F::Neg), ("Abs", 1, F::Abs), ("Sign", 9, F::Sign),
        ("Reciprocal", 1, F::Reciprocal), ("Sqrt", 1, F::Sqrt), ("Exp", 1, F::Exp),
        ("Log", 1, F::Log), ("Sin", 7, F::Sin), ("Cos", 7, F::Cos), ("Tan", 7, F::Tan),
        ("Asin", 7, F::Asin), ("Acos", 7, F::Acos), ("Atan", 7, F::Atan),
        ("Sinh", 9, F::Sinh), ("Cosh", 9, F::Cosh), ("Tanh", 1, F::Tanh),
        ("Asinh", 9, F::Asinh), ("Acosh", 9, F::Acosh), ("Atanh", 9, F::Atanh),
        ("Erf", 9, F::Erf), ("Floor", 1, F::Floor), ("Ceil", 1, F::Ceil),
        ("Round", 11, F::Round), ("Not", 1, F::Not), ("BitwiseNot", 18, F::BitwiseNot);
    unary BOOL:
        ("IsNaN", 9, F::IsNaN);
    binary FIRST:
        ("Add", 7, F::Add), ("Sub", 7, F::Sub), ("Mul", 7, F::Mul), ("Div", 7, F::Div),
        ("And", 7, F::And), ("Or", 7, F::Or), ("Xor", 7, F::Xor), ("PRelu", 7, F::PRelu),
        ("BitwiseAnd", 18, F::BitwiseAnd), ("BitwiseOr", 18, F::BitwiseOr),
        ("BitwiseXor", 18, F::BitwiseXor);
    binary BOOL:
        ("Equal", 7, F::Equal), ("Less", 7, F::Less), ("LessOrEqual", 12, F::LessOrEqual),
        ("Greater", 7, F::Greater), ("GreaterOrEqual", 12, F::GreaterOrEqual);
    ternary SECOND:
        ("Where", 9, F::Where);
    variadic FIRST:
        ("Min", 6, F::Min), ("Max", 6, F::Max), ("Sum", 6, F::Add);
};

fn unary(d: &mut Decoder<'_>, f: F) -> Outputs {
    Ok(vec![d.map(f, &[d.input(0)?])?])
}

fn binary(d: &mut Decoder<'_>, f: F) -> Outputs {
    Ok(vec![d.map(f, &[d.input(0)?, d.input(1)?])?])
}

fn ternary(d: &mut Decoder<'_>, f: F) -> Outputs {
    Ok(vec![d.map(f, &[d.input(0)?, d.input(1)?, d.input(2)?])?])
}

fn variadic(d: &mut Decoder<'_>, f: F) -> Outputs {
    let mut result = d.input(0)?;
    for other in d.all_inputs()?.into_iter().skip(1) {
        result = d.map(f, &[result, other])?;
    }
    Ok(vec![result])
}

fn mean(d: &mut Decoder<'_>) -> Outputs {
    let n = d.inputs.len() as f64;
    let sum = variadic(d, F::Add)?[0];
    Ok(vec![d.scale(sum, 1.0 / n)?])
}

/// The exponent may be of another type: the power is taken in floats if either side is, and has
/// the base's type.
fn pow(d: &mut Decoder<'_>) -> Outputs {
    let (base, exponent) = (d.input(0)?, d.input(1)?);
    let (to, from) = (d.ty(base).dtype, d.ty(exponent).dtype);
    if !to.is_float() && from.is_float() {
        let base = d.cast(base, from)?;
        let power = d.map(F::Pow, &[base, exponent])?;
        return Ok(vec![d.cast(power, to)?]);
    }
    let exponent = d.cast(exponent, to)?;
    Ok(vec![d.map(F::Pow, &[base, exponent])?])
}

fn modulo(d: &mut Decoder<'_>) -> Outputs {
    let fmod = d.int_or("fmod", 0)? != 0;
    binary(d, if fmod { F::Fmod } else { F::Mod })
}

fn bit_shift(d: &mut Decoder<'_>) -> Outputs {
    match d.string_or("direction", "")?.as_str() {
        "LEFT" => binary(d, F::ShiftLeft),
        "RIGHT" => binary(d, F::ShiftRight),
        other => Err(OpError::BadAttribute {
            name: "direction",
            why: format!("expected LEFT or RIGHT, found {other:?}"),
        }),
    }
}

fn is_inf(d: &mut Decoder<'_>) -> Outputs {
    let positive = d.int_or("detect_positive", 1)? != 0;
    let negative = d.int_or("detect_negative", 1)? != 0;
    unary(d, F::IsInf { positive, negative })
}

fn cast(d: &mut Decoder<'_>) -> Outputs {
    let to = d.int("to")?.ok_or(OpError::MissingAttribute { name: "to" })?;
    let (x, to) = (d.input(0)?, element_type(to)?);
    Ok(vec![d.cast(x, to)?])
}

fn cast_like(d: &mut Decoder<'_>) -> Outputs {
    let (x, like) = (d.input(0)?, d.input(1)?);
    let to = d.ty(like).dtype;
    Ok(vec![d.cast(x, to)?])
}
