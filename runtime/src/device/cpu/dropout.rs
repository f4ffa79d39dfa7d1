//! Dropout: which elements are dropped follows from their indices in the whole tensor.

use super::operand::{In, Out};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use planc_ir::ops::dropout::Dropout;
use planc_ir::tensor::strides;

/// Drops elements of `x`, and scales the others.
pub fn run(op: &Dropout, x: &In<'_>, step: &In<'_>, out: &mut Out<'_>) -> Result<(), KernelError> {
    let types = (x.dtype(), x.shape()) == (out.dtype(), out.shape());
    if !types || !step.shape().is_empty() {
        let why = format!("{} and {} to {}", x.local.ty, step.local.ty, out.local.ty);
        return Err(KernelError::Operands { kernel: "dropout", why });
    }
    let step = with_elem!(step.dtype(), T => step.elements::<T>()[0].to_int()) as i64;
    let local = x.local;
    let row = local.ty.shape.last().map_or(1, |&n| n as usize).max(1);
    let (near, far) = (strides(&local.ty.shape), strides(&local.global));
    // The index in the whole tensor of the first element of a row of the part.
    let global = |first: usize| -> u64 {
        let along = near.iter().zip(&far).zip(&local.ty.shape).zip(&local.start);
        let index = |(((&near, &far), &n), &start): (((&usize, &usize), &u64), &u64)| {
            ((first / near.max(1)) as u64 % n + start) * far as u64
        };
        along.map(index).sum()
    };
    with_elem!(out.dtype(), T => {
        let rows = x.elements::<T>().chunks_exact(row).zip(out.elements::<T>().chunks_exact_mut(row));
        for (i, (x, y)) in rows.enumerate() {
            let first = global(i * row);
            for (j, (x, y)) in x.iter().zip(y).enumerate() {
                *y = T::from_f64(x.to_f64() * op.factor(step, first + j as u64));
            }
        }
    });
    Ok(())
}
