//! Transposed convolution: per group of channels, a matrix product of the weights with the input gives
//! columns, whose elements are added where a convolution would gather them, a block of input positions at
//! a time so that the workspace stays small.

use super::conv::Conv;
use super::gemm::Product;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use planc_ir::program::Window;
use std::borrow::Cow;

/// Transposed convolution of `[N, G · C, spatial..]` with `[G, C, M, window..]`.
pub fn run(
    window: &Window,
    x: &In<'_>,
    weight: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let [groups, c, m, extents @ ..] = weight.shape() else {
        let why = format!("the weight is {:?}", weight.shape());
        return Err(KernelError::Operands { kernel: "conv_transpose", why });
    };
    // The convolution that it is the transpose of.
    let flat = [&[groups * c, *m], extents].concat();
    let conv = Conv::new(window, out.shape(), &flat, x.shape())?;
    widen::run(&Transposed(conv), &[*x, *weight], out)
}

struct Transposed(Conv);

impl RealKernel for Transposed {
    const NAME: &'static str = "conv_transpose";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (x, weight) = (&inputs[0], &inputs[1]);
        out.fill(T::default());
        if x.is_empty() {
            return Ok(()); // its positions may be too many to loop over
        }
        let conv = &self.0;
        let positions = conv.sweep.positions();
        let rows = conv.inputs * conv.sweep.offsets();
        let area: usize = conv.sweep.input.iter().product();
        let block = conv.block(rows).max(1);
        let mut columns = vec![T::default(); rows * block];
        for begin in (0..positions).step_by(block) {
            let range = begin..positions.min(begin + block);
            let (n, runs) = (range.len(), conv.sweep.runs(&range));
            for (image, group) in
                (0..conv.batch).flat_map(|i| (0..conv.groups).map(move |g| (i, g)))
            {
                let (to, from) = conv.starts(image, group);
                let product = Product {
                    m: rows,
                    k: conv.outputs,
                    n,
                    a: (group * conv.outputs * rows, 1, rows),
                    b: (from + begin, positions, 1),
                    c: (0, n, 1),
                };
                T::gemm(&product, weight, x, &mut columns);
                for (row, column) in columns.chunks_exact(n).take(rows).enumerate() {
                    let out = &mut out[to + row / runs.len() * area..][..area];
                    for r in &runs[row % runs.len()] {
                        let r = r.shifted(begin);
                        r.for_each_mut(column, out, |y, c| *y = *y + c);
                    }
                }
            }
        }
        Ok(())
    }
}
