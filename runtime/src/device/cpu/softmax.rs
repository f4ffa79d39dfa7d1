//! Softmax and its logarithm.

use super::lanes;
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
        if inner == 1 {
            for (x, out) in x.chunks_exact(n.max(1)).zip(out.chunks_exact_mut(n.max(1))) {
                self.row(x, out);
            }
            return Ok(());
        }
        let (mut column, mut result) = (vec![T::default(); n], vec![T::default(); n]);
        for o in 0..outer {
            for i in 0..inner {
                let at = |j: usize| (o * n + j) * inner + i;
                column.iter_mut().enumerate().for_each(|(j, c)| *c = x[at(j)]);
                self.row(&column, &mut result);
                result.iter().enumerate().for_each(|(j, &r)| out[at(j)] = r);
            }
        }
        Ok(())
    }
}

impl Softmax {
    /// The elements that add up to 1.
    fn row<T: Real>(&self, x: &[T], out: &mut [T]) {
        // The largest element is subtracted, so that no power overflows. (NaN comes back by its power.)
        let lowest = T::from_f64(f64::NEG_INFINITY);
        let max = lanes::fold(
            x,
            lowest,
            |a, x| if x > a { x } else { a },
            |a, b| if b > a { b } else { a },
        );
        for (y, &x) in out.iter_mut().zip(x) {
            *y = (x - max).exp();
        }
        let sum = lanes::sum(out, T::to_f64);
        if self.log {
            // In this order, since a large `max` would swallow the logarithm.
            let (max, log) = (max.to_f64(), sum.ln());
            for (y, &x) in out.iter_mut().zip(x) {
                *y = T::from_f64(x.to_f64() - max - log);
            }
        } else {
            let factor = T::from_f64(1.0 / sum);
            for y in out.iter_mut() {
                *y = *y * factor;
            }
        }
    }
}
