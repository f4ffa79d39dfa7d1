//! Layer normalisation and root-mean-square normalisation.

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
        let count = self.count as f64;
        for (x, out) in x.chunks_exact(self.count).zip(out.chunks_exact_mut(self.count)) {
            let mean =
                if self.rms { 0.0 } else { x.iter().map(|x| x.to_f64()).sum::<f64>() / count };
            let square = |x: &T| (x.to_f64() - mean) * (x.to_f64() - mean);
            let variance = x.iter().map(square).sum::<f64>() / count;
            let factor = 1.0 / (variance + self.epsilon).sqrt();
            for (i, (y, x)) in out.iter_mut().zip(x).enumerate() {
                let normal = (x.to_f64() - mean) * factor;
                let bias = bias.map_or(0.0, |b| b[i].to_f64());
                *y = T::from_f64(normal * scale[i].to_f64() + bias);
            }
        }
        Ok(())
    }
}
