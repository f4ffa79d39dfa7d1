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
    let average = kind != PoolKind::Max;
    if average && !x.dtype().is_float() {
        return Err(KernelError::Type { kernel: "average pool", dtype: x.dtype() });
    }
    // What each output position's sum is divided by.
    let counts = average.then(|| {
        let counted =
            if kind == PoolKind::Average { sweep.clone() } else { sweep.over_padded(window) };
        let mut counts = vec![0u64; sweep.positions()];
        for offset in 0..sweep.offsets() {
            counted.for_each_run(offset, 0..sweep.positions(), |r| {
                counts[r.output..r.output + r.len].iter_mut().for_each(|c| *c += 1);
            });
        }
        counts
    });
    with_elem!(out.dtype(), T => pool(&sweep, counts.as_deref(), x.elements(), out.elements::<T>()));
    Ok(())
}

/// How two accumulators combine.
type Combine<A> = fn(A, A) -> A;

/// The mean by `counts`, or the largest without them.
fn pool<T: Elem>(sweep: &Sweep, counts: Option<&[u64]>, x: &[T], out: &mut [T]) {
    let positions = sweep.positions();
    if positions == 0 {
        return;
    }
    let plane: usize = sweep.input.iter().product();
    let (kind, combine): (_, Combine<T::Acc>) = match counts {
        Some(_) => (ReduceKind::Sum, Accumulator::add),
        None => (ReduceKind::Max, Accumulator::max),
    };
    for (i, out) in out.chunks_exact_mut(positions).enumerate() {
        let x = &x[i * plane..(i + 1) * plane];
        let mut acc = vec![T::Acc::neutral(kind); positions];
        for offset in 0..sweep.offsets() {
            sweep.for_each_run(offset, 0..positions, |r| {
                for (j, a) in acc[r.output..r.output + r.len].iter_mut().enumerate() {
                    *a = combine(*a, x[r.input + j * r.stride].widen());
                }
            });
        }
        for (p, (y, a)) in out.iter_mut().zip(acc).enumerate() {
            *y = match counts {
                Some(counts) => T::from_f64(a.to_f64() / counts[p] as f64),
                None => T::narrow(a),
            };
        }
    }
}
