//! Reductions: of dimensions of one buffer, and of the contributions of several ranks.

use super::lanes;
use super::operand::{In, Out};
use super::strided::{Loops, row_major};
use crate::KernelError;
use crate::device::bytes::{view, view_mut};
use crate::device::element::{Accumulator, Elem, with_combine, with_elem};
use planc_ir::DType;
use planc_ir::sharding::ReduceKind;

/// Reduces the dimensions `axes`; whether the output keeps them as 1 makes no difference in memory.
pub fn run(
    kind: ReduceKind,
    axes: &[usize],
    x: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let kept: Vec<u64> =
        (0..x.shape().len()).map(|d| if axes.contains(&d) { 1 } else { x.shape()[d] }).collect();
    let elements = planc_ir::graph::elements(&kept);
    if x.dtype() != out.dtype() || elements != out.local.ty.elements() {
        let why = format!("{} reduced over {axes:?} to {}", x.local.ty, out.local.ty);
        return Err(KernelError::Operands { kernel: "reduce", why });
    }
    // A reduced dimension does not move in the output.
    let moves: Vec<isize> = row_major(&kept)
        .into_iter()
        .enumerate()
        .map(|(d, s)| if axes.contains(&d) { 0 } else { s })
        .collect();
    let loops = Loops::new(x.shape(), [&row_major(x.shape()), &moves]);
    with_elem!(out.dtype(), T => {
        with_combine!(kind, <T as Elem>::Acc, combine => {
            let neutral = <T as Elem>::Acc::neutral(kind);
            reduce(&loops, x.elements::<T>(), out.elements::<T>(), neutral, combine);
        });
    });
    Ok(())
}

fn reduce<T: Elem>(
    loops: &Loops<2>,
    x: &[T],
    out: &mut [T],
    neutral: T::Acc,
    combine: impl Fn(T::Acc, T::Acc) -> T::Acc,
) {
    let mut acc = vec![neutral; out.len()];
    loops.for_each_row([0, 0], |row| {
        let x = &x[row.at[0]..row.at[0] + row.len];
        if row.stride[1] == 0 {
            let one = &mut acc[row.at[1]];
            let row = lanes::fold(x, neutral, |a, x| combine(a, x.widen()), &combine);
            *one = combine(*one, row);
        } else {
            for (a, &x) in acc[row.at[1]..row.at[1] + row.len].iter_mut().zip(x) {
                *a = combine(*a, x.widen());
            }
        }
    });
    for (y, a) in out.iter_mut().zip(acc) {
        *y = T::narrow(a);
    }
}

/// Combines the contributions of several ranks element by element, in their order.
pub fn combine(dtype: DType, kind: ReduceKind, contributions: &[&[u8]], out: &mut [u8]) {
    with_elem!(dtype, T => {
        with_combine!(kind, <T as Elem>::Acc, f => {
            let parts: Vec<&[T]> = contributions.iter().map(|c| view(c)).collect();
            for (i, y) in view_mut::<T>(out).iter_mut().enumerate() {
                let neutral = <T as Elem>::Acc::neutral(kind);
                *y = T::narrow(parts.iter().fold(neutral, |a, p| f(a, p[i].widen())));
            }
        });
    });
}

/// Fills with what changes nothing when combined.
pub fn fill_neutral(dtype: DType, kind: ReduceKind, out: &mut [u8]) {
    with_elem!(dtype, T => {
        view_mut::<T>(out).fill(T::narrow(<T as Elem>::Acc::neutral(kind)));
    });
}
