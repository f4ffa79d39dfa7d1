//! Layer normalisation and root-mean-square normalisation.

use super::lanes;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use std::borrow::Cow;

/// Normalises over the dimensions from `axis` on.
pub fn run(
    axis: usize,
    epsilon: f32,
    rms: bool,
    x: &In<'_>,
    scale: &In<'_>,
    bias: Option<&In<'_>>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let mismatch = |why| KernelError::Operands { kernel: "normalize", why };
    if x.shape() != out.shape() || axis > x.shape().len() {
        return Err(mismatch(format!("{:?} from {axis} to {:?}", x.shape(), out.shape())));
    }
    let normalized = &x.shape()[axis..];
    if let Some(t) = [Some(scale), bias].into_iter().flatten().find(|t| t.shape() != normalized) {
        return Err(mismatch(format!("{:?} does not fit {normalized:?}", t.shape())));
    }
    let count = planc_ir::graph::elements(normalized) as usize;
    let kernel = Normalize { epsilon: f64::from(epsilon), rms, count };
    let inputs: Vec<In<'_>> = [Some(x), Some(scale), bias].into_iter().flatten().copied().collect();
    widen::run(&kernel, &inputs, out)
}

struct Normalize {
    epsilon: f64,
    rms: bool,
    /// Elements that are normalised together.
    count: usize,
}

impl RealKernel for Normalize {
    const NAME: &'static str = "normalize";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        if self.count == 0 {
            return Ok(());
        }
        let (x, scale, bias) = (&inputs[0], &inputs[1], inputs.get(2));
        for (x, out) in x.chunks_exact(self.count).zip(out.chunks_exact_mut(self.count)) {
            self.row(x, scale, bias.map(|b| &**b), out);
        }
        Ok(())
    }
}

impl Normalize {
    /// Elements that are normalised together.
    fn row<T: Real>(&self, x: &[T], scale: &[T], bias: Option<&[T]>, out: &mut [T]) {
        let count = self.count as f64;
        let mean = if self.rms { 0.0 } else { lanes::sum(x, T::to_f64) / count };
        let square = |x: T| (x.to_f64() - mean) * (x.to_f64() - mean);
        let variance = lanes::sum(x, square) / count;
        let factor = 1.0 / (variance + self.epsilon).sqrt();
        let normal = |x: T, scale: T| (x.to_f64() - mean) * factor * scale.to_f64();
        let elements = out.iter_mut().zip(x).zip(scale);
        match bias {
            None => elements.for_each(|((y, &x), &s)| *y = T::from_f64(normal(x, s))),
            Some(bias) => elements.zip(bias).for_each(|(((y, &x), &s), &b)| {
                *y = T::from_f64(normal(x, s) + b.to_f64());
            }),
        }
    }
}
