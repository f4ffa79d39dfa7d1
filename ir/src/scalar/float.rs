//! Scalar functions on floats.

use super::ScalarFn;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

impl ScalarFn {
    /// The function on floats, bool results as 0 and 1. Missing operands count as NaN. Functions
    /// that exist on integers only (see [`ScalarFn::accepts`]) give NaN.
    #[allow(clippy::float_cmp)] // the functions are defined so
    #[allow(clippy::match_same_arms)] // each line is one function
    pub fn apply(self, args: &[f64]) -> f64 {
        use ScalarFn as F;
        let arg = |i: usize| args.get(i).copied().unwrap_or(f64::NAN);
        let (x, y) = (arg(0), arg(1));
        match self {
            // Rounding to another type happens where the result is stored.
            F::Identity | F::Cast(_) => x,
            F::Neg => -x,
            F::Abs => x.abs(),
            F::Sign if x == 0.0 || x.is_nan() => x,
            F::Sign => x.signum(),
            F::Reciprocal => 1.0 / x,
            F::Sqrt => x.sqrt(),
            F::Exp => x.exp(),
            F::Log => x.ln(),
            F::Sin => x.sin(),
            F::Cos => x.cos(),
            F::Tan => x.tan(),
            F::Asin => x.asin(),
            F::Acos => x.acos(),
            F::Atan => x.atan(),
            F::Sinh => x.sinh(),
            F::Cosh => x.cosh(),
            F::Tanh => x.tanh(),
            F::Asinh => x.asinh(),
            F::Acosh => x.acosh(),
            F::Atanh => x.atanh(),
            F::Erf => erf(x),
            F::Floor => x.floor(),
            F::Ceil => x.ceil(),
            F::Round => x.round_ties_even(),
            F::Not => truth(x == 0.0),
            F::IsNaN => truth(x.is_nan()),
            F::IsInf { positive, negative } => {
                truth((positive && x == f64::INFINITY) || (negative && x == f64::NEG_INFINITY))
            }
            F::Relu => max(x, 0.0),
            F::Sigmoid => sigmoid(x),
            F::HardSigmoid { alpha, beta } => {
                clip(f64::from(alpha) * x + f64::from(beta), 0.0, 1.0)
            }
            F::HardSwish => x * clip(x / 6.0 + 0.5, 0.0, 1.0),
            F::LeakyRelu { alpha } => below_zero(x, f64::from(alpha) * x),
            F::Elu { alpha } => below_zero(x, f64::from(alpha) * x.exp_m1()),
            F::Celu { alpha } => {
                let alpha = f64::from(alpha);
                below_zero(x, alpha * (x / alpha).exp_m1())
            }
            F::Selu { alpha, gamma } => {
                f64::from(gamma) * below_zero(x, f64::from(alpha) * x.exp_m1())
            }
            F::ThresholdedRelu { alpha } if x <= f64::from(alpha) => 0.0,
            F::ThresholdedRelu { .. } => x,
            F::Softplus => softplus(x),
            F::Softsign => x / (1.0 + x.abs()),
            F::Mish => x * softplus(x).tanh(),
            F::Gelu => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
            F::GeluTanh => {
                let inner = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            F::Swish { alpha } => x * sigmoid(f64::from(alpha) * x),
            F::Shrink { bias, lambd } => {
                let (bias, lambd) = (f64::from(bias), f64::from(lambd));
                if x < -lambd {
                    x + bias
                } else if x > lambd {
                    x - bias
                } else if x.is_nan() {
                    x
                } else {
                    0.0
                }
            }
            F::Add => x + y,
            F::Sub => x - y,
            F::Mul => x * y,
            F::Div => x / y,
            F::Pow => x.powf(y),
            F::Mod => {
                let r = x % y;
                if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
            }
            F::Fmod => x % y,
            F::Min => min(x, y),
            F::Max => max(x, y),
            F::And => truth(x != 0.0 && y != 0.0),
            F::Or => truth(x != 0.0 || y != 0.0),
            F::Xor => truth((x != 0.0) != (y != 0.0)),
            F::Equal => truth(x == y),
            F::Less => truth(x < y),
            F::LessOrEqual => truth(x <= y),
            F::Greater => truth(x > y),
            F::GreaterOrEqual => truth(x >= y),
            F::PRelu => below_zero(x, x * y),
            F::Gated(activation) => activation.function().apply(&[x]) * y,
            F::Slope(slope) => slope.at(x) * y,
            F::Clip => clip(x, y, arg(2)),
            F::Where if x == 0.0 => arg(2),
            F::Where => y,
            F::BitwiseNot
            | F::BitwiseAnd
            | F::BitwiseOr
            | F::BitwiseXor
            | F::ShiftLeft
            | F::ShiftRight => f64::NAN,
        }
    }
}

pub(super) fn truth(b: bool) -> f64 {
    f64::from(u8::from(b))
}

/// `x` where it is not negative, else `negative`.
fn below_zero(x: f64, negative: f64) -> f64 {
    if x < 0.0 { negative } else { x }
}

/// The larger; NaN if either is NaN, as ONNX and NumPy have it and `f64::max` does not.
fn max(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) }
}

/// The smaller; NaN if either is NaN.
fn min(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { x.min(y) }
}

/// `high` wins where the bounds cross.
fn clip(x: f64, low: f64, high: f64) -> f64 {
    min(max(x, low), high)
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)` without overflow.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p() + if x.is_nan() { x } else { 0.0 }
}

/// The error function to about 1e-15: a series of positive terms near 0, a continued fraction of
/// its complement further out.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() || a > 6.0 {
        return if a.is_nan() { x } else { x.signum() };
    }
    if a < 2.5 {
        // e^(-x²) Σ 2^n x^(2n+1) / (1·3·5···(2n+1))
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > f64::EPSILON * 0.1 * sum.abs() {
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        FRAC_2_SQRT_PI * (-x * x).exp() * sum
    } else {
        // erfc(a) = e^(-a²)/√π · 1/(a + (1/2)/(a + 1/(a + (3/2)/(a + …))))
        let fraction = (1..=60).rev().fold(a, |f, k| a + f64::from(k) / 2.0 / f);
        let complement = (-a * a).exp() * FRAC_2_SQRT_PI / 2.0 / fraction;
        x.signum() * (1.0 - complement)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Gate;
    use super::*;
    use ScalarFn as F;

    fn close(f: ScalarFn, args: &[f64], expected: f64) {
        let got = f.apply(args);
        assert!(
            (got - expected).abs() <= 1e-14 * expected.abs().max(1.0),
            "{f:?}{args:?} is {got}, not {expected}"
        );
    }

    #[test]
    fn erf_matches_tables() {
        // Abramowitz and Stegun, table 7.1, and mpmath beyond it.
        for (x, expected) in [
            (0.0, 0.0),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.6, 0.999_763_965_583_470_7),
            (3.0, 0.999_977_909_503_001_4),
            (5.0, 0.999_999_999_998_462_5),
            (f64::INFINITY, 1.0),
        ] {
            close(F::Erf, &[x], expected);
            close(F::Erf, &[-x], -expected);
        }
        assert!(F::Erf.apply(&[f64::NAN]).is_nan());
    }

    #[test]
    fn nan_is_kept() {
        for f in [F::Relu, F::Min, F::Max, F::Clip, F::Softplus, F::Sign, F::HardSwish, F::Mish] {
            assert!(f.apply(&[f64::NAN, 1.0, 2.0]).is_nan(), "{f:?}");
        }
        assert!(F::Max.apply(&[1.0, f64::NAN]).is_nan());
    }

    #[test]
    fn remainders_take_the_sign_of_their_side() {
        close(F::Mod, &[-4.0, 3.0], 2.0);
        close(F::Mod, &[4.0, -3.0], -2.0);
        close(F::Fmod, &[-4.0, 3.0], -1.0);
        close(F::Mod, &[6.0, -3.0], 0.0);
    }

    #[test]
    fn activations_at_known_points() {
        close(F::Softplus, &[1000.0], 1000.0);
        close(F::Softplus, &[0.0], std::f64::consts::LN_2);
        close(F::Sigmoid, &[-1000.0], 0.0);
        close(F::HardSigmoid { alpha: 0.5, beta: 0.5 }, &[0.5], 0.75);
        close(F::HardSwish, &[3.0], 3.0);
        close(F::Celu { alpha: 2.0 }, &[-2.0], 2.0 * (-1f64).exp_m1());
        close(F::Shrink { bias: 0.5, lambd: 1.0 }, &[-2.0], -1.5);
        close(F::Swish { alpha: 2.0 }, &[0.5], 0.5 / (1.0 + (-1f64).exp()));
        close(F::Gated(Gate::Silu), &[-1.0, 3.0], -3.0 / (1.0 + 1f64.exp()));
        close(F::Gelu, &[1.0], 0.841_344_746_068_542_9);
        close(F::GeluTanh, &[1.0], 0.841_191_990_608_276_9);
        close(F::Clip, &[5.0, 3.0, 1.0], 1.0);
        close(F::Round, &[2.5], 2.0);
        close(F::Round, &[-1.5], -2.0);
    }
}
