//! Elementary functions of f32 that a compiler can vectorise: arithmetic and selections only, no calls.
//!
//! Each is within a few units in the last place of the true value, and treats infinities and NaN as
//! the library's function of the name does. Coefficients are as published: those of exp and tanh in
//! Cephes, those of erf by N. Juffa.
#![allow(clippy::excessive_precision)]

/// 1.5 · 2^23: adding it leaves a small number's nearest integer in the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// A float's exponent of 0, in place.
const EXPONENT_ZERO: i32 = 127 << 23;

/// e^x.
#[inline]
pub fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite, which the scaling below arrives at. NaN stays.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    // x = n ln 2 + r; ln 2 in two parts, of which the first times n is exact.
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = x - n * 0.693_359_375 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_15e-4;
    for coefficient in [
        1.398_199_950_7e-3,
        8.333_451_907_3e-3,
        4.166_579_589_4e-2,
        0.166_666_654_59,
        0.500_000_012_01,
    ] {
        p = p * r + coefficient;
    }
    let power = p * r * r + r + 1.0;
    // Times 2^n, in two factors, since 2^n itself may be out of range.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let half = n >> 1;
    let two_to = |n: i32| f32::from_bits((n << 23).wrapping_add(EXPONENT_ZERO) as u32);
    power * two_to(half) * two_to(n.wrapping_sub(half))
}

/// 1 / (1 + e^-x).
#[inline]
pub fn sigmoid(x: f32) -> f32 {
    // The power of what is not positive does not overflow.
    let small = exp(-x.abs());
    (if x < 0.0 { small } else { 1.0 }) / (1.0 + small)
}

/// 1 / (1 + e^-x) and its derivative, without the cancellation where the former is close to 1.
#[inline]
fn sigmoid_and_slope(x: f32) -> (f32, f32) {
    let small = exp(-x.abs());
    let share = 1.0 / (1.0 + small);
    (if x < 0.0 { small * share } else { share }, small * share * share)
}

/// Hyperbolic tangent.
#[inline]
pub fn tanh(x: f32) -> f32 {
    let square = x * x;
    let mut p = -5.704_988_727_45e-3;
    for coefficient in
        [2.063_908_879_54e-2, -5.373_971_555_31e-2, 0.133_314_422_036, -0.333_332_819_422]
    {
        p = p * square + coefficient;
    }
    let near = (p * square * x + x).copysign(x);
    let far = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

/// Where the error function's series ends and its complement's begins.
const ERF_NEAR: f32 = 0.927_734_375;

/// erf(x) for |x| up to [`ERF_NEAR`].
#[inline]
fn erf_near(x: f32) -> f32 {
    let square = x * x;
    let mut p = -5.967_617_03e-4;
    for coefficient in
        [4.991_194_23e-3, -2.676_813_49e-2, 0.112_819_925, -0.376_125_336, 0.128_379_166]
    {
        p = p * square + coefficient;
    }
    p * x + x
}

/// 1 - erf(|x|) for |x| from [`ERF_NEAR`] on.
#[inline]
fn erfc_far(x: f32) -> f32 {
    let t = x.abs();
    let mut p = -1.728_534_7e-5;
    for coefficient in [
        3.831_971_26e-4,
        -3.883_964_38e-3,
        2.425_462_19e-2,
        -0.106_777_877,
        -0.634_846_687,
        -0.128_717_512,
    ] {
        p = p * t + coefficient;
    }
    exp(p * t - t)
}

/// The error function.
#[inline]
pub fn erf(x: f32) -> f32 {
    let far = (1.0 - erfc_far(x)).copysign(x);
    if x.abs() <= ERF_NEAR { erf_near(x) } else { far }
}

/// Twice the normal distribution's cumulative function.
#[inline]
fn twice_normal(x: f32) -> f32 {
    let y = x * std::f32::consts::FRAC_1_SQRT_2;
    // 1 + erf(y), without the cancellation where erf(y) is close to -1.
    let tail = erfc_far(y);
    let far = if y < 0.0 { tail } else { 2.0 - tail };
    if y.abs() <= ERF_NEAR { 1.0 + erf_near(y) } else { far }
}

/// x times the normal distribution's cumulative function.
#[inline]
pub fn gelu(x: f32) -> f32 {
    0.5 * x * twice_normal(x)
}

/// The derivative of [`gelu`].
#[inline]
pub fn gelu_slope(x: f32) -> f32 {
    let density = 0.5
        * std::f32::consts::FRAC_2_SQRT_PI
        * std::f32::consts::FRAC_1_SQRT_2
        * exp(-0.5 * x * x);
    0.5 * twice_normal(x) + x * density
}

/// 2 √(2 / π): twice the factor of [`gelu_tanh`]'s argument.
const TWICE_U: f32 = 2.0 * std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;

/// The cube's factor in it.
const CUBIC: f32 = 0.044_715;

/// The approximation of [`gelu`] with tanh.
#[inline]
pub fn gelu_tanh(x: f32) -> f32 {
    // (1 + tanh(u)) / 2 is sigmoid(2 u).
    x * sigmoid(TWICE_U * (x + CUBIC * x * x * x))
}

/// The derivative of [`gelu_tanh`].
#[inline]
pub fn gelu_tanh_slope(x: f32) -> f32 {
    let (gate, slope) = sigmoid_and_slope(TWICE_U * (x + CUBIC * x * x * x));
    gate + x * slope * TWICE_U * (1.0 + 3.0 * CUBIC * x * x)
}

/// The derivative of x sigmoid(alpha x).
#[inline]
pub fn swish_slope(alpha: f32, x: f32) -> f32 {
    let (gate, slope) = sigmoid_and_slope(alpha * x);
    gate + alpha * x * slope
}

#[cfg(test)]
#[allow(clippy::float_cmp)] // a test may
mod tests {
    use super::*;
    use planc_ir::scalar::{ScalarFn, Slope};

    /// The largest error in units of the last place (of the smallest normal number, below it).
    fn worst_ulps(f: fn(f32) -> f32, exact: ScalarFn) -> (f64, f32) {
        let points = (0..=400_000).map(|i| (i - 200_000) as f32 * 5.3e-4);
        let small = (-126..0).flat_map(|e| [2f32.powi(e), -(2f32.powi(e)) * 1.3]);
        points
            .chain(small)
            .map(|x| {
                let want = exact.apply(&[f64::from(x)]);
                let ulp = f64::from((want.abs() as f32).max(f32::MIN_POSITIVE)) * 2f64.powi(-23);
                let found = f64::from(f(x));
                let same = found == want || (found.is_infinite() && want > f64::from(f32::MAX));
                (if same { 0.0 } else { (found - want).abs() / ulp }, x)
            })
            .fold((0.0, 0.0), |worst, one| if one.0 > worst.0 { one } else { worst })
    }

    #[test]
    fn errors_are_a_few_units_in_the_last_place() {
        for (f, exact, most) in [
            (exp as fn(f32) -> f32, ScalarFn::Exp, 2.0),
            (sigmoid, ScalarFn::Sigmoid, 4.0),
            (tanh, ScalarFn::Tanh, 3.0),
            (erf, ScalarFn::Erf, 3.0),
        ] {
            let (worst, at) = worst_ulps(f, exact);
            assert!(worst <= most, "{exact:?} is {worst} units off at {at}");
        }
    }

    /// As exact as f32 is near 1, and better where the result is small.
    #[test]
    fn gelu_is_exact_to_rounding() {
        for (f, exact) in
            [(gelu as fn(f32) -> f32, ScalarFn::Gelu), (gelu_tanh, ScalarFn::GeluTanh)]
        {
            for i in -200_000..=200_000 {
                let x = i as f32 * 1e-4;
                let want = exact.apply(&[f64::from(x)]);
                let error = (f64::from(f(x)) - want).abs();
                let most = 1e-6 * want.abs() + 3e-8;
                assert!(error <= most, "{exact:?}({x}) is {}, not {want}", f(x));
            }
        }
    }

    #[test]
    fn slopes_are_exact_to_rounding() {
        for (f, exact) in [
            (gelu_slope as fn(f32) -> f32, Slope::Gelu),
            (gelu_tanh_slope, Slope::GeluTanh),
            (|x| swish_slope(1.5, x), Slope::Swish { alpha: 1.5 }),
        ] {
            for i in -200_000..=200_000 {
                let x = i as f32 * 1e-4;
                let want = exact.at(f64::from(x));
                let error = (f64::from(f(x)) - want).abs();
                assert!(error <= 4e-7, "{exact:?} at {x} is {}, not {want}", f(x));
            }
        }
    }

    #[test]
    fn limits_are_those_of_the_library() {
        for (f, below, above) in [
            (exp as fn(f32) -> f32, 0.0, f32::INFINITY),
            (sigmoid, 0.0, 1.0),
            (tanh, -1.0, 1.0),
            (erf, -1.0, 1.0),
        ] {
            assert_eq!(f(f32::NEG_INFINITY).to_bits(), f32::to_bits(below));
            assert_eq!(f(f32::INFINITY).to_bits(), f32::to_bits(above));
            assert!(f(f32::NAN).is_nan());
        }
        assert!(gelu(f32::NAN).is_nan() && gelu_tanh(f32::NAN).is_nan());
        assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
        assert_eq!(tanh(-0.0).to_bits(), (-0f32).to_bits());
    }
}
