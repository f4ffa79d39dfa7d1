//! Property 8: a kernel's local operands and results fit together on every rank.
//!
//! A kernel stands for an op. It fits if that op, asked for the types of its results on the *local*
//! operand types, answers with the local result types; so ops and kernels cannot disagree on what is
//! allowed. What an op holds as global extents (a slice's length, say) is read from the results.

use super::{Finding, Place};
use crate::OpError;
use crate::graph::TensorType;
use crate::ops::pool::Pool;
use crate::ops::{Op, broadcast, expect_inputs};
use crate::program::{BufferId, Kernel, Program};
use crate::sharding::AxisId;
use crate::verify::body_fault;

/// Adds a finding if the kernel does not fit on some rank (the first such rank).
pub(super) fn check(
    program: &Program,
    place: impl Fn() -> Place,
    kernel: &Kernel,
    inputs: &[BufferId],
    outputs: &[BufferId],
    findings: &mut Vec<Finding>,
) {
    for coord in coords(program, inputs, outputs) {
        let local = |ids: &[BufferId]| -> Vec<TensorType> {
            ids.iter().map(|&b| program.buffer(b).local(&program.mesh, &coord).ty).collect()
        };
        if let Err(e) = fits(kernel, &local(inputs), &local(outputs)) {
            findings.push(Finding::Kernel { place: place(), coord, why: e.to_string() });
            return;
        }
    }
}

/// Coordinates of ranks that hold all there is in local extents: only axes along which some operand's
/// parts differ are varied.
fn coords(program: &Program, inputs: &[BufferId], outputs: &[BufferId]) -> Vec<Vec<u32>> {
    let mesh = &program.mesh;
    let mut uneven: Vec<AxisId> = inputs
        .iter()
        .chain(outputs)
        .map(|&b| program.buffer(b))
        .flat_map(|b| b.sharding.dims.iter().zip(&b.ty.shape))
        .filter(|(d, n)| !d.is_even(**n, mesh))
        .flat_map(|(d, _)| d.axes.iter().copied())
        .collect();
    uneven.sort_unstable();
    uneven.dedup();
    mesh.group(0, &uneven).into_iter().map(|r| mesh.coord(r)).collect()
}

/// Whether a kernel takes these operands to these results.
fn fits(kernel: &Kernel, inputs: &[TensorType], outputs: &[TensorType]) -> Result<(), OpError> {
    let unknown = vec![None; inputs.len()];
    let op = kernel.op(inputs, outputs)?;
    match kernel {
        Kernel::Map { .. } => {
            // Operands may broadcast to extents that only the result has.
            let widen = |t: TensorType| -> Result<_, OpError> {
                let out = outputs.first().map_or(&[][..], |out| &out.shape);
                Ok(TensorType::new(t.dtype, broadcast(&t.shape, out)?))
            };
            let types = op.infer(inputs, &unknown)?;
            expect(&types.into_iter().map(widen).collect::<Result<Vec<_>, _>>()?, outputs)
        }
        Kernel::Fill { .. } => {
            expect_inputs(inputs, 0)?;
            let first = outputs.get(..1).unwrap_or_default();
            expect(first, outputs)
        }
        Kernel::Conv { .. } => conv(&op, inputs, outputs),
        Kernel::ConvWeightGrad(_) => {
            let (mut inputs, filters) = (inputs.to_vec(), inputs[0].shape[1]);
            let channels = &mut inputs[1].shape[1];
            if *channels == 0 && filters == 0 {
                *channels = outputs.first().and_then(|t| t.shape.get(1)).copied().unwrap_or(0); // a rank without groups
            }
            expect(&op.infer(&inputs, &unknown)?, outputs)
        }
        Kernel::Pool { .. } => {
            let ceil = match &op {
                Op::Pool(pool) => Op::from(Pool { ceil: true, ..pool.clone() }),
                other => other.clone(),
            };
            // The kernel does not say how the result's extents were rounded; either is fine.
            expect(&op.infer(inputs, &unknown)?, outputs)
                .or_else(|_| expect(&ceil.infer(inputs, &unknown)?, outputs))
        }
        Kernel::Reference { op } => {
            if let Some(finding) = body_fault(op) {
                return Err(OpError::Invalid(format!("in a body of {}: {finding}", op.name())));
            }
            match op.infer(inputs, &unknown) {
                // Its types depend on contents; whoever evaluates it compares them.
                Err(OpError::NotConstant { .. }) => Ok(()),
                types => expect(&types?, outputs),
            }
        }
        _ => expect(&op.infer(inputs, &unknown)?, outputs),
    }
}

fn expect(found: &[TensorType], outputs: &[TensorType]) -> Result<(), OpError> {
    if found == outputs {
        return Ok(());
    }
    let list =
        |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(OpError::Invalid(format!("yields {} instead of {}", list(found), list(outputs))))
}

/// A convolution; a rank may be without channels.
fn conv(op: &Op, inputs: &[TensorType], outputs: &[TensorType]) -> Result<(), OpError> {
    let (mut x, weight) = (inputs[0].clone(), inputs[1].clone());
    if x.shape[1] == 0 {
        // Nothing is summed, or it has no groups and so no results.
        if weight.shape[1] > 0 && weight.shape[0] > 0 {
            return Err(OpError::Invalid(
                "has output channels of groups that are elsewhere".into(),
            ));
        }
        x.shape[1] = weight.shape[1];
    }
    expect(&op.infer(&[x, weight], &[None, None])?, outputs)
}
