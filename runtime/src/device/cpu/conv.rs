//! Convolution: per group of channels, a matrix product of the weights with columns of gathered
//! input, a block of output positions at a time so that the workspace stays small. One input channel
//! per group (a depthwise convolution) is computed directly.

use super::gemm::Product;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernel};
use super::window::{Run, Sweep};
use crate::KernelError;
use planc_ir::program::Window;
use std::borrow::Cow;

/// A block of columns takes at most about this many elements, so that it stays in the cache…
const BLOCK_ELEMENTS: usize = 1 << 15;

/// … unless these are fewer columns than this: a product of few is mostly spent on reading weights.
const FEW_COLUMNS: usize = 64;

/// Convolution of `[N, C, spatial..]` with `[M, C / groups, window..]`. The number of groups that a
/// rank holds follows from its channels.
pub fn run(
    window: &Window,
    x: &In<'_>,
    weight: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let kernel = Conv::new(window, x.shape(), weight.shape(), out.shape())?;
    widen::run(&kernel, &[*x, *weight], out)
}

/// Extents of a convolution.
pub(super) struct Conv {
    pub batch: usize,
    pub groups: usize,
    /// Input channels of a group.
    pub inputs: usize,
    /// Output channels of a group.
    pub outputs: usize,
    pub sweep: Sweep,
}

impl RealKernel for Conv {
    const NAME: &'static str = "conv";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let w_len = self.outputs * self.inputs * self.sweep.offsets();
        if self.inputs == 1 {
            self.depthwise(x, weight, out);
            return Ok(());
        }
        for group in 0..self.groups {
            let weight = &weight[group * w_len..][..w_len];
            if self.sweep.is_pointwise() {
                self.pointwise(group, x, weight, out);
            } else {
                self.by_columns(group, x, weight, out);
            }
        }
        Ok(())
    }
}

impl Conv {
    /// The convolution of operands of these extents.
    pub fn new(
        window: &Window,
        x: &[u64],
        weight: &[u64],
        out: &[u64],
    ) -> Result<Self, KernelError> {
        let mismatch = |why: &str| {
            let why = format!("{why}: {x:?} * {weight:?} to {out:?}");
            KernelError::Operands { kernel: "conv", why }
        };
        let ([n, c, input @ ..], [m, per_group, extents @ ..], [on, om, output @ ..]) =
            (x, weight, out)
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
        Ok(Self {
            batch: *n as usize,
            groups: groups as usize,
            inputs: *per_group as usize,
            outputs: m.checked_div(groups).unwrap_or(0) as usize,
            sweep,
        })
    }

    /// How many columns of `k` elements a block has.
    pub fn block(&self, k: usize) -> usize {
        (BLOCK_ELEMENTS / k.max(1)).max(FEW_COLUMNS).min(self.sweep.positions())
    }

    /// Where an image's channels of a group begin in the input, and in the output.
    pub fn starts(&self, image: usize, group: usize) -> (usize, usize) {
        let i = image * self.groups + group;
        let channel: usize = self.sweep.input.iter().product();
        (i * self.inputs * channel, i * self.outputs * self.sweep.positions())
    }

    /// One group, whose input is the columns.
    fn pointwise<T: Real>(&self, group: usize, x: &[T], weight: &[T], out: &mut [T]) {
        let (positions, k) = (self.sweep.positions(), self.inputs);
        for image in 0..self.batch {
            let (from, to) = self.starts(image, group);
            let product = Product {
                m: self.outputs,
                k,
                n: positions,
                a: (0, k, 1),
                b: (from, positions, 1),
                c: (to, positions, 1),
            };
            T::gemm(&product, weight, x, out);
        }
    }

    /// One group, a block of columns at a time: some positions of an image, or all of some images
    /// where the positions of one are few.
    fn by_columns<T: Real>(&self, group: usize, x: &[T], weight: &[T], out: &mut [T]) {
        let positions = self.sweep.positions();
        let k = self.inputs * self.sweep.offsets();
        if positions == 0 {
            return;
        }
        let block = self.block(k);
        let together = if block < positions { 1 } else { FEW_COLUMNS.div_ceil(positions) };
        let (mut columns, mut results) = (Vec::new(), Vec::new());
        for begin in (0..positions).step_by(block) {
            let range = begin..positions.min(begin + block);
            let runs = self.sweep.runs(&range);
            for first in (0..self.batch).step_by(together) {
                let images = first..self.batch.min(first + together);
                let n = images.len() * range.len();
                columns.clear();
                columns.resize(k * n, T::default());
                for (i, image) in images.clone().enumerate() {
                    let x = &x[self.starts(image, group).0..];
                    self.fill_columns(&runs, x, &mut columns, n, i * range.len(), begin);
                }
                let product =
                    Product { m: self.outputs, k, n, a: (0, k, 1), b: (0, n, 1), c: (0, n, 1) };
                if images.len() == 1 {
                    let c = (self.starts(first, group).1 + begin, positions, 1);
                    T::gemm(&Product { c, ..product }, weight, &columns, out);
                    continue;
                }
                results.resize(self.outputs * n, T::default());
                T::gemm(&product, weight, &columns, &mut results);
                for (channel, row) in results.chunks_exact(n).enumerate() {
                    for (image, piece) in images.clone().zip(row.chunks_exact(positions)) {
                        let to = self.starts(image, group).1 + channel * positions;
                        out[to..to + positions].copy_from_slice(piece);
                    }
                }
            }
        }
    }

    /// Writes the input elements of an image under the window, a row for each channel and window
    /// element, from column `at` on, which is output position `begin`.
    pub fn fill_columns<T: Real>(
        &self,
        runs: &[Vec<Run>],
        x: &[T],
        columns: &mut [T],
        n: usize,
        at: usize,
        begin: usize,
    ) {
        let channel: usize = self.sweep.input.iter().product();
        for (row, column) in columns.chunks_exact_mut(n).enumerate() {
            let x = &x[row / runs.len() * channel..];
            for r in &runs[row % runs.len()] {
                let r = Run { output: r.output - begin + at, ..*r };
                r.for_each(x, column, |y, x| *y = x);
            }
        }
    }

    /// One input channel a group.
    fn depthwise<T: Real>(&self, x: &[T], weight: &[T], out: &mut [T]) {
        let (positions, offsets) = (self.sweep.positions(), self.sweep.offsets());
        let channel: usize = self.sweep.input.iter().product();
        let runs = self.sweep.runs(&(0..positions));
        out.fill(T::default());
        for (i, out) in out.chunks_exact_mut(positions.max(1)).enumerate() {
            let x = &x[i / self.outputs * channel..];
            let weight = &weight[i % (self.groups * self.outputs) * offsets..][..offsets];
            for (runs, &w) in runs.iter().zip(weight) {
                for r in runs {
                    r.for_each(x, out, |y, x| *y = *y + w * x);
                }
            }
        }
    }
}
