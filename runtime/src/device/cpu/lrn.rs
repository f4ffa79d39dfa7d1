//! Local response normalisation across channels.

use super::operand::{In, Out, around};
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use std::borrow::Cow;

/// `x / (bias + alpha / size · Σ x²)^beta`, the sum over `size` channels around each.
pub fn run(
    size: u64,
    alpha: f32,
    beta: f32,
    bias: f32,
    x: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    if x.shape() != out.shape() || x.shape().len() < 2 || size == 0 {
        let why = format!("{:?} to {:?} by {size} channels", x.shape(), out.shape());
        return Err(KernelError::Operands { kernel: "lrn", why });
    }
    let kernel = Lrn {
        around: around(x.shape(), 1),
        size: size as usize,
        alpha: f64::from(alpha) / size as f64,
        beta: f64::from(beta),
        bias: f64::from(bias),
    };
    widen::run(&kernel, &[*x], out)
}

struct Lrn {
    around: (usize, usize, usize),
    size: usize,
    alpha: f64,
    beta: f64,
    bias: f64,
}

impl RealKernel for Lrn {
    const NAME: &'static str = "lrn";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (batch, channels, inner) = self.around;
        let x = &inputs[0];
        let before = (self.size - 1) / 2;
        for n in 0..batch {
            for c in 0..channels {
                let first = c.saturating_sub(before);
                let last = (c + self.size - before).min(channels);
                for i in 0..inner {
                    let at = |c: usize| (n * channels + c) * inner + i;
                    let sum: f64 =
                        (first..last).map(|c| x[at(c)].to_f64() * x[at(c)].to_f64()).sum();
                    let norm = (self.bias + self.alpha * sum).powf(self.beta);
                    out[at(c)] = T::from_f64(x[at(c)].to_f64() / norm);
                }
            }
        }
        Ok(())
    }
}
