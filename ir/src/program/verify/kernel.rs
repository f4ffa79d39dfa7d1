//! Property 8: a kernel's local operands and results fit together on every rank.
//!
//! A kernel stands for an op. It fits if that op, asked for the types of its results on the *local*
//! operand types, answers with the local result types; so ops and kernels cannot disagree on what is
//! allowed. What an op holds as global extents (a slice's length, say) is read from the results.

use super::{Finding, Place};
use crate::OpError;
use crate::graph::TensorType;
use crate::ops::concat::Concat;
use crate::ops::conv::Conv;
use crate::ops::conv_weight_grad::ConvWeightGrad;
use crate::ops::gather::Gather;
use crate::ops::gather_grad::GatherGrad;
use crate::ops::gather_nd::GatherNd;
use crate::ops::lrn::Lrn;
use crate::ops::map::Map;
use crate::ops::matmul::MatMul;
use crate::ops::matmul_grad::MatMulGrad;
use crate::ops::normalize::Normalize;
use crate::ops::pad::Pad;
use crate::ops::pool::Pool;
use crate::ops::reduce::Reduce;
use crate::ops::reshape::Reshape;
use crate::ops::rotary_embedding::RotaryEmbedding;
use crate::ops::slice::{Cut, Slice};
use crate::ops::softmax::Softmax;
use crate::ops::transpose::Transpose;
use crate::ops::{Op, broadcast, expect_inputs};
use crate::program::{BufferId, Kernel, Program, Window};
use crate::sharding::AxisId;
use crate::verify::body_fault;

/// The largest number in a window or slice: keeps index arithmetic within 64 bits.
const MAX_INDEX: u64 = 1 << 40;

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
    let first = || inputs.first().ok_or(OpError::MissingInput { index: 0 });
    let out = || outputs.first().ok_or_else(|| OpError::Invalid("has no result".into()));
    let unknown = vec![None; inputs.len()];
    let op: Op = match kernel {
        Kernel::Map { f } => {
            let types = Op::from(Map { f: *f }).infer(inputs, &unknown)?;
            // Operands may broadcast to extents that only the result has.
            let widen = |t: TensorType| -> Result<_, OpError> {
                Ok(TensorType::new(t.dtype, broadcast(&t.shape, &out()?.shape)?))
            };
            return expect(&types.into_iter().map(widen).collect::<Result<Vec<_>, _>>()?, outputs);
        }
        Kernel::Fill { .. } => {
            expect_inputs(inputs, 0)?;
            return expect(&[out()?.clone()], outputs);
        }
        Kernel::Copy => {
            expect_inputs(inputs, 1)?;
            Reshape { shape: out()?.shape.clone() }.into()
        }
        Kernel::MatMul { trans_a, trans_b } => {
            MatMul { trans_a: *trans_a, trans_b: *trans_b }.into()
        }
        Kernel::MatMulGrad => MatMulGrad {}.into(),
        Kernel::Transpose { perm } => Transpose { perm: perm.clone() }.into(),
        Kernel::Slice { starts, steps } => slice(starts, steps, out()?)?.into(),
        Kernel::Concat { axis } => Concat { axis: *axis }.into(),
        Kernel::Pad { before, mode, value } => {
            let after = pad_after(before, first()?, out()?)?;
            Pad { before: before.clone(), after, mode: *mode, value: *value }.into()
        }
        Kernel::Reduce { kind, axes } => {
            if !axes.is_sorted_by(|a, b| a < b) {
                return Err(OpError::Invalid(format!("reduces {axes:?}, which do not ascend")));
            }
            let keep = first()?.rank() == out()?.rank();
            Reduce { kind: *kind, axes: axes.clone(), keep }.into()
        }
        Kernel::Softmax { axis, log } => Softmax { axis: *axis, log: *log }.into(),
        Kernel::Normalize { axis, epsilon, rms } => {
            Normalize { axis: *axis, epsilon: *epsilon, rms: *rms }.into()
        }
        Kernel::NormalizeGrad(op) => op.clone().into(),
        Kernel::Attention(attention) => attention.clone().into(),
        Kernel::AttentionGrad(op) => op.clone().into(),
        Kernel::MixtureOfExperts(layer) => layer.clone().into(),
        Kernel::OptimizerStep(step) => step.clone().into(),
        Kernel::RotaryEmbedding { interleaved } => {
            RotaryEmbedding { interleaved: *interleaved }.into()
        }
        Kernel::Conv { window, .. } => return conv(window, inputs, outputs),
        Kernel::ConvTranspose(op) => {
            check_window(&op.window)?;
            in_range(op.extra.iter().copied())?;
            op.clone().into()
        }
        Kernel::ConvWeightGrad(op) => return conv_weight_grad(op, inputs, outputs),
        Kernel::PoolGrad(op) => {
            check_window(&op.pool.window)?;
            in_range(op.pool.extents.iter().copied())?;
            op.clone().into()
        }
        Kernel::Dropout(op) => op.clone().into(),
        Kernel::Pool { kind, extents, window } => {
            check_window(window)?;
            in_range(extents.iter().copied())?;
            let pool = |ceil| {
                let (extents, window) = (extents.clone(), window.clone());
                Op::from(Pool { kind: *kind, extents, window, ceil }).infer(inputs, &unknown)
            };
            // The kernel does not say how the result's extents were rounded; either is fine.
            return expect(&pool(false)?, outputs).or_else(|_| expect(&pool(true)?, outputs));
        }
        Kernel::Lrn { size, alpha, beta, bias } => {
            in_range([*size])?;
            Lrn { size: *size, alpha: *alpha, beta: *beta, bias: *bias }.into()
        }
        Kernel::Gather { axis } => Gather { axis: *axis }.into(),
        Kernel::GatherGrad { axis } => {
            let out = out()?;
            GatherGrad { axis: *axis, extent: out.shape[out.dim(*axis)?] }.into()
        }
        Kernel::GatherNd { batch_dims } => GatherNd { batch_dims: *batch_dims }.into(),
        Kernel::Reference { op } => {
            if let Some(finding) = body_fault(op) {
                return Err(OpError::Invalid(format!("in a body of {}: {finding}", op.name())));
            }
            (**op).clone()
        }
    };
    match op.infer(inputs, &unknown) {
        // Its types depend on contents; whoever evaluates it compares them.
        Err(OpError::NotConstant { .. }) if matches!(kernel, Kernel::Reference { .. }) => Ok(()),
        types => expect(&types?, outputs),
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

/// A slice of as many elements as the result has; its offsets stay in range even where it has none.
fn slice(starts: &[i64], steps: &[i64], out: &TensorType) -> Result<Slice, OpError> {
    if starts.len() != out.rank() || steps.len() != out.rank() {
        let found = starts.len();
        return Err(OpError::Rank { index: 0, found, expected: out.rank().to_string() });
    }
    in_range(starts.iter().chain(steps).map(|n| n.unsigned_abs()))?;
    let cuts = starts
        .iter()
        .zip(steps)
        .zip(&out.shape)
        .map(|((&start, &step), &extent)| Some(Cut { start, step, extent }));
    Ok(Slice { cuts: cuts.collect() })
}

/// How much padding is behind, from how much there is in front and in all.
fn pad_after(before: &[i64], x: &TensorType, out: &TensorType) -> Result<Vec<i64>, OpError> {
    if before.len() != x.rank() || out.rank() != x.rank() {
        let found = before.len();
        return Err(OpError::Rank { index: 0, found, expected: x.rank().to_string() });
    }
    in_range(before.iter().map(|n| n.unsigned_abs()))?;
    let after = before.iter().zip(&x.shape).zip(&out.shape);
    Ok(after.map(|((&before, &n), &padded)| padded as i64 - n as i64 - before).collect())
}

/// A convolution whose number of groups is what the local channels say.
fn conv(window: &Window, inputs: &[TensorType], outputs: &[TensorType]) -> Result<(), OpError> {
    check_window(window)?;
    expect_inputs(inputs, 2)?;
    let (mut x, weight) = (inputs[0].clone(), inputs[1].clone());
    if x.rank() < 3 || weight.rank() < 3 {
        return Err(OpError::Rank { index: 0, found: x.rank(), expected: "3 to 5".into() });
    }
    let (channels, in_group, m) = (x.shape[1], weight.shape[1], weight.shape[0]);
    let groups = channels.checked_div(in_group).unwrap_or(0).max(1);
    if channels == 0 {
        // A rank without channels: nothing is summed, or it has no groups and so no results.
        if in_group > 0 && m > 0 {
            return Err(OpError::Invalid(
                "has output channels of groups that are elsewhere".into(),
            ));
        }
        x.shape[1] = in_group;
    }
    let op = Op::from(Conv { window: window.clone(), groups });
    expect(&op.infer(&[x, weight], &[None, None])?, outputs)
}

/// The gradient of a convolution's weight, of as many groups as the local channels say.
fn conv_weight_grad(
    op: &ConvWeightGrad,
    inputs: &[TensorType],
    outputs: &[TensorType],
) -> Result<(), OpError> {
    check_window(&op.window)?;
    in_range(op.extents.iter().copied())?;
    expect_inputs(inputs, 2)?;
    let (g, mut x) = (inputs[0].clone(), inputs[1].clone());
    let (Some(&m), Some(channels)) = (g.shape.get(1), x.shape.get_mut(1)) else {
        return Err(OpError::Rank { index: 1, found: x.rank(), expected: "3 to 5".into() });
    };
    let in_group = outputs.first().and_then(|t| t.shape.get(1)).copied().unwrap_or(0);
    let groups = channels.checked_div(in_group).unwrap_or(0).max(1);
    if *channels == 0 && m == 0 {
        *channels = in_group; // a rank without groups
    }
    let op = Op::from(ConvWeightGrad { groups, ..op.clone() });
    expect(&op.infer(&[g, x], &[None, None])?, outputs)
}

fn check_window(w: &Window) -> Result<(), OpError> {
    let lists = [&w.strides, &w.dilations, &w.before, &w.after];
    in_range(lists.into_iter().flatten().copied())
}

fn in_range(numbers: impl IntoIterator<Item = u64>) -> Result<(), OpError> {
    match numbers.into_iter().find(|&n| n > MAX_INDEX) {
        None => Ok(()),
        Some(n) => Err(OpError::Invalid(format!("the attribute {n} is out of range"))),
    }
}
