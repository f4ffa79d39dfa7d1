//! Discrete Fourier transforms.
//!
//! - **ONNX**: DFT (since 17; the axis is an input since 20).
//! - **Semantics**: `out[k] = Σ_n in[n] · exp(∓2πi · kn / length)` along a dimension, which is cut or
//!   padded with zeros to the length; the inverse has the other sign and divides by the length. The
//!   last dimension holds real and imaginary part, or the real part alone. One side of a real
//!   transform has the first `length / 2 + 1` elements; its inverse gives real numbers.
//! - **Split**: the dimension and the last one stay whole, the others are parallel. Linear.

use super::decode::{Decoder, DecoderEntry};
use super::lanes::Lanes;
use super::pad::Pad;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors, range};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::program::kernel::PadMode;
use crate::scalar::ScalarFn;
use crate::sharding::FactorRule;
use crate::tensor::check_size;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// A Fourier transform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dft {
    /// The dimension.
    pub axis: usize,
    /// How many elements are transformed.
    pub length: u64,
    /// The inverse transform.
    pub inverse: bool,
    /// The transform has, or the inverse takes, one side only.
    pub onesided: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("DFT", 17, |d| {
        let axis = d.int_or("axis", 1)?;
        decode(d, axis)
    }),
    DecoderEntry::onnx("DFT", 20, |d| {
        let axis = d.optional_ints(2, "it is the axis")?.unwrap_or_else(|| vec![-2]);
        match axis[..] {
            [axis] => decode(d, axis),
            _ => Err(OpError::Invalid("takes one axis".into())),
        }
    }),
];

/// Multiplications of one transform at most, so that no length keeps the importer busy for ever.
const MAX_PRODUCTS: u64 = 1 << 34;

fn decode(d: &mut Decoder<'_>, axis: i64) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let axis = ty.axis(axis)?;
    let (inverse, onesided) = (d.int_or("inverse", 0)? != 0, d.int_or("onesided", 0)? != 0);
    let n = ty.shape[axis];
    let length = match d.optional_ints(1, "it decides the output's shape")?.as_deref() {
        None if inverse && onesided => 2 * n.saturating_sub(1).min(u64::MAX / 2),
        None => n,
        Some(&[length]) => u64::try_from(length)
            .map_err(|_| OpError::Invalid(format!("transforms {length} elements")))?,
        Some(_) => return Err(OpError::Invalid("takes one length".into())),
    };
    Ok(vec![d.push(Dft { axis, length, inverse, onesided }, &[x])?])
}

type Complex = (f64, f64);

fn multiply(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// The transform of every `step`-th of some numbers: of halves as long as the number is even, and
/// then by the sum itself. `roots` are the roots of unity of all of them.
fn transform(x: &[Complex], step: usize, roots: &[Complex]) -> Vec<Complex> {
    let n = x.len().div_ceil(step);
    if !n.is_multiple_of(2) {
        let term = |k: usize, i: usize| multiply(x[i * step], roots[k * i % n * step]);
        let sum = |k| (0..n).map(|i| term(k, i)).fold((0.0, 0.0), |s, t| (s.0 + t.0, s.1 + t.1));
        return (0..n).map(sum).collect();
    }
    let even = transform(x, 2 * step, roots);
    let odd = transform(&x[step..], 2 * step, roots);
    let at = |k: usize| {
        let (e, o) = (even[k % (n / 2)], multiply(odd[k % (n / 2)], roots[k * step]));
        (e.0 + o.0, e.1 + o.1)
    };
    (0..n).map(at).collect()
}

impl Dft {
    fn shape(&self, from: &[u64]) -> Vec<u64> {
        let mut shape = from.to_vec();
        shape[self.axis] = match (self.onesided, self.inverse) {
            (true, false) => self.length / 2 + 1,
            _ => self.length,
        };
        if let Some(last) = shape.last_mut() {
            *last = if self.onesided && self.inverse { 1 } else { 2 };
        }
        shape
    }

    /// What each frequency of one side counts in its inverse: those that stand for their mirror image, too,
    /// twice; along one dimension of a tensor of this rank.
    fn weights(&self, v: &mut Vjp<'_>, dtype: DType, rank: usize) -> Result<ValueId, OpError> {
        let k = range::along(v, 0, self.length / 2 + 1, self.axis, rank)?;
        let mut number = |n: u64| v.scalar(DType::I64, n as f64);
        let [zero, two, length] = [number(0)?, number(2)?, number(self.length)?];
        let first = v.map(ScalarFn::Equal, &[k, zero])?;
        let twice = v.map(ScalarFn::Mul, &[k, two])?;
        let middle = v.map(ScalarFn::Equal, &[twice, length])?;
        let own_image = v.map(ScalarFn::Or, &[first, middle])?;
        let once = v.scalar(dtype, 1.0 / self.length as f64)?;
        let twice = v.scalar(dtype, 2.0 / self.length as f64)?;
        v.map(ScalarFn::Where, &[own_image, once, twice])
    }

    /// The numbers that are transformed: of one side, the other one is its mirror image.
    fn whole(&self, mut x: Vec<Complex>) -> Vec<Complex> {
        let n = self.length as usize;
        if self.onesided && self.inverse {
            x.resize(n / 2 + 1, (0.0, 0.0));
            let mirrored: Vec<Complex> =
                (n / 2 + 1..n).map(|k| (x[n - k].0, -x[n - k].1)).collect();
            // What is its own mirror image is real.
            x[0].1 = 0.0;
            if n.is_multiple_of(2) {
                x[n / 2].1 = 0.0;
            }
            x.extend(mirrored);
        }
        x.resize(n, (0.0, 0.0));
        x
    }
}

impl OpDef for Dft {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let ty = &inputs[0];
        if !ty.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: ty.dtype });
        }
        ty.dim(self.axis)?;
        if self.axis + 1 == ty.rank() || !matches!(ty.shape.last(), Some(1 | 2)) {
            let why = format!("transforms axis {} of {ty}, which is not complex", self.axis);
            return Err(OpError::Invalid(why));
        }
        if self.onesided && !self.inverse && ty.shape.last() == Some(&2) {
            return Err(OpError::Invalid("has one side of complex numbers".into()));
        }
        if self.length == 0 {
            return Err(OpError::Invalid("transforms nothing".into()));
        }
        Ok(vec![TensorType::new(ty.dtype, self.shape(&ty.shape))])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = factors::along(inputs, outputs, &[self.axis, inputs[0].rank() - 1]);
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 5.0 * (self.length.max(2) as f64).log2())
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let shape = self.shape(x.shape());
        let ty = TensorType::new(x.dtype(), shape.clone());
        let mut y = vec![0.0; check_size(&ty)?];
        let odd_part = self.length >> self.length.trailing_zeros();
        let products = self.length.saturating_mul(odd_part);
        if y.is_empty() || products > MAX_PRODUCTS {
            let (iterations, limit) = (products, MAX_PRODUCTS);
            return if y.is_empty() {
                Ok(vec![Tensor::zeros(ty)?])
            } else {
                Err(EvalError::TooLong { iterations, limit })
            };
        }
        let n = self.length as usize;
        let sign = if self.inverse { 1.0 } else { -1.0 };
        let root = |k: usize| (sign * TAU * k as f64 / n as f64).sin_cos();
        let roots: Vec<Complex> = (0..n).map(|k| (root(k).1, root(k).0)).collect();
        let scale = if self.inverse { 1.0 / n as f64 } else { 1.0 };
        let (from, to) = (Lanes::new(x.shape(), self.axis), Lanes::new(&shape, self.axis));
        let (parts, out_parts) = (x.shape()[x.shape().len() - 1] as usize, shape[shape.len() - 1]);
        // Each lane of real parts has its imaginary parts right behind.
        let firsts = |lanes: Lanes, parts: usize| lanes.starts().step_by(parts);
        for (start, out) in firsts(from, parts).zip(firsts(to, out_parts as usize)) {
            let number = |i: usize| {
                let at = from.at(start, i);
                (x.f64_at(at), if parts == 2 { x.f64_at(at + 1) } else { 0.0 })
            };
            let signal = (0..from.n.min(n)).map(number).collect();
            let transformed = transform(&self.whole(signal), 1, &roots);
            for (k, &(real, imaginary)) in transformed.iter().take(to.n).enumerate() {
                let at = to.at(out, k);
                y[at] = real * scale;
                if out_parts == 2 {
                    y[at + 1] = imaginary * scale;
                }
            }
        }
        Ok(vec![super::lanes::floats(x.ty(), &shape, &y)?])
    }

    /// The transform is a symmetric matrix, so its adjoint is the conjugate one: the transform the other way. What was
    /// padded is cut, and what was cut has no gradient.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x) = (v.gradient()?, v.ty(v.inputs[0]));
        let n = x.shape[self.axis];
        let mut dx = if self.inverse && self.onesided {
            let forward = Self { inverse: false, ..self.clone() };
            let sums = v.push(forward, &[g])?;
            let weights = self.weights(v, x.dtype, x.rank())?;
            v.map(ScalarFn::Mul, &[sums, weights])?
        } else {
            let back = Self { inverse: !self.inverse, onesided: false, ..self.clone() };
            let length = self.length as f64;
            let sums = v.push(back, &[g])?;
            v.scale(sums, if self.inverse { 1.0 / length } else { length })?
        };
        let found = v.shape(dx)[self.axis];
        dx = v.slice(dx, self.axis, 0, n.min(found))?;
        if n > found {
            let (before, mut after) = (vec![0; x.rank()], vec![0; x.rank()]);
            after[self.axis] = (n - found) as i64;
            dx = v.push(Pad { before, after, mode: PadMode::Constant, value: 0.0 }, &[dx])?;
        }
        let parts = x.rank() - 1;
        Ok(vec![Some(v.slice(dx, parts, 0, x.shape[parts])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dft(x: &Tensor, length: u64, inverse: bool, onesided: bool) -> Tensor {
        Dft { axis: 0, length, inverse, onesided }.eval(&[x]).unwrap().remove(0)
    }

    #[test]
    fn the_inverse_gives_back_what_was_transformed() {
        for n in [1u32, 2, 3, 4, 6, 7, 12] {
            let numbers: Vec<f64> = (0..n).map(|i| f64::from(i * i % 5) - 1.5).collect();
            let x = Tensor::new([u64::from(n), 1], numbers.clone()).unwrap();
            let n = u64::from(n);
            let whole = dft(&dft(&x, n, false, false), n, true, false).to_f64s();
            let side = dft(&dft(&x, n, false, true), n, true, true).to_f64s();
            for (i, x) in numbers.iter().enumerate() {
                assert!((whole[2 * i] - x).abs() < 1e-12, "{n}: {whole:?}");
                assert!((side[i] - x).abs() < 1e-12, "{n}: {side:?}");
            }
        }
    }

    #[test]
    fn one_wave_has_one_frequency() {
        let x: Vec<f64> = (0..6).map(|i| (TAU * f64::from(i) / 6.0).sin()).collect();
        let y = dft(&Tensor::new([6, 1], x).unwrap(), 6, false, true);
        assert_eq!(y.shape(), [4, 2]);
        for (i, y) in y.to_f64s().into_iter().enumerate() {
            assert!((y - if i == 3 { -3.0 } else { 0.0 }).abs() < 1e-12, "{i}: {y}");
        }
    }
}
