//! Ops without a kernel of their own, by their reference semantics.

use super::operand::{In, Out};
use crate::KernelError;
use planc_ir::Tensor;
use planc_ir::ops::Op;

/// Evaluates an op, at least `count` results of it.
pub fn evaluate(op: &Op, inputs: &[&Tensor], count: usize) -> Result<Vec<Tensor>, KernelError> {
    let results = op.eval(inputs)?;
    if results.len() < count {
        let why = format!("{} has {} results, not {count}", op.name(), results.len());
        return Err(KernelError::Operands { kernel: "reference", why });
    }
    Ok(results)
}

/// The rank's part of an operand as a tensor.
pub fn load(x: &In<'_>) -> Result<Tensor, KernelError> {
    Ok(Tensor::from_bytes(x.local.ty.clone(), x.bytes)?)
}

/// Writes a result of an op to its buffer.
pub fn store(op: &Op, result: &Tensor, out: &mut Out<'_>) -> Result<(), KernelError> {
    if *result.ty() != out.local.ty {
        let why = format!("{} gives {}, not {}", op.name(), result.ty(), out.local.ty);
        return Err(KernelError::Operands { kernel: "reference", why });
    }
    out.bytes.copy_from_slice(&result.to_bytes());
    Ok(())
}
