//! Layer normalisation and root-mean-square normalisation.

use super::operand::{In, Out};
use super::strided::broadcast;
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
    for t in [Some(scale), bias].into_iter().flatten() {
        let fits = t.shape().len() <= normalized.len()
            && t.shape().iter().rev().zip(normalized.iter().rev()).all(|(&a, &n)| a == n || a == 1);
        if !fits {
            return Err(mismatch(format!("{:?} does not fit {normalized:?}", t.shape())));
        }
    }
    let index = |t: &In<'_>| -> Vec<usize> {
        let strides = broadcast(t.shape(), normalized.len());
        (0..planc_ir::graph::elements(normalized) as usize)
            .map(|i| {
                let c = planc_ir::tensor::unravel(i, normalized);
                c.iter().zip(&strides).map(|(c, &s)| c * s as usize).sum()
            })
            .collect()
    };
    let kernel =
        Normalize { epsilon: f64::from(epsilon), rms, scale: index(scale), bias: bias.map(index) };
    let inputs: Vec<In<'_>> = [Some(x), Some(scale), bias].into_iter().flatten().copied().collect();
    widen::run(&kernel, &inputs, out)
}

struct Normalize {
    epsilon: f64,
    rms: bool,
    /// For each normalised position, the element of the scale that belongs to it.
    scale: Vec<usize>,
    /// The same of the bias.
    bias: Option<Vec<usize>>,
}

impl RealKernel for Normalize {
    const NAME: &'static str = "normalize";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let n = self.scale.len();
        if n == 0 {
            return Ok(());
        }
        for (x, out) in inputs[0].chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            let count = n as f64;
            let mean =
                if self.rms { 0.0 } else { x.iter().map(|x| x.to_f64()).sum::<f64>() / count };
            let square = |x: &T| (x.to_f64() - mean) * (x.to_f64() - mean);
            let variance = x.iter().map(square).sum::<f64>() / count;
            let factor = 1.0 / (variance + self.epsilon).sqrt();
            for (i, (y, x)) in out.iter_mut().zip(x).enumerate() {
                let normal = (x.to_f64() - mean) * factor;
                let bias = self.bias.as_ref().map_or(0.0, |b| inputs[2][b[i]].to_f64());
                *y = T::from_f64(normal * inputs[1][self.scale[i]].to_f64() + bias);
            }
        }
        Ok(())
    }
}
