//! The gradient of pooling over spatial dimensions.

use super::operand::{In, Out};
use super::pool::counts;
use super::widen::{self, Real, RealKernel};
use super::window::{Run, Sweep};
use crate::KernelError;
use planc_ir::ops::pool_grad::PoolGrad;
use planc_ir::program::PoolKind;
use std::borrow::Cow;

/// The gradient of x; `inputs` are that of the result, and x for maxima.
pub fn run(op: &PoolGrad, inputs: &[In<'_>], out: &mut Out<'_>) -> Result<(), KernelError> {
    let mismatch = |why| KernelError::Operands { kernel: "pool_grad", why };
    let Some((g, x)) = inputs.split_first() else {
        return Err(mismatch("no operands".to_string()));
    };
    let ([n, c, output @ ..], [on, oc, input @ ..]) = (g.shape(), out.shape()) else {
        return Err(mismatch(format!("{:?} to {:?}", g.shape(), out.shape())));
    };
    let operands = usize::from(op.pool.kind == PoolKind::Max);
    if (n, c) != (on, oc) || x.len() != operands || x.iter().any(|x| x.shape() != out.shape()) {
        return Err(mismatch(format!("{:?} to {:?}", g.shape(), out.shape())));
    }
    let sweep = Sweep::new("pool_grad", input, &op.pool.extents, output, &op.pool.window)?;
    let counts = counts(op.pool.kind, &sweep, &op.pool.window);
    widen::run(&Gradient { sweep, counts }, inputs, out)
}

struct Gradient {
    sweep: Sweep,
    /// What each position's mean was divided by; none of maxima.
    counts: Option<Vec<u64>>,
}

impl RealKernel for Gradient {
    const NAME: &'static str = "pool_grad";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        out.fill(T::default());
        let positions = self.sweep.positions();
        let plane: usize = self.sweep.input.iter().product();
        if positions == 0 || plane == 0 {
            return Ok(());
        }
        let runs = self.sweep.runs(&(0..positions));
        for (i, dx) in out.chunks_exact_mut(plane).enumerate() {
            let g = &inputs[0][i * positions..][..positions];
            match &self.counts {
                Some(counts) => spread(&runs, counts, g, dx),
                None => choose(&runs, &inputs[1][i * plane..][..plane], g, dx),
            }
        }
        Ok(())
    }
}

/// Gives each element its share of the means that it was in.
fn spread<T: Real>(runs: &[Vec<Run>], counts: &[u64], g: &[T], dx: &mut [T]) {
    let of = |(g, &n): (&T, &u64)| T::from_f64(g.to_f64() / n as f64);
    let shares: Vec<T> = g.iter().zip(counts).map(of).collect();
    for r in runs.iter().flatten() {
        r.for_each_mut(&shares, dx, |dx, share| *dx = *dx + share);
    }
}

/// Gives the largest element of each window what its maximum got.
fn choose<T: Real>(runs: &[Vec<Run>], x: &[T], g: &[T], dx: &mut [T]) {
    let mut chosen: Vec<Option<usize>> = vec![None; g.len()];
    for r in runs.iter().flatten() {
        for (i, chosen) in chosen[r.output..][..r.len].iter_mut().enumerate() {
            let at = r.input + i * r.stride;
            // NaN, which is not even equal to itself, is chosen over all before it.
            let is_nan = x[at].partial_cmp(&x[at]).is_none();
            if is_nan || chosen.is_none_or(|best| x[at] > x[best]) {
                *chosen = Some(at);
            }
        }
    }
    for (g, at) in g.iter().zip(chosen) {
        if let Some(at) = at {
            dx[at] = dx[at] + *g;
        }
    }
}
