//! Comparing tensors, and random inputs to compare on.

use planc_ir::plan::Named;
use planc_ir::{EvalError, Tensor};
use std::collections::BTreeMap;

/// Largest accepted difference: `|x - y| <= atol + rtol · |y|`.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Absolute.
    pub atol: f64,
    /// Relative to the expected value.
    pub rtol: f64,
}

/// How two tensors compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Largest absolute difference of finite elements.
    pub max_abs: f64,
    /// Largest difference relative to the expected value, over elements that are not tiny.
    pub max_rel: f64,
    /// Whether type and every element agree within the tolerance; NaN agrees with NaN, infinities
    /// with themselves.
    pub equal: bool,
}

/// Compares `found` with `expected`.
#[allow(clippy::float_cmp)] // an infinity differs from itself by NaN, but equals itself
pub fn compare(found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Comparison {
    let mut result = Comparison { max_abs: 0.0, max_rel: 0.0, equal: true };
    if found.ty() != expected.ty() {
        return Comparison { equal: false, ..result };
    }
    for i in 0..found.len() {
        let (x, y) = (found.f64_at(i), expected.f64_at(i));
        if x == y || (x.is_nan() && y.is_nan()) {
            continue;
        }
        let d = (x - y).abs();
        if !d.is_finite() {
            return Comparison { max_abs: f64::INFINITY, max_rel: f64::INFINITY, equal: false };
        }
        result.max_abs = result.max_abs.max(d);
        if y.abs() > tolerance.atol {
            result.max_rel = result.max_rel.max(d / y.abs());
        }
        result.equal &= d <= tolerance.atol + tolerance.rtol * y.abs();
    }
    result
}

/// Random tensors of these types: floats from -1 to 1, integers and bools 0 or 1 (valid as token,
/// mask and index).
///
/// # Errors
/// If one would be too large.
pub fn random_inputs(inputs: &[Named], seed: u64) -> Result<BTreeMap<String, Tensor>, EvalError> {
    let mut rng = fastrand::Rng::with_seed(seed);
    inputs
        .iter()
        .map(|input| {
            let t = if input.ty.dtype.is_float() {
                Tensor::from_f64(input.ty.clone(), |_| rng.f64() * 2.0 - 1.0)
            } else {
                Tensor::from_int(input.ty.clone(), |_| i128::from(rng.bool()))
            };
            Ok((input.name.clone(), t?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares() {
        let t = Tolerance { atol: 1e-3, rtol: 0.0 };
        let a = Tensor::vector(vec![1.0f32, f32::NAN, f32::INFINITY]);
        assert!(compare(&a, &a, t).equal);
        let b = Tensor::vector(vec![1.0005f32, f32::NAN, f32::INFINITY]);
        assert!(compare(&b, &a, t).equal);
        let c = Tensor::vector(vec![1.1f32, f32::NAN, f32::INFINITY]);
        assert!(!compare(&c, &a, t).equal);
        let d = Tensor::vector(vec![1.0f32, 0.0, f32::INFINITY]);
        assert!(!compare(&d, &a, t).equal);
        assert!(!compare(&Tensor::vector(vec![1.0f64]), &Tensor::vector(vec![1.0f32]), t).equal);
    }
}
