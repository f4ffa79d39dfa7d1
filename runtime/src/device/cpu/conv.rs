//! Convolution: per group of channels, a matrix product of the weights with columns of gathered
//! input, a block of output positions at a time so that the workspace stays small. One input channel
//! per group (a depthwise convolution) is computed directly.

use super::gemm::Product;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernel};
use super::window::Sweep;
use crate::KernelError;
use planc_ir::program::Window;
use std::borrow::Cow;

/// Columns take at most about this many elements.
const BLOCK_ELEMENTS: usize = 1 << 20;

/// Convolution of `[N, C, spatial..]` with `[M, C / groups, window..]`. The number of groups that a
/// rank holds follows from its channels.
pub fn run(
    window: &Window,
    x: &In<'_>,
    weight: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let mismatch = |why: &str| {
        let why = format!("{why}: {:?} * {:?} to {:?}", x.shape(), weight.shape(), out.shape());
        KernelError::Operands { kernel: "conv", why }
    };
    let ([n, c, input @ ..], [m, per_group, extents @ ..], [on, om, output @ ..]) =
        (x.shape(), weight.shape(), out.shape())
    else {
        return Err(mismatch("fewer than two dimensions"));
    };
    let sweep = Sweep::new("conv", input, extents, output, window)?;
    // Without input channels the sum over them is empty, whatever the groups.
    let groups = c.checked_div(*per_group).unwrap_or(1);
    if n != on
        || m != om
        || groups * per_group != *c
        || (*m > 0 && (groups == 0 || m % groups != 0))
    {
        return Err(mismatch("channels do not fit"));
    }
    let kernel = Conv {
        batch: *n as usize,
        groups: groups as usize,
        inputs: *per_group as usize,
        outputs: m.checked_div(groups).unwrap_or(0) as usize,
        sweep,
    };
    widen::run(&kernel, &[*x, *weight], out)
}

struct Conv {
    batch: usize,
    groups: usize,
    /// Input channels of a group.
    inputs: usize,
    /// Output channels of a group.
    outputs: usize,
    sweep: Sweep,
}

impl RealKernel for Conv {
    const NAME: &'static str = "conv";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let x_len = self.inputs * self.sweep.input.iter().product::<usize>();
        let w_len = self.outputs * self.inputs * self.sweep.offsets();
        let out_len = self.outputs * self.sweep.positions();
        let mut columns = Vec::new();
        for i in 0..self.batch * self.groups {
            let x = &x[i * x_len..(i + 1) * x_len];
            let weight = &weight[i % self.groups * w_len..][..w_len];
            let out = &mut out[i * out_len..(i + 1) * out_len];
            if self.inputs == 1 {
                self.depthwise(x, weight, out);
            } else {
                self.by_columns(x, weight, out, &mut columns);
            }
        }
        Ok(())
    }
}

impl Conv {
    /// One image, one group.
    fn by_columns<T: Real>(&self, x: &[T], weight: &[T], out: &mut [T], columns: &mut Vec<T>) {
        let (positions, offsets) = (self.sweep.positions(), self.sweep.offsets());
        let k = self.inputs * offsets;
        let product = |n: usize, at: usize, columns: usize| Product {
            m: self.outputs,
            k,
            n,
            a: (0, k, 1),
            b: (0, columns, 1),
            c: (at, positions, 1),
        };
        if self.sweep.is_pointwise() {
            T::gemm(&product(positions, 0, positions), weight, x, out);
            return;
        }
        let block = (BLOCK_ELEMENTS / k.max(1)).max(16).min(positions.max(1));
        let channel: usize = self.sweep.input.iter().product();
        for begin in (0..positions).step_by(block) {
            let range = begin..positions.min(begin + block);
            let n = range.len();
            columns.clear();
            columns.resize(k * n, T::default());
            for (row, column) in columns.chunks_exact_mut(n).enumerate() {
                let x = &x[row / offsets * channel..];
                self.sweep.for_each_run(row % offsets, range.clone(), |r| {
                    let to = &mut column[r.output - begin..][..r.len];
                    if r.stride == 1 {
                        to.copy_from_slice(&x[r.input..r.input + r.len]);
                    } else {
                        for (j, y) in to.iter_mut().enumerate() {
                            *y = x[r.input + j * r.stride];
                        }
                    }
                });
            }
            T::gemm(&product(n, begin, n), weight, columns, out);
        }
    }

    /// One image, one input channel.
    fn depthwise<T: Real>(&self, x: &[T], weight: &[T], out: &mut [T]) {
        let (positions, offsets) = (self.sweep.positions(), self.sweep.offsets());
        out.fill(T::default());
        for (channel, out) in out.chunks_exact_mut(positions.max(1)).enumerate() {
            for offset in 0..offsets {
                let w = weight[channel * offsets + offset];
                self.sweep.for_each_run(offset, 0..positions, |r| {
                    for (j, y) in out[r.output..r.output + r.len].iter_mut().enumerate() {
                        *y = *y + w * x[r.input + j * r.stride];
                    }
                });
            }
        }
    }
}
