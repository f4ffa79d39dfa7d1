//! Kernels that move elements and compute nothing: copy, transpose, slice, concat, pad, fill.

use super::operand::{In, Out};
use super::strided::{gather, row_major};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use crate::region;
use planc_ir::program::Local;
use planc_ir::program::kernel::PadMode;

fn mismatch(kernel: &'static str, why: impl Into<String>) -> KernelError {
    KernelError::Operands { kernel, why: why.into() }
}

fn same_type(kernel: &'static str, x: &In<'_>, out: &Out<'_>) -> Result<(), KernelError> {
    if x.dtype() == out.dtype() {
        Ok(())
    } else {
        Err(mismatch(kernel, format!("{} to {}", x.dtype(), out.dtype())))
    }
}

/// The same elements in row-major order.
pub fn copy(x: &In<'_>, out: &mut Out<'_>) -> Result<(), KernelError> {
    same_type("copy", x, out)?;
    if x.bytes.len() != out.bytes.len() {
        return Err(mismatch("copy", format!("{} to {}", x.local.ty, out.local.ty)));
    }
    out.bytes.copy_from_slice(x.bytes);
    Ok(())
}

/// Output dimension `i` is input dimension `perm[i]`.
pub fn transpose(perm: &[usize], x: &In<'_>, out: &mut Out<'_>) -> Result<(), KernelError> {
    same_type("transpose", x, out)?;
    let fits = perm.len() == x.shape().len()
        && perm.len() == out.shape().len()
        && perm.iter().zip(out.shape()).all(|(&p, &n)| x.shape().get(p) == Some(&n));
    if !fits {
        return Err(mismatch("transpose", format!("{:?} by {perm:?}", x.shape())));
    }
    let own = row_major(x.shape());
    let strides: Vec<isize> = perm.iter().map(|&p| own[p]).collect();
    let shape = out.shape();
    with_elem!(out.dtype(), T => gather::<T>(x.elements(), 0, &strides, shape, out.elements()));
    Ok(())
}

/// `out[i..] = x[starts[i] + i · steps[i] ..]`.
pub fn slice(
    starts: &[i64],
    steps: &[i64],
    x: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    same_type("slice", x, out)?;
    let shape = out.shape();
    let rank = x.shape().len();
    if starts.len() != rank || steps.len() != rank || shape.len() != rank {
        return Err(mismatch("slice", "starts, steps and extents differ in number"));
    }
    if shape.contains(&0) {
        return Ok(());
    }
    let own = row_major(x.shape());
    let (mut start, mut strides) = (0, Vec::with_capacity(rank));
    for d in 0..rank {
        // The first and the last index that the slice reads.
        let first = i128::from(starts[d]);
        let last = first + i128::from(shape[d] - 1) * i128::from(steps[d]);
        let extent = i128::from(x.shape()[d]);
        if !(0..extent).contains(&first) || !(0..extent).contains(&last) {
            let why = format!("indices {first} to {last} of dimension {d} of extent {extent}");
            return Err(mismatch("slice", why));
        }
        start += first as usize * own[d] as usize;
        // Along a single element the step does not matter, and may be too large to multiply.
        strides.push(if shape[d] == 1 { 0 } else { own[d] * steps[d] as isize });
    }
    with_elem!(out.dtype(), T => gather::<T>(x.elements(), start, &strides, shape, out.elements()));
    Ok(())
}

/// Joins the inputs along a dimension.
pub fn concat(axis: usize, inputs: &[In<'_>], out: &mut Out<'_>) -> Result<(), KernelError> {
    let whole = region::whole(&out.local.ty);
    let mut begin = 0;
    for x in inputs {
        same_type("concat", x, out)?;
        let fits = x.shape().len() == out.shape().len()
            && axis < out.shape().len()
            && (0..out.shape().len()).all(|d| d == axis || x.shape()[d] == out.shape()[d])
            && begin + x.shape()[axis] <= out.shape()[axis];
        if !fits {
            return Err(mismatch("concat", format!("{:?} in {:?}", x.shape(), out.shape())));
        }
        let mut part = Local { ty: x.local.ty.clone(), ..whole.clone() };
        part.start[axis] = begin;
        region::copy(&part, x.bytes, &whole, out.bytes);
        begin += x.shape()[axis];
    }
    if out.shape().get(axis) == Some(&begin) {
        Ok(())
    } else {
        Err(mismatch("concat", format!("{begin} of {:?} along dimension {axis}", out.shape())))
    }
}

/// Pads or crops; the output's extent says how many follow behind.
pub fn pad(
    before: &[i64],
    mode: PadMode,
    value: f64,
    x: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    same_type("pad", x, out)?;
    let (from, to) = (x.shape(), out.shape());
    if before.len() != from.len() || from.len() != to.len() {
        return Err(mismatch("pad", "padding and extents differ in number"));
    }
    if to.contains(&0) {
        return Ok(());
    }
    if from.contains(&0) && mode != PadMode::Constant {
        return Err(mismatch("pad", "no elements to repeat"));
    }
    // For each output index of each dimension, the input offset that it reads, if any.
    let own = row_major(from);
    let sources: Vec<Vec<Option<usize>>> = (0..to.len())
        .map(|d| {
            (0..to[d] as i64)
                .map(|i| padded(i.saturating_sub(before[d]), from[d] as i64, mode))
                .map(|i| i.map(|i| i as usize * own[d] as usize))
                .collect()
        })
        .collect();
    with_elem!(out.dtype(), T => {
        pad_elements(x.elements(), &sources, T::from_f64(value), to, out.elements::<T>());
    });
    Ok(())
}

/// The index in `0..n` that stands at position `i` of the padded dimension.
fn padded(i: i64, n: i64, mode: PadMode) -> Option<i64> {
    if (0..n).contains(&i) {
        return Some(i);
    }
    match mode {
        PadMode::Constant => None,
        PadMode::Edge => Some(i.clamp(0, n - 1)),
        PadMode::Wrap => Some(i.rem_euclid(n)),
        PadMode::Reflect if n == 1 => Some(0),
        PadMode::Reflect => {
            let period = 2 * (n - 1);
            let i = i.rem_euclid(period);
            Some(i.min(period - i))
        }
    }
}

fn pad_elements<T: Elem>(
    x: &[T],
    sources: &[Vec<Option<usize>>],
    value: T,
    shape: &[u64],
    out: &mut [T],
) {
    let Some((inner, outer)) = sources.split_last() else {
        out.copy_from_slice(x);
        return;
    };
    for (row, line) in out.chunks_exact_mut(inner.len()).enumerate() {
        let coord = planc_ir::tensor::unravel(row, &shape[..outer.len()]);
        let base: Option<usize> = coord.iter().zip(outer).map(|(&c, s)| s[c]).sum();
        for (y, source) in line.iter_mut().zip(inner) {
            *y = match (base, source) {
                (Some(base), Some(i)) => x[base + i],
                _ => value,
            };
        }
    }
}

/// Every element is `value`.
pub fn fill(value: f64, out: &mut Out<'_>) {
    with_elem!(out.dtype(), T => out.elements::<T>().fill(T::from_f64(value)));
}
