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
    pub fn for_each_run(
        &self,
        offset: usize,
        range: std::ops::Range<usize>,
        mut f: impl FnMut(Run),
    ) {
        if range.is_empty() || self.input.contains(&0) {
            return;
        }
        let last = self.output.len() - 1;
        let line_len = self.output[last];
        let offset = split(offset, &self.window);
        for line in range.start / line_len..=(range.end - 1) / line_len {
            let outer = split(line, &self.output[..last]);
            let base = (0..last).try_fold(0, |at, d| {
                let i = self.source(d, outer[d], offset[d])?;
                Some(at * self.input[d] + i)
            });
            let Some(base) = base else { continue };
            // Positions of this line inside the range, then those whose element is inside the input.
            let begin = range.start.max(line * line_len) - line * line_len;
            let end = range.end.min((line + 1) * line_len) - line * line_len;
            let (stride, before) = (self.strides[last], self.before[last]);
            let shift = offset[last] * self.dilations[last];
            let lo = begin.max(before.saturating_sub(shift).div_ceil(stride));
            let hi = end.min((self.input[last] + before).saturating_sub(shift).div_ceil(stride));
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

    /// The input index along `d` under window index `k` at output index `o`, if inside.
    fn source(&self, d: usize, o: usize, k: usize) -> Option<usize> {
        let at = o * self.strides[d] + k * self.dilations[d];
        at.checked_sub(self.before[d]).filter(|&i| i < self.input[d])
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
