//! Scalar functions: what elementwise ops compute. Backends implement these and nothing
//! op-specific.

mod float;
mod int;
mod slope;

use crate::DType;
use serde::{Deserialize, Serialize};

pub use float::erf;
pub use slope::{Slope, SlopeOf};

/// A function of one to three scalars.
///
/// Parameters are attributes. Results of comparisons and logic are bool; all others have the type
/// of the operands (see [`ScalarFn::output`]).
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
        #[serde(with = "crate::number")]
        alpha: f32,
        #[serde(with = "crate::number")]
        beta: f32,
    },
    HardSwish,
    LeakyRelu {
        #[serde(with = "crate::number")]
        alpha: f32,
    },
    Elu {
        #[serde(with = "crate::number")]
        alpha: f32,
    },
    Celu {
        #[serde(with = "crate::number")]
        alpha: f32,
    },
    Selu {
        #[serde(with = "crate::number")]
        alpha: f32,
        #[serde(with = "crate::number")]
        gamma: f32,
    },
    ThresholdedRelu {
        #[serde(with = "crate::number")]
        alpha: f32,
    },
    Softplus,
    Softsign,
    Mish,
    Gelu,
    GeluTanh,
    /// `x · sigmoid(alpha · x)`; SiLU for 1.
    Swish {
        #[serde(with = "crate::number")]
        alpha: f32,
    },
    Shrink {
        #[serde(with = "crate::number")]
        bias: f32,
        #[serde(with = "crate::number")]
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
    /// `activation(gate) · x`; operands are gate and x.
    Gated(Gate),
    /// `slope(z) · g`; operands are z and g.
    Slope(Slope),
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

/// What the gate of a gated activation goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the field's
pub enum Gate {
    Silu,
    Gelu,
    GeluTanh,
}

impl Gate {
    /// The function by itself.
    pub const fn function(self) -> ScalarFn {
        match self {
            Self::Silu => ScalarFn::Swish { alpha: 1.0 },
            Self::Gelu => ScalarFn::Gelu,
            Self::GeluTanh => ScalarFn::GeluTanh,
        }
    }
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
            | F::Gated(_)
            | F::Slope(_)
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

    /// Whether operands (`x` and `y` of `Where`) may have this element type.
    pub const fn accepts(self, operand: DType) -> bool {
        use ScalarFn as F;
        match self {
            F::Identity | F::Cast(_) | F::Equal | F::Where => true,
            F::Not | F::And | F::Or | F::Xor => matches!(operand, DType::Bool),
            F::BitwiseNot
            | F::BitwiseAnd
            | F::BitwiseOr
            | F::BitwiseXor
            | F::ShiftLeft
            | F::ShiftRight => operand.is_int(),
            F::Neg
            | F::Abs
            | F::Sign
            | F::Relu
            | F::Add
            | F::Sub
            | F::Mul
            | F::Div
            | F::Pow
            | F::Mod
            | F::Fmod
            | F::Min
            | F::Max
            | F::Less
            | F::LessOrEqual
            | F::Greater
            | F::GreaterOrEqual
            | F::PRelu
            | F::Clip => !matches!(operand, DType::Bool),
            _ => operand.is_float(),
        }
    }
}
