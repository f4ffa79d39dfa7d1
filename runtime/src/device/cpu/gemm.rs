//! The matrix product of the library `matrixmultiply`, behind checked slices.
#![allow(unsafe_code)]

/// `c[m, n] = a[m, k] · b[k, n]`: extents, and for each matrix where it starts and the distances of
/// its rows and of its columns.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of `a` and `c`.
    pub m: usize,
    /// Contracted extent.
    pub k: usize,
    /// Columns of `b` and `c`.
    pub n: usize,
    /// Start, row stride and column stride of `a`.
    pub a: (usize, usize, usize),
    /// The same of `b`.
    pub b: (usize, usize, usize),
    /// The same of `c`.
    pub c: (usize, usize, usize),
}

/// Checks that a matrix lies inside its slice.
fn check(len: usize, rows: usize, cols: usize, (start, rs, cs): (usize, usize, usize)) {
    let last = start + rows.saturating_sub(1) * rs + cols.saturating_sub(1) * cs;
    assert!(rows == 0 || cols == 0 || last < len, "matrix exceeds its buffer");
}

macro_rules! gemm {
    ($name:ident, $t:ty, $call:path) => {
        /// The product in this type.
        ///
        /// # Panics
        /// If a matrix does not lie inside its slice.
        pub fn $name(p: &Product, a: &[$t], b: &[$t], c: &mut [$t]) {
            check(a.len(), p.m, p.k, p.a);
            check(b.len(), p.k, p.n, p.b);
            check(c.len(), p.m, p.n, p.c);
            if p.m == 0 || p.n == 0 {
                return;
            }
            // An empty matrix is not read, but its pointer must still lie inside its slice.
            let at = |s: &[$t], start: usize| s[start.min(s.len())..].as_ptr();
            // SAFETY: all elements that the product reads and writes lie inside the slices, as
            // checked above; `c` is borrowed exclusively, so it overlaps neither `a` nor `b`.
            unsafe {
                $call(
                    p.m,
                    p.k,
                    p.n,
                    1.0,
                    at(a, p.a.0),
                    p.a.1 as isize,
                    p.a.2 as isize,
                    at(b, p.b.0),
                    p.b.1 as isize,
                    p.b.2 as isize,
                    0.0,
                    c[p.c.0..].as_mut_ptr(),
                    p.c.1 as isize,
                    p.c.2 as isize,
                );
            }
        }
    };
}

gemm!(sgemm, f32, matrixmultiply::sgemm);
gemm!(dgemm, f64, matrixmultiply::dgemm);
