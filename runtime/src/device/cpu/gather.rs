//! Gathering by index.

use super::operand::{In, Out, around};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use planc_ir::DType;

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
    let (start, extent) = (data.local.start[axis], data.local.global[axis]);
    // The local position of each index, if it is held here.
    let rows: Vec<Option<usize>> = indices("gather", index)?
        .into_iter()
        .map(|i| {
            let at = resolve(i, extent)?.checked_sub(start);
            Ok(at.map(|at| at as usize).filter(|&at| at < held))
        })
        .collect::<Result<_, KernelError>>()?;
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
