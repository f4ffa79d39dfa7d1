//! Matrix products of which one matrix is thin. The library would spend most of its time on packing
//! the large matrix, of which each element is used only a few times; these read it as it lies.

use super::gemm::Product;
use super::widen::Real;

/// The widest thin matrix.
const WIDTH: usize = 8;

/// Rows that are computed at once, so that a row of `b` is used several times while it is at hand.
const ROWS: usize = 4;

/// Computes the product if it is a thin one that lies well in memory; false if not.
pub fn run<T: Real>(p: &Product, a: &[T], b: &[T], c: &mut [T]) -> bool {
    let (rows_of_a, rows_of_b, rows_of_c) = (p.a.2 == 1, p.b.2 == 1, p.c.2 == 1);
    if p.m == 0 || p.n == 0 || p.k == 0 {
        return false;
    }
    if p.m <= ROWS && rows_of_b && rows_of_c {
        wide(p, a, b, c);
    } else if p.m <= ROWS && rows_of_a && p.b.1 == 1 {
        dots(p, a, b, c);
    } else if p.n <= WIDTH && rows_of_a && rows_of_b && rows_of_c {
        tall(p, a, b, c);
    } else {
        return false;
    }
    true
}

/// Few rows of `a`: rows of `b`, scaled, are added to the rows of `c`, four at a time.
fn wide<T: Real>(p: &Product, a: &[T], b: &[T], c: &mut [T]) {
    let at = |i: usize, l: usize| a[p.a.0 + i * p.a.1 + l * p.a.2];
    let row = |l: usize| &b[p.b.0 + l * p.b.1..][..p.n];
    let whole = p.k / 4 * 4;
    for i in 0..p.m {
        c[p.c.0 + i * p.c.1..][..p.n].fill(T::default());
    }
    for l in (0..whole).step_by(4) {
        let [b0, b1, b2, b3] = [row(l), row(l + 1), row(l + 2), row(l + 3)];
        for i in 0..p.m {
            let [x0, x1, x2, x3] = [at(i, l), at(i, l + 1), at(i, l + 2), at(i, l + 3)];
            let rows = b0.iter().zip(b1).zip(b2).zip(b3);
            let sums = c[p.c.0 + i * p.c.1..][..p.n].iter_mut();
            for (c, (((&b0, &b1), &b2), &b3)) in sums.zip(rows) {
                *c = *c + ((x0 * b0 + x1 * b1) + (x2 * b2 + x3 * b3));
            }
        }
    }
    for l in whole..p.k {
        for i in 0..p.m {
            let x = at(i, l);
            for (c, &b) in c[p.c.0 + i * p.c.1..][..p.n].iter_mut().zip(row(l)) {
                *c = *c + x * b;
            }
        }
    }
}

/// Few rows of `a`, and `b` stored by columns: inner products.
fn dots<T: Real>(p: &Product, a: &[T], b: &[T], c: &mut [T]) {
    for j in 0..p.n {
        let b = &b[p.b.0 + j * p.b.2..][..p.k];
        for i in 0..p.m {
            let a = &a[p.a.0 + i * p.a.1..][..p.k];
            let mut sums = [T::default(); WIDTH];
            let (a_chunks, b_chunks) = (a.chunks_exact(WIDTH), b.chunks_exact(WIDTH));
            let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
            for (s, (&x, &y)) in sums.iter_mut().zip(rest) {
                *s = x * y;
            }
            for (x, y) in a_chunks.zip(b_chunks) {
                for ((s, &x), &y) in sums.iter_mut().zip(x).zip(y) {
                    *s = *s + x * y;
                }
            }
            c[p.c.0 + i * p.c.1 + j * p.c.2] = sums.into_iter().fold(T::default(), |s, x| s + x);
        }
    }
}

/// Few columns of `b`: a few rows of `c` at a time, held in registers.
fn tall<T: Real>(p: &Product, a: &[T], b: &[T], c: &mut [T]) {
    // The columns made up to the full width, so that the loops have a fixed length.
    let mut padded = vec![[T::default(); WIDTH]; p.k];
    for (l, row) in padded.iter_mut().enumerate() {
        row[..p.n].copy_from_slice(&b[p.b.0 + l * p.b.1..][..p.n]);
    }
    for first in (0..p.m).step_by(ROWS) {
        // Past the last row, the last row again.
        let row = |i: usize| &a[p.a.0 + (first + i).min(p.m - 1) * p.a.1..][..p.k];
        let rows: [&[T]; ROWS] = std::array::from_fn(row);
        let mut sums = [[T::default(); WIDTH]; ROWS];
        for (l, b) in padded.iter().enumerate() {
            for (sums, row) in sums.iter_mut().zip(rows) {
                let x = row[l];
                for (s, &b) in sums.iter_mut().zip(b) {
                    *s = *s + x * b;
                }
            }
        }
        for (i, sums) in sums.iter().enumerate().take(p.m - first) {
            c[p.c.0 + (first + i) * p.c.1..][..p.n].copy_from_slice(&sums[..p.n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matrices of small integers, so that sums are exact in any order.
    fn check(m: usize, k: usize, n: usize, trans_b: bool) -> bool {
        let number = |i: usize| ((i * 37 + 11) % 23) as f32 - 11.0;
        let (a, b): (Vec<f32>, Vec<f32>) =
            ((0..m * k).map(number).collect(), (0..k * n).map(|i| number(i + 5)).collect());
        let stored_b = if trans_b { (0, 1, k) } else { (0, n, 1) };
        // `c` lies in the middle of something that must not change.
        let p = Product { m, k, n, a: (0, k, 1), b: stored_b, c: (3, n + 2, 1) };
        let mut c = vec![0.5f32; 3 + m * (n + 2)];
        if !run(&p, &a, &b, &mut c) {
            return false;
        }
        for i in 0..m {
            for j in 0..n {
                let want: f32 =
                    (0..k).map(|l| a[i * k + l] * b[l * stored_b.1 + j * stored_b.2]).sum();
                assert_eq!(
                    c[3 + i * (n + 2) + j].to_bits(),
                    (want + 0.0).to_bits(),
                    "{p:?} {i} {j}"
                );
            }
        }
        assert_eq!(c.iter().filter(|x| x.fract() != 0.0).count(), 3 + 2 * m);
        true
    }

    #[test]
    fn thin_products_are_exact() {
        for (m, k, n) in [(1, 1, 1), (1, 7, 100), (4, 33, 9), (3, 16, 5), (9, 20, 8), (31, 5, 3)] {
            assert!(check(m, k, n, false), "{m} {k} {n}");
        }
        for (m, k, n) in [(1, 1, 1), (1, 7, 100), (4, 33, 9), (3, 16, 5)] {
            assert!(check(m, k, n, true), "{m} {k} {n}");
        }
        assert!(!check(9, 9, 9, false) && !check(9, 9, 9, true) && !check(4, 0, 4, false));
    }
}
