//! The gradient of layer and root-mean-square normalisation.

use super::lanes;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernels};
use crate::KernelError;
use planc_ir::ops::normalize_grad::NormalizeGrad;
use std::borrow::Cow;

/// The gradients of x, of the scale, and of the bias if there is one.
pub fn run(
    op: &NormalizeGrad,
    g: &In<'_>,
    x: &In<'_>,
    scale: &In<'_>,
    outs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let shape = x.shape();
    let fits = outs.len() == if op.bias { 3 } else { 2 }
        && g.shape() == shape
        && outs[0].shape() == shape
        && shape.get(op.norm.axis..) == Some(scale.shape())
        && outs[1..].iter().all(|out| out.shape() == scale.shape());
    if !fits {
        let why = format!("{shape:?} and {:?} from {}", scale.shape(), op.norm.axis);
        return Err(KernelError::Operands { kernel: "normalize_grad", why });
    }
    let count = planc_ir::graph::elements(scale.shape()) as usize;
    let kernel = Gradient { epsilon: f64::from(op.norm.epsilon), rms: op.norm.rms, count };
    widen::run_all(&kernel, &[*g, *x, *scale], outs)
}

struct Gradient {
    epsilon: f64,
    rms: bool,
    /// Elements that are normalised together.
    count: usize,
}

impl RealKernels for Gradient {
    const NAME: &'static str = "normalize_grad";

    fn compute<T: Real>(
        &self,
        inputs: &[Cow<'_, [T]>],
        outs: &mut [&mut [T]],
    ) -> Result<(), KernelError> {
        let (g, x, scale) = (&inputs[0], &inputs[1], &inputs[2]);
        let Some((dx, of_parameters)) = outs.split_first_mut() else { return Ok(()) };
        let mut sums = [vec![0.0; self.count], vec![0.0; self.count]];
        let count = self.count.max(1);
        let rows = g.chunks_exact(count).zip(x.chunks_exact(count));
        for ((g, x), dx) in rows.zip(dx.chunks_exact_mut(count)) {
            self.row(g, x, scale, dx, &mut sums);
        }
        for (out, sums) in of_parameters.iter_mut().zip(&sums) {
            out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = T::from_f64(sum));
        }
        Ok(())
    }
}

impl Gradient {
    /// One row: its dx, and what it adds to the gradients of scale and bias.
    fn row<T: Real>(
        &self,
        g: &[T],
        x: &[T],
        scale: &[T],
        dx: &mut [T],
        [dscale, dbias]: &mut [Vec<f64>; 2],
    ) {
        let count = self.count as f64;
        let mean = if self.rms { 0.0 } else { lanes::sum(x, T::to_f64) / count };
        let square = |x: T| (x.to_f64() - mean) * (x.to_f64() - mean);
        let r = 1.0 / (lanes::sum(x, square) / count + self.epsilon).sqrt();
        let normal = |x: T| (x.to_f64() - mean) * r;
        let (mut level, mut along) = (0.0, 0.0);
        for (((g, x), s), (dscale, dbias)) in
            g.iter().zip(x).zip(scale).zip(dscale.iter_mut().zip(dbias))
        {
            let (g, x) = (g.to_f64(), normal(*x));
            let h = g * s.to_f64();
            level += h;
            along += h * x;
            *dscale += g * x;
            *dbias += g;
        }
        let (level, along) = (if self.rms { 0.0 } else { level / count }, along / count);
        for (((g, x), s), dx) in g.iter().zip(x).zip(scale).zip(dx) {
            let h = g.to_f64() * s.to_f64();
            *dx = T::from_f64(r * (h - level - normal(*x) * along));
        }
    }
}
