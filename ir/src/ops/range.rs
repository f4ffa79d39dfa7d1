//! Evenly spaced numbers.
//!
//! - **ONNX**: Range (since 11), of known numbers.
//! - **Semantics**: `out[i] = start + i · delta`, as many as come before `limit`. Where their number
//!   is undefined, as with a delta of 0, the extent is 0 and evaluating is an error.
//! - **Split**: opaque. The attributes describe the whole, so no rank can make a part on its own.

use super::decode::{Decoder, DecoderEntry};
use super::{Build, OpDef, Work, expect_inputs};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Evenly spaced numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Element type.
    pub dtype: DType,
    /// The first number.
    pub start: Scalar,
    /// Where it ends; not itself in the result.
    pub limit: Scalar,
    /// From one number to the next.
    pub delta: Scalar,
}

/// A number that the range's element type holds exactly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // plain
pub enum Scalar {
    Int(i64),
    Float(#[serde(with = "crate::number")] f64),
}

/// The attributes in the arithmetic of the element type.
enum Numbers {
    Int([i128; 3]),
    Float([f64; 3]),
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Range", 11, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let why = "a range of a computed length is not supported";
    let [start, limit, delta] = [d.known(0, why)?, d.known(1, why)?, d.known(2, why)?];
    let dtype = start.dtype();
    let scalar = |t: &Tensor| {
        if t.len() != 1 || t.dtype() != dtype {
            Err(OpError::Invalid("takes three scalars of one type".into()))
        } else if dtype.is_float() {
            Ok(Scalar::Float(t.f64_at(0)))
        } else {
            i64::try_from(t.int_at(0)).map(Scalar::Int).map_err(|_| {
                OpError::Unsupported(format!("a range with {}, which i64 does not hold", t.int_at(0)))
            })
        }
    };
    let (start, limit, delta) = (scalar(&start)?, scalar(&limit)?, scalar(&delta)?);
    Ok(vec![d.push(Range { dtype, start, limit, delta }, &[])?])
}

/// `start`, `start + 1`, … along one dimension of a tensor of this rank, as 64-bit integers; a
/// constant if there are few.
pub fn along(
    d: &mut impl Build,
    start: i64,
    count: u64,
    axis: usize,
    rank: usize,
) -> Result<ValueId, OpError> {
    let limit = i64::try_from(i128::from(start) + i128::from(count))
        .map_err(|_| OpError::Invalid(format!("counts {count} numbers from {start}")))?;
    let [start, limit, delta] = [start, limit, 1].map(Scalar::Int);
    let numbers = d.push(Range { dtype: DType::I64, start, limit, delta }, &[])?;
    let mut shape = vec![1; rank];
    shape[axis] = count;
    d.reshape(numbers, shape)
}

impl Range {
    fn numbers(&self) -> Result<Numbers, OpError> {
        match [self.start, self.limit, self.delta] {
            [Scalar::Int(a), Scalar::Int(b), Scalar::Int(c)] if self.dtype.is_int() => {
                Ok(Numbers::Int([a, b, c].map(i128::from)))
            }
            [Scalar::Float(a), Scalar::Float(b), Scalar::Float(c)] if self.dtype.is_float() => {
                Ok(Numbers::Float([a, b, c]))
            }
            _ => Err(OpError::UnsupportedType { found: self.dtype }),
        }
    }
}

impl Numbers {
    /// How many numbers come before the limit, at most `u64::MAX`; `None` where that is undefined.
    fn count(&self) -> Option<u64> {
        match *self {
            Self::Int([_, _, 0]) => None,
            Self::Int([start, limit, delta]) => {
                let (span, step) = (limit - start, delta);
                let whole = span / step + i128::from(span % step != 0 && (span < 0) == (step < 0));
                Some(u64::try_from(whole.max(0)).unwrap_or(u64::MAX))
            }
            Self::Float([start, limit, delta]) => {
                let count = ((limit - start) / delta).ceil();
                // Converting saturates, so that a negative number of steps is none.
                (delta != 0.0 && !count.is_nan()).then_some(count as u64)
            }
        }
    }
}

impl OpDef for Range {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 0)?;
        let count = self.numbers()?.count().unwrap_or(0);
        Ok(vec![TensorType::new(self.dtype, [count])])
    }

    fn rule(&self, _: &[TensorType], _: &[TensorType]) -> FactorRule {
        FactorRule::opaque(&[], &[1], "its attributes describe the whole range")
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 2.0)
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let numbers = self.numbers().map_err(|e| EvalError::Invalid(e.to_string()))?;
        let count = numbers.count().ok_or_else(|| {
            EvalError::Invalid(match numbers {
                Numbers::Int([start, limit, delta]) => undefined(start, limit, delta),
                Numbers::Float([start, limit, delta]) => undefined(start, limit, delta),
            })
        })?;
        let ty = TensorType::new(self.dtype, [count]);
        Ok(vec![match numbers {
            Numbers::Int([start, _, delta]) => {
                Tensor::from_int(ty, |i| start + i as i128 * delta)?
            }
            Numbers::Float([start, _, delta]) => {
                Tensor::from_f64(ty, |i| start + i as f64 * delta)?
            }
        }])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

fn undefined(
    start: impl std::fmt::Display,
    limit: impl std::fmt::Display,
    delta: impl std::fmt::Display,
) -> String {
    format!("a range from {start} to {limit} in steps of {delta} has no number of elements")
}
