//! Tensors written out: short ones as a list of numbers, others as base64 of their bytes.

use super::cursor::{Cursor, ParseError, ParseErrorKind};
use crate::tensor::Element;
use crate::{DType, EvalError, Tensor, TensorType, with_element};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Tensors of up to this many elements are written as numbers.
const MAX_LISTED: usize = 16;

/// A tensor's elements as they stand in the textual form.
pub(super) fn print(t: &Tensor) -> String {
    // A NaN's payload has no decimal form, so it keeps its bytes.
    let listed = t.len() <= MAX_LISTED && t.to_f64s().iter().all(|x| x.is_finite());
    if !listed {
        return format!("base64(\"{}\")", BASE64.encode(t.to_bytes()));
    }
    let number = |i| match t.dtype() {
        DType::Bool => (t.int_at(i) != 0).to_string(),
        // The shortest digits that read back as the same f32; f16 and bf16 are exact in f32.
        DType::F32 | DType::F16 | DType::BF16 => format!("{:?}", t.f64_at(i) as f32),
        DType::F64 => format!("{:?}", t.f64_at(i)),
        _ => t.int_at(i).to_string(),
    };
    let numbers: Vec<String> = (0..t.len()).map(number).collect();
    format!("[{}]", numbers.join(", "))
}

/// What was read before the type, which follows, is known.
pub(super) enum Literal {
    List(Vec<String>),
    Bytes(Vec<u8>),
}

/// Reads a tensor's elements.
pub(super) fn read(c: &mut Cursor<'_>) -> Result<Literal, ParseError> {
    if c.take_word("base64") {
        c.expect("(")?;
        let at = c.offset();
        let text = c.string()?;
        let bytes = BASE64
            .decode(text)
            .map_err(|e| c.error_at(at, ParseErrorKind::Tensor(format!("not base64: {e}"))))?;
        c.expect(")")?;
        return Ok(Literal::Bytes(bytes));
    }
    c.expect("[")?;
    let mut numbers = Vec::new();
    if !c.take("]") {
        loop {
            numbers.push(c.number_text()?.to_string());
            if c.take("]") {
                break;
            }
            c.expect(",")?;
        }
    }
    Ok(Literal::List(numbers))
}

impl Literal {
    /// The tensor of this type.
    pub(super) fn typed(self, ty: &TensorType) -> Result<Tensor, EvalError> {
        match self {
            Self::Bytes(bytes) => {
                if ty.dtype == DType::Bool && bytes.iter().any(|&b| b > 1) {
                    return Err(EvalError::Invalid("a bool is 0 or 1".into()));
                }
                Tensor::from_bytes(ty.clone(), &bytes)
            }
            Self::List(numbers) => with_element!(ty.dtype, T => {
                let elements: Result<Vec<T>, EvalError> =
                    numbers.iter().map(|n| element(n)).collect();
                Tensor::new(ty.shape.clone(), elements?)
            }),
        }
    }
}

/// A number that the element type holds.
fn element<T: Element>(text: &str) -> Result<T, EvalError> {
    let bad = || EvalError::Invalid(format!("`{text}` is not a {}", T::DTYPE));
    if T::DTYPE == DType::Bool {
        let b: bool = text.parse().map_err(|_| bad())?;
        return Ok(T::from_int(i128::from(b)));
    }
    if T::DTYPE.is_float() {
        let x: f64 = match T::DTYPE {
            DType::F64 => text.parse().map_err(|_| bad())?,
            _ => text.parse::<f32>().map_err(|_| bad())?.into(),
        };
        let element = T::from_f64(x);
        return if element.to_f64().is_finite() { Ok(element) } else { Err(bad()) };
    }
    let x: i128 = text.parse().map_err(|_| bad())?;
    let element = T::from_int(x);
    if element.to_int() == x { Ok(element) } else { Err(bad()) }
}
