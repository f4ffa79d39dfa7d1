//! Softmax and its logarithm.

use super::operand::{In, Out, around};
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use std::borrow::Cow;

/// Softmax along `axis`.
pub fn run(axis: usize, log: bool, x: &In<'_>, out: &mut Out<'_>) -> Result<(), KernelError> {
    if x.shape() != out.shape() || axis >= x.shape().len() {
        let why = format!("{:?} along {axis} to {:?}", x.shape(), out.shape());
        return Err(KernelError::Operands { kernel: "softmax", why });
    }
    widen::run(&Softmax { around: around(x.shape(), axis), log }, &[*x], out)
}

struct Softmax {
    around: (usize, usize, usize),
    log: bool,
}

impl RealKernel for Softmax {
    const NAME: &'static str = "softmax";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (outer, n, inner) = self.around;
        let x = &inputs[0];
        for o in 0..outer {
            for i in 0..inner {
                let at = |j: usize| (o * n + j) * inner + i;
                // The largest element is subtracted, so that no power overflows.
                let max = (0..n)
                    .map(|j| x[at(j)].to_f64())
                    .fold(f64::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a });
                let shifted = |j: usize| T::from_f64(x[at(j)].to_f64() - max);
                let mut sum = 0.0;
                for j in 0..n {
                    let e = shifted(j).exp();
                    sum += e.to_f64();
                    out[at(j)] = e;
                }
                for j in 0..n {
                    out[at(j)] = if self.log {
                        T::from_f64(x[at(j)].to_f64() - max - sum.ln())
                    } else {
                        T::from_f64(out[at(j)].to_f64() / sum)
                    };
                }
            }
        }
        Ok(())
    }
}
