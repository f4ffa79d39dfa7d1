//! Loops over several arrays of one logical shape, each with its own strides.

/// Dimensions merged as far as all operands allow, so that loops are few and the innermost is long.
#[derive(Debug)]
pub struct Loops<const N: usize> {
    extents: Vec<usize>,
    /// For each dimension, each operand's stride in elements.
    strides: Vec<[isize; N]>,
}

/// The innermost loop of [`Loops::for_each_row`].
#[derive(Clone, Copy, Debug)]
pub struct Row<const N: usize> {
    /// Each operand's first element.
    pub at: [usize; N],
    /// Each operand's stride.
    pub stride: [isize; N],
    /// Number of elements.
    pub len: usize,
}

impl<const N: usize> Loops<N> {
    /// Loops over `extents`; `strides[i]` are operand `i`'s.
    pub fn new(extents: &[u64], strides: [&[isize]; N]) -> Self {
        let mut merged = Self { extents: Vec::new(), strides: Vec::new() };
        for (d, &n) in extents.iter().enumerate() {
            let n = n as usize;
            let own = strides.map(|s| s[d]);
            if n == 1 {
                continue;
            }
            match (merged.extents.last_mut(), merged.strides.last_mut()) {
                (Some(extent), Some(outer)) if (0..N).all(|i| outer[i] == own[i] * n as isize) => {
                    *extent *= n;
                    *outer = own;
                }
                _ => {
                    merged.extents.push(n);
                    merged.strides.push(own);
                }
            }
        }
        if merged.extents.is_empty() {
            merged.extents.push(1);
            merged.strides.push([0; N]);
        }
        merged
    }

    /// One loop of `len` elements.
    pub fn flat(len: usize, stride: [isize; N]) -> Self {
        Self { extents: vec![len], strides: vec![stride] }
    }

    /// Calls `f` for each innermost row, in row-major order. Operand `i` starts at `start[i]`.
    pub fn for_each_row(&self, start: [usize; N], mut f: impl FnMut(Row<N>)) {
        if self.extents.contains(&0) {
            return;
        }
        let inner = self.extents.len() - 1;
        let (len, stride) = (self.extents[inner], self.strides[inner]);
        let mut at = start.map(|s| s as isize);
        let mut coord = vec![0; inner];
        loop {
            f(Row { at: at.map(|a| a as usize), stride, len });
            let mut d = inner;
            loop {
                if d == 0 {
                    return;
                }
                d -= 1;
                coord[d] += 1;
                let wraps = coord[d] == self.extents[d];
                let steps = if wraps { 1 - self.extents[d] as isize } else { 1 };
                for (a, s) in at.iter_mut().zip(self.strides[d]) {
                    *a += s * steps;
                }
                if !wraps {
                    break;
                }
                coord[d] = 0;
            }
        }
    }
}

/// Row-major strides.
pub fn row_major(shape: &[u64]) -> Vec<isize> {
    planc_ir::tensor::strides(shape).into_iter().map(|s| s as isize).collect()
}

/// Row-major strides of `shape` as it broadcasts to a shape of `rank` dimensions: 0 along dimensions
/// that it lacks or in which it has extent 1.
pub fn broadcast(shape: &[u64], rank: usize) -> Vec<isize> {
    let own = row_major(shape).into_iter().zip(shape).map(|(s, &n)| if n == 1 { 0 } else { s });
    std::iter::repeat_n(0, rank - shape.len()).chain(own).collect()
}

/// Side of the squares in which two dimensions are exchanged: few enough rows of both arrays that all
/// stay in the nearest cache.
const TILE: usize = 16;

/// Writes `dst`, row-major of shape `shape`, from elements of `src` that lie `strides` apart.
pub fn gather<T: Copy>(src: &[T], start: usize, strides: &[isize], shape: &[u64], dst: &mut [T]) {
    let own = row_major(shape);
    let mut loops = Loops::new(shape, [&own, strides]);
    let inner = loops.extents.len() - 1;
    // Where rows of `src` are columns of `dst`, both are walked in squares.
    let exchanged = (0..inner).find(|&d| loops.strides[d][1] == 1);
    if let Some(d) = exchanged.filter(|_| loops.strides[inner][1] != 0) {
        let (height, [down, _]) = (loops.extents.remove(d), loops.strides.remove(d));
        loops.for_each_row([0, start], |row| {
            for top in (0..height).step_by(TILE) {
                for left in (0..row.len).step_by(TILE) {
                    for i in top..height.min(top + TILE) {
                        let line = &mut dst[row.at[0] + i * down as usize..][..row.len];
                        let from = (row.at[1] + i) as isize;
                        for (j, x) in line.iter_mut().enumerate().skip(left).take(TILE) {
                            *x = src[(from + j as isize * row.stride[1]) as usize];
                        }
                    }
                }
            }
        });
        return;
    }
    loops.for_each_row([0, start], |row| {
        let out = &mut dst[row.at[0]..row.at[0] + row.len];
        let from = row.at[1];
        match row.stride[1] {
            1 => out.copy_from_slice(&src[from..from + row.len]),
            0 => out.fill(src[from]),
            s => {
                for (i, x) in out.iter_mut().enumerate() {
                    *x = src[(from as isize + i as isize * s) as usize];
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_dimensions_become_one_loop() {
        let strides = row_major(&[2, 3, 4]);
        let mut rows = Vec::new();
        Loops::new(&[2, 3, 4], [&strides, &[0, 4, 1]])
            .for_each_row([0, 0], |r| rows.push((r.at, r.len)));
        assert_eq!(rows, [([0, 0], 12), ([12, 0], 12)]);
    }

    #[test]
    fn exchanged_dimensions_of_any_extents() {
        for (rows, columns) in [(2, 3), (16, 16), (17, 40), (33, 1)] {
            let src: Vec<usize> = (0..3 * rows * columns).collect();
            let mut dst = vec![0; src.len()];
            // [3, rows, columns] to [columns, 3, rows]
            let strides = [1, (rows * columns) as isize, columns as isize];
            let shape = [columns as u64, 3, rows as u64];
            gather(&src, 0, &strides, &shape, &mut dst);
            for (i, &x) in dst.iter().enumerate() {
                let (c, b, r) = (i / (3 * rows), i / rows % 3, i % rows);
                assert_eq!(x, (b * rows + r) * columns + c);
            }
        }
    }

    #[test]
    fn negative_strides_run_backwards() {
        let src: Vec<u8> = (0..6).collect();
        let mut dst = [0; 6];
        gather(&src, 5, &[-3, -1], &[2, 3], &mut dst);
        assert_eq!(dst, [5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn zero_extents_visit_nothing() {
        let mut dst: [u8; 0] = [];
        gather(&[], 0, &[0, 1], &[3, 0], &mut dst);
    }
}
