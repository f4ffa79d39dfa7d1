//! Scalar functions: what elementwise ops compute. Backends implement these and nothing op-specific.

use crate::DType;
use serde::{Deserialize, Serialize};

/// A function of one to three scalars.
///
/// Parameters are attributes. Results of comparisons and logic are bool; all others have the type of
/// the operands (see [`ScalarFn::output`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are ONNX's
pub enum ScalarFn {
    // One operand.
    Identity,
    Cast(DType),
    Neg,
    Abs,
    Sign,
    Reciprocal,
    Sqrt,
    Exp,
    Log,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Floor,
    Ceil,
    /// To the nearest integer, ties to even.
    Round,
    Not,
    IsNaN,
    IsInf {
        positive: bool,
        negative: bool,
    },
    Relu,
    Sigmoid,
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    HardSwish,
    LeakyRelu {
        alpha: f32,
    },
    Elu {
        alpha: f32,
    },
    Celu {
        alpha: f32,
    },
    Selu {
        alpha: f32,
        gamma: f32,
    },
    ThresholdedRelu {
        alpha: f32,
    },
    Softplus,
    Softsign,
    Mish,
    Gelu,
    GeluTanh,
    Shrink {
        bias: f32,
        lambd: f32,
    },
    BitwiseNot,
    // Two operands.
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    /// Remainder with the sign of the divisor (Python's `%`).
    Mod,
    /// Remainder with the sign of the dividend (C's `fmod`).
    Fmod,
    Min,
    Max,
    And,
    Or,
    Xor,
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    PRelu,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    ShiftLeft,
    ShiftRight,
    // Three operands.
    /// `x, low, high`.
    Clip,
    /// `condition, x, y`.
    Where,
}

impl ScalarFn {
    /// Number of operands.
    pub const fn arity(self) -> usize {
        use ScalarFn as F;
        match self {
            F::Clip | F::Where => 3,
            F::Add
            | F::Sub
            | F::Mul
            | F::Div
            | F::Pow
            | F::Mod
            | F::Fmod
            | F::Min
            | F::Max
            | F::And
            | F::Or
            | F::Xor
            | F::Equal
            | F::Less
            | F::LessOrEqual
            | F::Greater
            | F::GreaterOrEqual
            | F::PRelu
            | F::BitwiseAnd
            | F::BitwiseOr
            | F::BitwiseXor
            | F::ShiftLeft
            | F::ShiftRight => 2,
            _ => 1,
        }
    }

    /// The element type of the result, from that of the operands (of `x` for `Where`).
    pub const fn output(self, operand: DType) -> DType {
        use ScalarFn as F;
        match self {
            F::Cast(to) => to,
            F::Not
            | F::And
            | F::Or
            | F::Xor
            | F::IsNaN
            | F::IsInf { .. }
            | F::Equal
            | F::Less
            | F::LessOrEqual
            | F::Greater
            | F::GreaterOrEqual => DType::Bool,
            _ => operand,
        }
    }
}
