//! A window that moves over spatial dimensions: which input element each output position meets.

use crate::KernelError;
use planc_ir::program::Window;

/// Extents and steps of a moving window, one entry a spatial dimension.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Extents of the input.
    pub input: Vec<usize>,
    /// Extents of the output.
    pub output: Vec<usize>,
    /// Extents of the window.
    pub window: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    before: Vec<usize>,
}

/// Consecutive output positions and what they read.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// First output position.
    pub output: usize,
    /// The input element that it reads.
    pub input: usize,
    /// Distance of input elements.
    pub stride: usize,
    /// Number of positions.
    pub len: usize,
}

impl Run {
    /// Whether the two are one.
    fn is_followed_by(&self, next: &Self) -> bool {
        self.output + self.len == next.output
            && self.input + self.len * self.stride == next.input
            && self.stride == next.stride
    }

    /// The same, output positions numbered from `begin` on.
    pub const fn shifted(self, begin: usize) -> Self {
        Self { output: self.output - begin, ..self }
    }

    /// Calls `f(y, x)` for each output position of the run and the input element that it reads.
    #[inline]
    pub fn for_each<X: Copy, Y>(&self, x: &[X], out: &mut [Y], mut f: impl FnMut(&mut Y, X)) {
        let out = &mut out[self.output..][..self.len];
        let x = &x[self.input..];
        if self.stride == 1 {
            out.iter_mut().zip(x).for_each(|(y, &x)| f(y, x));
        } else {
            out.iter_mut().zip(x.iter().step_by(self.stride)).for_each(|(y, &x)| f(y, x));
        }
    }

    /// Calls `f(x, y)` for each input element of the run and the output position that reads it.
    #[inline]
    pub fn for_each_mut<X, Y: Copy>(&self, y: &[Y], x: &mut [X], mut f: impl FnMut(&mut X, Y)) {
        let y = &y[self.output..][..self.len];
        let x = &mut x[self.input..];
        if self.stride == 1 {
            x.iter_mut().zip(y).for_each(|(x, &y)| f(x, y));
        } else {
            x.iter_mut().step_by(self.stride).zip(y).for_each(|(x, &y)| f(x, y));
        }
    }
}

impl Sweep {
    /// A sweep of a window of these extents.
    pub fn new(
        kernel: &'static str,
        input: &[u64],
        extents: &[u64],
        output: &[u64],
        window: &Window,
    ) -> Result<Self, KernelError> {
        let rank = input.len();
        let fits = [extents.len(), output.len(), window.strides.len(), window.dilations.len()]
            .into_iter()
            .chain([window.before.len(), window.after.len()])
            .all(|n| n == rank);
        if !fits || rank == 0 || window.strides.contains(&0) {
            let why = format!("{rank} spatial dimensions against {window:?}");
            return Err(KernelError::Operands { kernel, why });
        }
        let small = |v: &[u64]| v.iter().map(|&x| x as usize).collect();
        Ok(Self {
            input: small(input),
            output: small(output),
            window: small(extents),
            strides: small(&window.strides),
            dilations: small(&window.dilations),
            before: small(&window.before),
        })
    }

    /// The same sweep over an input that includes its padding.
    pub fn over_padded(&self, window: &Window) -> Self {
        let padded = |d: usize| self.before[d] + self.input[d] + window.after[d] as usize;
        Self {
            input: (0..self.input.len()).map(padded).collect(),
            before: vec![0; self.before.len()],
            ..self.clone()
        }
    }

    /// Number of output positions.
    pub fn positions(&self) -> usize {
        self.output.iter().product()
    }

    /// Number of window elements.
    pub fn offsets(&self) -> usize {
        self.window.iter().product()
    }

    /// Whether every output position reads the input element of its own index and no other.
    pub fn is_pointwise(&self) -> bool {
        self.offsets() == 1
            && self.input == self.output
            && self.strides.iter().all(|&s| s == 1)
            && self.before.iter().all(|&b| b == 0)
    }

    /// Calls `f` for all output positions in `range` whose window element number `offset` lies
    /// inside the input.
    fn for_each_run(&self, offset: usize, range: std::ops::Range<usize>, mut f: impl FnMut(Run)) {
        if range.is_empty() || self.input.contains(&0) {
            return;
        }
        let last = self.output.len() - 1;
        let line_len = self.output[last];
        let offset = split(offset, &self.window);
        let (stride, before) = (self.strides[last], self.before[last]);
        let shift = offset[last] * self.dilations[last];
        // The positions of a line whose element is inside the input.
        let inside_from = before.saturating_sub(shift).div_ceil(stride);
        let inside_to = (self.input[last] + before).saturating_sub(shift).div_ceil(stride);
        let first = range.start / line_len;
        let mut outer = split(first, &self.output[..last]);
        for line in first..=(range.end - 1) / line_len {
            let base = (0..last).try_fold(0, |at, d| {
                let i = self.source(d, outer[d], offset[d])?;
                Some(at * self.input[d] + i)
            });
            advance(&mut outer, &self.output[..last]);
            let Some(base) = base else { continue };
            let lo = inside_from.max(range.start.saturating_sub(line * line_len));
            let hi = inside_to.min(line_len).min(range.end - line * line_len);
            if lo < hi {
                f(Run {
                    output: line * line_len + lo,
                    input: base * self.input[last] + lo * stride + shift - before,
                    stride,
                    len: hi - lo,
                });
            }
        }
    }

    /// For each window element, the runs of the output positions in `range`.
    pub fn runs(&self, range: &std::ops::Range<usize>) -> Vec<Vec<Run>> {
        let of = |offset| {
            let mut runs: Vec<Run> = Vec::new();
            self.for_each_run(offset, range.clone(), |r| match runs.last_mut() {
                Some(last) if last.is_followed_by(&r) => last.len += r.len,
                _ => runs.push(r),
            });
            runs
        };
        (0..self.offsets()).map(of).collect()
    }

    /// The input index along `d` under window index `k` at output index `o`, if inside.
    fn source(&self, d: usize, o: usize, k: usize) -> Option<usize> {
        let at = o * self.strides[d] + k * self.dilations[d];
        at.checked_sub(self.before[d]).filter(|&i| i < self.input[d])
    }
}

/// To the coordinates of the next index, row-major.
fn advance(coord: &mut [usize], shape: &[usize]) {
    for (c, &n) in coord.iter_mut().zip(shape).rev() {
        *c += 1;
        if *c < n {
            return;
        }
        *c = 0;
    }
}

/// The coordinates of row-major index `i`.
fn split(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut coord = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        coord[d] = i % shape[d];
        i /= shape[d];
    }
    coord
}
