//! The op that a kernel stands for.

use super::{Kernel, Window};
use crate::OpError;
use crate::graph::TensorType;
use crate::ops::concat::Concat;
use crate::ops::conv::Conv;
use crate::ops::conv_weight_grad::ConvWeightGrad;
use crate::ops::fill::Fill;
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
use crate::ops::{Op, expect_inputs};

/// The largest number in a window or slice: keeps index arithmetic within 64 bits.
const MAX_INDEX: u64 = 1 << 40;

impl Kernel {
    /// The op that it stands for on operands and results of these (local) types. What a kernel does not hold,
    /// extents for the most part, is read from them; whether the op takes the operands to the results is
    /// left to who asks.
    ///
    /// # Errors
    /// If an attribute is out of range, or an operand or result that says what the op is is missing.
    pub fn op(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Op, OpError> {
        let first = || inputs.first().ok_or(OpError::MissingInput { index: 0 });
        let out = || outputs.first().ok_or_else(|| OpError::Invalid("has no result".into()));
        Ok(match self {
            Kernel::Map { f } => Map { f: *f }.into(),
            Kernel::Fill { value } => {
                let TensorType { dtype, shape } = out()?.clone();
                Fill { dtype, shape, value: *value }.into()
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
            Kernel::MixtureOfExpertsGrad(op) => op.clone().into(),
            Kernel::OptimizerStep(step) => step.clone().into(),
            Kernel::RotaryEmbedding { interleaved } => {
                RotaryEmbedding { interleaved: *interleaved }.into()
            }
            Kernel::Conv { window, .. } => conv(window, inputs)?.into(),
            Kernel::ConvTranspose(op) => {
                check_window(&op.window)?;
                in_range(op.extra.iter().copied())?;
                op.clone().into()
            }
            Kernel::ConvWeightGrad(op) => conv_weight_grad(op, inputs, outputs)?.into(),
            Kernel::PoolGrad(op) => {
                check_window(&op.pool.window)?;
                in_range(op.pool.extents.iter().copied())?;
                op.clone().into()
            }
            Kernel::Dropout(op) => op.clone().into(),
            Kernel::Pool { kind, extents, window } => {
                check_window(window)?;
                in_range(extents.iter().copied())?;
                let (extents, window) = (extents.clone(), window.clone());
                Pool { kind: *kind, extents, window, ceil: false }.into()
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
            Kernel::Reference { op } => (**op).clone(),
        })
    }
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

/// A convolution of as many groups as the local channels say.
fn conv(window: &Window, inputs: &[TensorType]) -> Result<Conv, OpError> {
    check_window(window)?;
    expect_inputs(inputs, 2)?;
    let (x, weight) = (&inputs[0], &inputs[1]);
    if x.rank() < 3 || weight.rank() < 3 {
        return Err(OpError::Rank { index: 0, found: x.rank(), expected: "3 to 5".into() });
    }
    let groups = x.shape[1].checked_div(weight.shape[1]).unwrap_or(0).max(1);
    Ok(Conv { window: window.clone(), groups })
}

/// The gradient of a convolution's weight, of as many groups as the local channels say.
fn conv_weight_grad(
    op: &ConvWeightGrad,
    inputs: &[TensorType],
    outputs: &[TensorType],
) -> Result<ConvWeightGrad, OpError> {
    check_window(&op.window)?;
    in_range(op.extents.iter().copied())?;
    expect_inputs(inputs, 2)?;
    let (g, x) = (&inputs[0], &inputs[1]);
    let (Some(_), Some(channels)) = (g.shape.get(1), x.shape.get(1)) else {
        return Err(OpError::Rank { index: 1, found: x.rank(), expected: "3 to 5".into() });
    };
    let in_group = outputs.first().and_then(|t| t.shape.get(1)).copied().unwrap_or(0);
    let groups = channels.checked_div(in_group).unwrap_or(0).max(1);
    Ok(ConvWeightGrad { groups, ..op.clone() })
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
