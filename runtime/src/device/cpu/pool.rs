//! Pooling over spatial dimensions.

use super::operand::{In, Out};
use super::window::Sweep;
use crate::KernelError;
use crate::device::element::{Accumulator, Elem, with_elem};
use planc_ir::program::{PoolKind, Window};
use planc_ir::sharding::ReduceKind;

/// Pooling of `[N, C, spatial..]`.
pub fn run(
    kind: PoolKind,
    extents: &[u64],
    window: &Window,
    x: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let mismatch = |why| KernelError::Operands { kernel: "pool", why };
    let ([n, c, input @ ..], [on, oc, output @ ..]) = (x.shape(), out.shape()) else {
        return Err(mismatch(format!("{:?} to {:?}", x.shape(), out.shape())));
    };
    if (n, c) != (on, oc) || x.dtype() != out.dtype() {
        return Err(mismatch(format!("{} to {}", x.local.ty, out.local.ty)));
    }
    let sweep = Sweep::new("pool", input, extents, output, window)?;
    let counts = counts(kind, &sweep, window);
    if counts.is_some() && !x.dtype().is_float() {
        return Err(KernelError::Type { kernel: "average pool", dtype: x.dtype() });
    }
    with_elem!(out.dtype(), T => {
        let (x, out) = (x.elements::<T>(), out.elements::<T>());
        match &counts {
            None => {
                let lowest = T::narrow(<T as Elem>::Acc::neutral(ReduceKind::Max));
                // NaN, which is not even equal to itself, stays.
                let larger = |a: T, x: T| if a >= x || a.partial_cmp(&a).is_none() { a } else { x };
                pool(&sweep, x, out, lowest, larger, |_, a| a);
            }
            Some(counts) => {
                let zero = <T as Elem>::Acc::neutral(ReduceKind::Sum);
                let mean = |p: usize, a: <T as Elem>::Acc| {
                    T::from_f64(Accumulator::to_f64(a) / counts[p] as f64)
                };
                pool(&sweep, x, out, zero, |a, x: T| a.add(x.widen()), mean);
            }
        }
    });
    Ok(())
}

/// What the sum at each output position is divided by; nothing for maxima.
pub(super) fn counts(kind: PoolKind, sweep: &Sweep, window: &Window) -> Option<Vec<u64>> {
    let counted = match kind {
        PoolKind::Max => return None,
        PoolKind::Average => sweep.clone(),
        PoolKind::AverageWithPadding => sweep.over_padded(window),
    };
    let mut counts = vec![0u64; sweep.positions()];
    for r in counted.runs(&(0..sweep.positions())).iter().flatten() {
        counts[r.output..r.output + r.len].iter_mut().for_each(|c| *c += 1);
    }
    Some(counts)
}

/// Combines the elements under the window at each position, beginning with `neutral`; `finish(p, a)` is
/// the result at position `p`.
fn pool<T: Elem, A: Copy>(
    sweep: &Sweep,
    x: &[T],
    out: &mut [T],
    neutral: A,
    combine: impl Fn(A, T) -> A,
    finish: impl Fn(usize, A) -> T,
) {
    let positions = sweep.positions();
    if positions == 0 {
        return;
    }
    let plane: usize = sweep.input.iter().product();
    let runs = sweep.runs(&(0..positions));
    let mut acc = vec![neutral; positions];
    for (i, out) in out.chunks_exact_mut(positions).enumerate() {
        let x = &x[i * plane..(i + 1) * plane];
        acc.fill(neutral);
        for r in runs.iter().flatten() {
            r.for_each(x, &mut acc, |a, x| *a = combine(*a, x));
        }
        for (p, (y, &a)) in out.iter_mut().zip(&acc).enumerate() {
            *y = finish(p, a);
        }
    }
}
