//! Ops without a kernel of their own, by their reference semantics.

use super::operand::{In, Out};
use crate::KernelError;
use planc_ir::Tensor;
use planc_ir::ops::Op;

/// Evaluates an op on whole operands.
pub fn run(op: &Op, inputs: &[In<'_>], outputs: &mut [Out<'_>]) -> Result<(), KernelError> {
    let inputs: Vec<Tensor> = inputs
        .iter()
        .map(|x| Tensor::from_bytes(x.local.ty.clone(), x.bytes))
        .collect::<Result<_, _>>()?;
    let results = op.eval(&inputs.iter().collect::<Vec<_>>())?;
    if results.len() < outputs.len() {
        let why = format!("{} has {} results, not {}", op.name(), results.len(), outputs.len());
        return Err(KernelError::Operands { kernel: "reference", why });
    }
    for (result, out) in results.iter().zip(outputs) {
        if *result.ty() != out.local.ty {
            let why = format!("{} gives {}, not {}", op.name(), result.ty(), out.local.ty);
            return Err(KernelError::Operands { kernel: "reference", why });
        }
        out.bytes.copy_from_slice(&result.to_bytes());
    }
    Ok(())
}
