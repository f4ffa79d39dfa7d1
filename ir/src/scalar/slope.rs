//! Derivatives of functions of one operand: what a gradient is multiplied by on its way back.

use super::ScalarFn;
use super::float::{erf, sigmoid, softplus, truth};
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// The derivative of the function of the same name ([`ScalarFn`]), as a function of the operand or of the
/// result, as [`Slope::of`] says. Where there is none (a kink), it is that of one side.
///
/// Functions whose derivative is one elementary function of their operand or result (`exp`, `log`) are not
/// listed: a product or quotient does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are ScalarFn's
pub enum Slope {
    Abs,
    Reciprocal,
    Sqrt,
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
    Relu,
    Sigmoid,
    HardSigmoid {
        #[serde(with = "crate::number")]
        alpha: f32,
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
    Swish {
        #[serde(with = "crate::number")]
        alpha: f32,
    },
    Shrink {
        #[serde(with = "crate::number")]
        lambd: f32,
    },
}

/// What a derivative is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlopeOf {
    /// The function's operand.
    Operand,
    /// The function's result.
    Result,
}

impl Slope {
    /// The derivative of a function of one operand, if it is listed here, and what it is computed from: of
    /// the result where that is as easy, since the next op often keeps it anyway.
    pub const fn of(f: ScalarFn) -> Option<(Self, SlopeOf)> {
        use ScalarFn as F;
        let of_operand = match f {
            F::Reciprocal => return Some((Self::Reciprocal, SlopeOf::Result)),
            F::Sqrt => return Some((Self::Sqrt, SlopeOf::Result)),
            F::Tan => return Some((Self::Tan, SlopeOf::Result)),
            F::Tanh => return Some((Self::Tanh, SlopeOf::Result)),
            F::Relu => return Some((Self::Relu, SlopeOf::Result)),
            F::Sigmoid => return Some((Self::Sigmoid, SlopeOf::Result)),
            F::HardSigmoid { alpha, .. } => {
                return Some((Self::HardSigmoid { alpha }, SlopeOf::Result));
            }
            F::Abs => Self::Abs,
            F::Sin => Self::Sin,
            F::Cos => Self::Cos,
            F::Asin => Self::Asin,
            F::Acos => Self::Acos,
            F::Atan => Self::Atan,
            F::Sinh => Self::Sinh,
            F::Cosh => Self::Cosh,
            F::Asinh => Self::Asinh,
            F::Acosh => Self::Acosh,
            F::Atanh => Self::Atanh,
            F::Erf => Self::Erf,
            F::HardSwish => Self::HardSwish,
            F::LeakyRelu { alpha } => Self::LeakyRelu { alpha },
            F::Elu { alpha } => Self::Elu { alpha },
            F::Celu { alpha } => Self::Celu { alpha },
            F::Selu { alpha, gamma } => Self::Selu { alpha, gamma },
            F::ThresholdedRelu { alpha } => Self::ThresholdedRelu { alpha },
            F::Softplus => Self::Softplus,
            F::Softsign => Self::Softsign,
            F::Mish => Self::Mish,
            F::Gelu => Self::Gelu,
            F::GeluTanh => Self::GeluTanh,
            F::Swish { alpha } => Self::Swish { alpha },
            F::Shrink { lambd, .. } => Self::Shrink { lambd },
            _ => return None,
        };
        Some((of_operand, SlopeOf::Operand))
    }

    /// The derivative at an operand `z`, or at a result `z`.
    #[allow(clippy::match_same_arms)] // each line is one function
    pub fn at(self, z: f64) -> f64 {
        let below_zero = |negative: f64| if z < 0.0 { negative } else { 1.0 };
        match self {
            Self::Abs => ScalarFn::Sign.apply(&[z]),
            Self::Reciprocal => -z * z,
            Self::Sqrt => 0.5 / z,
            Self::Sin => z.cos(),
            Self::Cos => -z.sin(),
            Self::Tan => 1.0 + z * z,
            Self::Asin => 1.0 / (1.0 - z * z).sqrt(),
            Self::Acos => -1.0 / (1.0 - z * z).sqrt(),
            Self::Atan => 1.0 / (1.0 + z * z),
            Self::Sinh => z.cosh(),
            Self::Cosh => z.sinh(),
            Self::Tanh => 1.0 - z * z,
            Self::Asinh => 1.0 / z.hypot(1.0),
            Self::Acosh => 1.0 / (z * z - 1.0).sqrt(),
            Self::Atanh => 1.0 / (1.0 - z * z),
            Self::Erf => FRAC_2_SQRT_PI * (-z * z).exp(),
            Self::Relu => truth(z > 0.0),
            Self::Sigmoid => z * (1.0 - z),
            Self::HardSigmoid { alpha } => f64::from(alpha) * truth(z > 0.0 && z < 1.0),
            Self::HardSwish if z.abs() < 3.0 => z / 3.0 + 0.5,
            Self::HardSwish => truth(z > 0.0),
            Self::LeakyRelu { alpha } => below_zero(f64::from(alpha)),
            Self::Elu { alpha } => below_zero(f64::from(alpha) * z.exp()),
            Self::Celu { alpha } => below_zero((z / f64::from(alpha)).exp()),
            Self::Selu { alpha, gamma } => {
                f64::from(gamma) * below_zero(f64::from(alpha) * z.exp())
            }
            Self::ThresholdedRelu { alpha } => truth(z > f64::from(alpha)),
            Self::Softplus => sigmoid(z),
            Self::Softsign => (1.0 + z.abs()).powi(-2),
            Self::Mish => {
                let gate = softplus(z).tanh();
                gate + z * (1.0 - gate * gate) * sigmoid(z)
            }
            Self::Gelu => {
                let density = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (-0.5 * z * z).exp();
                0.5 * (1.0 + erf(z * FRAC_1_SQRT_2)) + z * density
            }
            Self::GeluTanh => {
                let scale = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
                let inner = (scale * (z + 0.044_715 * z * z * z)).tanh();
                let of_inner = scale * (1.0 + 3.0 * 0.044_715 * z * z);
                0.5 * (1.0 + inner) + 0.5 * z * (1.0 - inner * inner) * of_inner
            }
            Self::Swish { alpha } => {
                let alpha = f64::from(alpha);
                let gate = sigmoid(alpha * z);
                gate + alpha * z * gate * (1.0 - gate)
            }
            Self::Shrink { lambd } => truth(z.abs() > f64::from(lambd)),
        }
    }
}

impl ScalarFn {
    /// The derivatives of a function of one or two floats with respect to each, if they are known: of what
    /// stands between layers or makes a gate.
    pub fn derivatives(self, x: &[f64]) -> Option<[f64; 2]> {
        Some(match (self, x) {
            (Self::Identity, _) => [1.0, 0.0],
            (Self::Neg, _) => [-1.0, 0.0],
            (Self::Mul, &[x, y]) => [y, x],
            (Self::Gated(gate), &[x, y]) => {
                let [slope, _] = gate.function().derivatives(&[x])?;
                [slope * y, gate.function().apply(&[x])]
            }
            (f, &[x]) => match Slope::of(f)? {
                (slope, SlopeOf::Operand) => [slope.at(x), 0.0],
                (slope, SlopeOf::Result) => [slope.at(f.apply(&[x])), 0.0],
            },
            _ => return None,
        })
    }

    /// Whether [`derivatives`](Self::derivatives) are known.
    pub fn has_derivatives(self) -> bool {
        self.arity() <= 2 && self.derivatives(&[0.5; 2][..self.arity()]).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarFn as F;

    /// Central differences at two distances, of which the combination is off in the fourth power.
    fn difference(f: ScalarFn, x: f64) -> f64 {
        let at = |h: f64| (f.apply(&[x + h]) - f.apply(&[x - h])) / (2.0 * h);
        (4.0 * at(5e-5) - at(1e-4)) / 3.0
    }

    #[test]
    fn derivatives_are_limits_of_differences() {
        let (alpha, beta, gamma) = (0.7, 0.4, 1.3);
        for (f, low, high) in [
            (F::Abs, -2.0, 2.0),
            (F::Reciprocal, 0.2, 3.0),
            (F::Sqrt, 0.2, 3.0),
            (F::Sin, -4.0, 4.0),
            (F::Cos, -4.0, 4.0),
            (F::Tan, -1.2, 1.2),
            (F::Asin, -0.9, 0.9),
            (F::Acos, -0.9, 0.9),
            (F::Atan, -3.0, 3.0),
            (F::Sinh, -3.0, 3.0),
            (F::Cosh, -3.0, 3.0),
            (F::Tanh, -3.0, 3.0),
            (F::Asinh, -3.0, 3.0),
            (F::Acosh, 1.2, 4.0),
            (F::Atanh, -0.9, 0.9),
            (F::Erf, -3.0, 3.0),
            (F::Relu, -2.0, 2.0),
            (F::Sigmoid, -6.0, 6.0),
            (F::HardSigmoid { alpha, beta }, -3.0, 3.0),
            (F::HardSwish, -5.0, 5.0),
            (F::LeakyRelu { alpha }, -2.0, 2.0),
            (F::Elu { alpha }, -3.0, 3.0),
            (F::Celu { alpha }, -3.0, 3.0),
            (F::Selu { alpha, gamma }, -3.0, 3.0),
            (F::ThresholdedRelu { alpha }, -2.0, 2.0),
            (F::Softplus, -6.0, 6.0),
            (F::Softsign, -3.0, 3.0),
            (F::Mish, -6.0, 6.0),
            (F::Gelu, -5.0, 5.0),
            (F::GeluTanh, -5.0, 5.0),
            (F::Swish { alpha }, -6.0, 6.0),
            (F::Shrink { bias: 0.3, lambd: 0.6 }, -2.0, 2.0),
        ] {
            let (slope, from) = Slope::of(f).unwrap();
            for i in 0..101 {
                // No multiple of a tenth, where kinks are.
                let x = low + (high - low) * (f64::from(i) + 0.37) / 101.3;
                let z = if from == SlopeOf::Operand { x } else { f.apply(&[x]) };
                let (found, wanted) = (slope.at(z), difference(f, x));
                let error = (found - wanted).abs() / wanted.abs().max(1.0);
                assert!(error < 1e-9, "{f:?} has slope {wanted} at {x}, not {found}");
                assert_eq!(f.derivatives(&[x]), Some([found, 0.0]));
                let product = F::Slope(slope).apply(&[z, -3.0]);
                assert_eq!(product.to_bits(), (found * -3.0).to_bits());
            }
        }
    }

    #[test]
    fn far_out_the_limits_are_reached() {
        for slope in [Slope::Softplus, Slope::Mish, Slope::Gelu, Slope::GeluTanh, Slope::HardSwish]
        {
            assert!((slope.at(500.0) - 1.0).abs() < 1e-12, "{slope:?}");
            assert!(slope.at(-500.0).abs() < 1e-12, "{slope:?}");
        }
    }
}
