//! The gradient of a convolution by its weight: per group of channels, a matrix product of the result's
//! gradient with columns of gathered input, a block of positions at a time so that the workspace stays
//! small. Blocks are added up in f64.

use super::conv::Conv;
use super::gemm::Product;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use planc_ir::program::Window;
use std::borrow::Cow;

/// The gradient of the weight `[M, C / groups, window..]`, from that of the result and the input.
pub fn run(window: &Window, g: &In<'_>, x: &In<'_>, out: &mut Out<'_>) -> Result<(), KernelError> {
    let conv = Conv::new(window, x.shape(), out.shape(), g.shape())?;
    widen::run(&Gradient(conv), &[*g, *x], out)
}

struct Gradient(Conv);

impl RealKernel for Gradient {
    const NAME: &'static str = "conv_weight_grad";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (g, x) = (&inputs[0], &inputs[1]);
        if g.is_empty() {
            out.fill(T::default());
            return Ok(()); // its positions may be too many to loop over
        }
        let conv = &self.0;
        let positions = conv.sweep.positions();
        let rows = conv.inputs * conv.sweep.offsets();
        let block = conv.block(rows).max(1);
        let mut sums = vec![0.0; out.len()];
        let (mut columns, mut added) = (Vec::new(), vec![T::default(); conv.outputs * rows]);
        for begin in (0..positions).step_by(block) {
            let range = begin..positions.min(begin + block);
            let (n, runs) = (range.len(), conv.sweep.runs(&range));
            for (image, group) in
                (0..conv.batch).flat_map(|i| (0..conv.groups).map(move |g| (i, g)))
            {
                let (from, to) = conv.starts(image, group);
                columns.clear();
                columns.resize(rows * n, T::default());
                conv.fill_columns(&runs, &x[from..], &mut columns, n, 0, begin);
                let product = Product {
                    m: conv.outputs,
                    k: n,
                    n: rows,
                    a: (to + begin, positions, 1),
                    b: (0, 1, n),
                    c: (0, rows, 1),
                };
                T::gemm(&product, g, &columns, &mut added);
                let sums = &mut sums[group * added.len()..][..added.len()];
                sums.iter_mut().zip(&added).for_each(|(sum, a)| *sum += a.to_f64());
            }
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::from_f64(sum));
        Ok(())
    }
}
