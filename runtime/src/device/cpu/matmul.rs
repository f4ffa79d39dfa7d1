//! Batched matrix products.

use super::gemm::Product;
use super::operand::{In, Out};
use super::strided::{Loops, broadcast, row_major};
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use crate::device::element::{Accumulator, Elem, with_elem};
use std::borrow::Cow;

/// `out[.., i, j] = Σ_k a[.., i, k] · b[.., k, j]`.
pub fn run(
    trans_a: bool,
    trans_b: bool,
    a: &In<'_>,
    b: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let batches = Batches::new(trans_a, trans_b, a, b, out)?;
    if out.dtype().is_float() {
        return widen::run(&batches, &[*a, *b], out);
    }
    if a.dtype() != out.dtype() || b.dtype() != out.dtype() {
        return Err(mismatch("operands differ in element type"));
    }
    with_elem!(out.dtype(), T => {
        let (a, b, out) = (a.elements::<T>(), b.elements::<T>(), out.elements::<T>());
        batches.for_each(|p| naive(&p, a, b, out));
    });
    Ok(())
}

/// `out[i, j] = Σ_r x[r.., i] · y[r.., j]`: one product of all rows.
pub fn sum_of_products(x: &In<'_>, y: &In<'_>, out: &mut Out<'_>) -> Result<(), KernelError> {
    let (sx, sy, sc) = (x.shape(), y.shape(), out.shape());
    let (Some((&m, rows)), Some((&n, others))) = (sx.split_last(), sy.split_last()) else {
        return Err(mismatch("fewer than two dimensions"));
    };
    if rows != others || sc != [m, n] {
        return Err(mismatch(&format!("{sx:?} · {sy:?} is not {sc:?}")));
    }
    let k = rows.iter().product::<u64>() as usize;
    let [m, n] = [m as usize, n as usize];
    let one = Product { m, k, n, a: (0, 1, m), b: (0, n, 1), c: (0, n, 1) };
    let loops = Loops::new(&[], [&[], &[], &[]]);
    widen::run(&Batches { one, loops }, &[*x, *y], out)
}

fn mismatch(why: &str) -> KernelError {
    KernelError::Operands { kernel: "matmul", why: why.to_string() }
}

/// The products of a batch.
struct Batches {
    one: Product,
    loops: Loops<3>,
}

impl Batches {
    fn new(
        trans_a: bool,
        trans_b: bool,
        a: &In<'_>,
        b: &In<'_>,
        out: &Out<'_>,
    ) -> Result<Self, KernelError> {
        let (sa, sb, sc) = (a.shape(), b.shape(), out.shape());
        let nb = sc.len().checked_sub(2).ok_or_else(|| mismatch("fewer than two dimensions"))?;
        let (Some(na), Some(nbb)) = (sa.len().checked_sub(2), sb.len().checked_sub(2)) else {
            return Err(mismatch("fewer than two dimensions"));
        };
        let (m, n) = (sc[nb], sc[nb + 1]);
        let k = sa[na + usize::from(!trans_a)];
        let fits = na <= nb
            && nbb <= nb
            && sa[na + usize::from(trans_a)] == m
            && sb[nbb + usize::from(trans_b)] == k
            && sb[nbb + usize::from(!trans_b)] == n;
        if !fits {
            return Err(mismatch(&format!("{sa:?} · {sb:?} is not {sc:?}")));
        }
        let [m, k, n] = [m as usize, k as usize, n as usize];
        let stored = |trans: bool, rows: usize, cols: usize| {
            if trans { (0, 1, rows) } else { (0, cols, 1) }
        };
        let mut one =
            Product { m, k, n, a: stored(trans_a, m, k), b: stored(trans_b, k, n), c: (0, n, 1) };
        // Strides over batches; the two last dimensions of each operand are one product.
        let over = |s: &[u64]| broadcast(s, sc.len())[..nb].to_vec();
        let mut batch = sc[..nb].to_vec();
        if !trans_a && sb[..nbb].iter().all(|&x| x == 1) && sa[..na] == sc[nb - na..nb] {
            // Rows of all batches against one right operand are one tall product.
            one.m = sa[..=na].iter().product::<u64>() as usize;
            batch[nb - na..].fill(1);
        }
        let loops = Loops::new(&batch, [&over(sa), &over(sb), &row_major(sc)[..nb]]);
        Ok(Self { one, loops })
    }

    fn for_each(&self, mut f: impl FnMut(Product)) {
        self.loops.for_each_row([0, 0, 0], |row| {
            for i in 0..row.len as isize {
                let at = |j: usize| (row.at[j] as isize + i * row.stride[j]) as usize;
                let mut p = self.one;
                (p.a.0, p.b.0, p.c.0) = (at(0), at(1), at(2));
                f(p);
            }
        });
    }
}

impl RealKernel for Batches {
    const NAME: &'static str = "matmul";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        self.for_each(|p| T::gemm(&p, &inputs[0], &inputs[1], out));
        Ok(())
    }
}

/// The product by its definition: for integers, which have no library.
fn naive<T: Elem>(p: &Product, a: &[T], b: &[T], c: &mut [T]) {
    for i in 0..p.m {
        for j in 0..p.n {
            let mut sum = T::default().widen();
            for k in 0..p.k {
                let x = a[p.a.0 + i * p.a.1 + k * p.a.2].widen();
                let y = b[p.b.0 + k * p.b.1 + j * p.b.2].widen();
                sum = sum.add(x.mul(y));
            }
            c[p.c.0 + i * p.c.1 + j * p.c.2] = T::narrow(sum);
        }
    }
}
