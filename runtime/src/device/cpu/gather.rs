//! Gathering by index, and adding to what was gathered from.

use super::operand::{In, Out, around};
use crate::KernelError;
use crate::device::element::{Accumulator, Elem, with_elem};
use planc_ir::DType;
use planc_ir::program::Local;
use planc_ir::sharding::ReduceKind;

fn mismatch(kernel: &'static str, why: String) -> KernelError {
    KernelError::Operands { kernel, why }
}

/// The indices of a buffer.
pub fn indices(kernel: &'static str, x: &In<'_>) -> Result<Vec<i64>, KernelError> {
    match x.dtype() {
        DType::I64 => Ok(x.elements::<i64>().to_vec()),
        dtype if dtype.is_int() => Ok(with_elem!(dtype, T => {
            x.elements::<T>().iter().map(|i| i.to_int() as i64).collect()
        })),
        dtype => Err(KernelError::Type { kernel, dtype }),
    }
}

/// The index counted from the front.
pub fn resolve(index: i64, extent: u64) -> Result<u64, KernelError> {
    let i = i128::from(index);
    let at = if i < 0 { i + i128::from(extent) } else { i };
    match u64::try_from(at) {
        Ok(at) if at < extent => Ok(at),
        _ => Err(KernelError::Index { index, extent }),
    }
}

/// For each index into a dimension of a table, the row that it names of those held here, if it is one of
/// them.
fn held_rows(
    kernel: &'static str,
    index: &In<'_>,
    table: &Local,
    axis: usize,
) -> Result<Vec<Option<usize>>, KernelError> {
    let (start, extent, held) = (table.start[axis], table.global[axis], table.ty.shape[axis]);
    let held_row = |i| {
        let row = resolve(i, extent)?.checked_sub(start);
        Ok(row.filter(|&row| row < held).map(|row| row as usize))
    };
    indices(kernel, index)?.into_iter().map(held_row).collect()
}

/// `out[.., i.., ..] = data[.., indices[i..], ..]`; what lies outside the local part of `data` is 0.
pub fn gather(
    axis: usize,
    data: &In<'_>,
    index: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    if axis >= data.shape().len() || data.dtype() != out.dtype() {
        return Err(mismatch("gather", format!("{} along {axis}", data.local.ty)));
    }
    let expected: Vec<u64> =
        [&data.shape()[..axis], index.shape(), &data.shape()[axis + 1..]].concat();
    if expected != out.shape() {
        return Err(mismatch("gather", format!("{expected:?}, not {:?}", out.shape())));
    }
    let (outer, held, inner) = around(data.shape(), axis);
    let rows = held_rows("gather", index, data.local, axis)?;
    let run = inner * data.dtype().bytes() as usize;
    if run == 0 || rows.is_empty() {
        return Ok(());
    }
    for (i, piece) in out.bytes.chunks_exact_mut(run).enumerate().take(outer * rows.len()) {
        match rows[i % rows.len()] {
            Some(row) => {
                let at = (i / rows.len() * held + row) * run;
                piece.copy_from_slice(&data.bytes[at..at + run]);
            }
            None => piece.fill(0),
        }
    }
    Ok(())
}

/// `out[.., j, ..] = Σ g[.., i.., ..]` over all `i` with `indices[i..] = j`, for the `j` that are held here.
pub fn gather_grad(
    axis: usize,
    index: &In<'_>,
    g: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let fits = axis < out.shape().len() && g.dtype() == out.dtype() && {
        let (outer, inner) = (&out.shape()[..axis], &out.shape()[axis + 1..]);
        *g.shape() == [outer, index.shape(), inner].concat()
    };
    if !fits {
        let why = format!("{:?} and {:?} to {:?}", index.shape(), g.shape(), out.shape());
        return Err(mismatch("gather_grad", why));
    }
    let rows = held_rows("gather_grad", index, out.local, axis)?;
    // Positions in order of the row that they add to, so that each row is summed at once.
    let held = rows.iter().enumerate();
    let mut terms: Vec<(usize, usize)> = held.filter_map(|(i, row)| Some(((*row)?, i))).collect();
    terms.sort_unstable();
    with_elem!(out.dtype(), T => add_rows(axis, &terms, rows.len(), g.elements::<T>(), out));
    Ok(())
}

/// Sums the rows of `g`, of which there are `count` in each block, as `terms` says: to which row which is
/// added.
fn add_rows<T: Elem>(
    axis: usize,
    terms: &[(usize, usize)],
    count: usize,
    g: &[T],
    out: &mut Out<'_>,
) {
    let (outer, held, inner) = around(out.shape(), axis);
    let out = out.elements::<T>();
    out.fill(T::from_int(0));
    let mut sum = vec![T::Acc::neutral(ReduceKind::Sum); inner];
    for block in 0..outer {
        for group in terms.chunk_by(|a, b| a.0 == b.0) {
            sum.fill(T::Acc::neutral(ReduceKind::Sum));
            for &(_, i) in group {
                let row = &g[(block * count + i) * inner..][..inner];
                sum.iter_mut().zip(row).for_each(|(s, &x)| *s = s.add(x.widen()));
            }
            let row = &mut out[(block * held + group[0].0) * inner..][..inner];
            row.iter_mut().zip(&sum).for_each(|(x, &s)| *x = T::narrow(s));
        }
    }
}

/// ONNX GatherND: each row of `index` names a position in the dimensions of `data` behind the batch
/// dimensions.
pub fn gather_nd(
    batch_dims: usize,
    data: &In<'_>,
    index: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let (ds, is) = (data.shape(), index.shape());
    let fits = data.dtype() == out.dtype()
        && batch_dims < is.len()
        && batch_dims <= ds.len()
        && is[..batch_dims] == ds[..batch_dims]
        && is[is.len() - 1] as usize <= ds.len() - batch_dims;
    if !fits {
        return Err(mismatch("gather_nd", format!("{ds:?} at {is:?}, batch {batch_dims}")));
    }
    let depth = is[is.len() - 1] as usize;
    let indexed = batch_dims..batch_dims + depth;
    if data.local.ty.shape[indexed.clone()] != data.local.global[indexed.clone()] {
        return Err(mismatch("gather_nd", "an indexed dimension is split".into()));
    }
    let expected: Vec<u64> = [&is[..is.len() - 1], &ds[indexed.end..]].concat();
    if expected != out.shape() {
        return Err(mismatch("gather_nd", format!("{expected:?}, not {:?}", out.shape())));
    }
    let product = |s: &[u64]| s.iter().product::<u64>() as usize;
    let (batches, per_batch) = (product(&ds[..batch_dims]), product(&is[batch_dims..is.len() - 1]));
    let run = product(&ds[indexed.end..]) * data.dtype().bytes() as usize;
    let block = product(&ds[indexed.clone()]);
    let index = indices("gather_nd", index)?;
    for row in 0..batches * per_batch {
        let mut at = 0;
        for (&i, &extent) in index[row * depth..][..depth].iter().zip(&ds[indexed.clone()]) {
            at = at * extent as usize + resolve(i, extent)? as usize;
        }
        let from = (row / per_batch * block + at) * run;
        out.bytes[row * run..(row + 1) * run].copy_from_slice(&data.bytes[from..from + run]);
    }
    Ok(())
}
