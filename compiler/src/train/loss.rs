//! The loss, and the gradient with which differentiation starts.
//!
//! Cross-entropy is written as what can be split along the classes: the largest logit, the sum of
//! exponentials and the label's own logit are reductions over classes, so that ranks which hold parts of the
//! vocabulary exchange three numbers a token and never the logits. Its gradient, `softmax - one-hot`, is
//! written down rather than derived.

use super::TrainError;
use super::append::Append;
use planc_ir::graph::{Graph, Phase, ValueId};
use planc_ir::ops::Build;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::sharding::ReduceKind;
use planc_ir::{DType, OpError, Tensor, TensorType};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The label that says that a place does not count, as in PyTorch.
pub const IGNORED: i64 = -100;

/// What is made smaller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// An output of the model: a scalar.
    Output(String),
    /// The mean over labels of the cross-entropy between an output (the first, if none is named), whose last
    /// dimension is the classes, and integer labels; labels of [`IGNORED`] do not count.
    CrossEntropy {
        /// The output that holds logits.
        output: Option<String>,
    },
    /// The mean square of the difference between an output (the first, if none is named) and a target.
    MeanSquare {
        /// The output.
        output: Option<String>,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of =
            |output: &Option<String>| output.as_ref().map_or(String::new(), |o| format!(":{o}"));
        match self {
            Self::Output(name) => write!(f, "output:{name}"),
            Self::CrossEntropy { output } => write!(f, "cross-entropy{}", of(output)),
            Self::MeanSquare { output } => write!(f, "mse{}", of(output)),
        }
    }
}

/// A loss in a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Appended {
    /// The loss: an f32 scalar.
    pub value: ValueId,
    /// Values that it is computed from, each with the gradient with respect to it.
    pub seeds: Vec<(ValueId, ValueId)>,
    /// The input that was added for labels or targets.
    pub labels: Option<String>,
}

/// Appends a loss. Its gradient is multiplied by `scale`, if there is one: an f32 scalar.
///
/// # Errors
/// If the model has no such output, or it is of another type.
pub fn append(
    graph: &mut Graph,
    loss: &Loss,
    scale: Option<ValueId>,
) -> Result<Appended, TrainError> {
    let output = match loss {
        Loss::Output(name) => Some(name),
        Loss::CrossEntropy { output } | Loss::MeanSquare { output } => output.as_ref(),
    };
    let output = find(graph, output)?;
    let ty = graph.ty(output).clone();
    let name = graph.value(output).name.clone();
    let wrong = |expected| TrainError::LossType { name: name.clone(), ty: ty.clone(), expected };
    if !ty.dtype.is_float() || graph.value(output).extents != planc_ir::Extents::Static {
        return Err(wrong("a loss is computed from floating-point numbers of known extents"));
    }
    match loss {
        Loss::Output(_) if ty.elements() == 1 => given(graph, output, &ty, scale),
        Loss::Output(_) => Err(wrong("a loss is a scalar")),
        Loss::CrossEntropy { .. } if ty.rank() > 0 => cross_entropy(graph, output, &ty, scale),
        Loss::CrossEntropy { .. } => Err(wrong("logits have a last dimension, the classes")),
        Loss::MeanSquare { .. } => mean_square(graph, output, &ty, scale),
    }
}

fn find(graph: &Graph, name: Option<&String>) -> Result<ValueId, TrainError> {
    let named = |v: &&ValueId| name.is_none_or(|n| graph.value(**v).name == *n);
    graph.outputs.iter().find(named).copied().ok_or_else(|| TrainError::NoOutput {
        name: name.cloned().unwrap_or_default(),
        outputs: graph.outputs.iter().map(|&v| format!("`{}`", graph.value(v).name)).collect(),
    })
}

fn given(
    graph: &mut Graph,
    output: ValueId,
    ty: &TensorType,
    scale: Option<ValueId>,
) -> Result<Appended, TrainError> {
    let value = Append::new(graph, Phase::Forward, "loss").run(|a| {
        let wide = a.cast(output, DType::F32)?;
        a.reshape(wide, [])
    })?;
    let seed = Append::new(graph, Phase::Backward, "loss:gradient").run(|a| {
        let one = a.scalar(DType::F32, 1.0)?;
        let one = a.reshape(one, ty.shape.clone())?;
        scaled(a, one, scale, ty.dtype)
    })?;
    Ok(Appended { value, seeds: vec![(output, seed)], labels: None })
}

fn mean_square(
    graph: &mut Graph,
    output: ValueId,
    ty: &TensorType,
    scale: Option<ValueId>,
) -> Result<Appended, TrainError> {
    let mut a = Append::new(graph, Phase::Forward, "loss");
    let (target, labels) = a.input("target", ty.dtype, &ty.shape);
    let count = ty.elements() as f64;
    let all: Vec<usize> = (0..ty.rank()).collect();
    let (difference, value) = a.run(|a| {
        let (x, y) = (a.cast(output, DType::F32)?, a.cast(target, DType::F32)?);
        let difference = a.map(F::Sub, &[x, y])?;
        let square = a.map(F::Mul, &[difference, difference])?;
        let sum = a.reduce(ReduceKind::Sum, square, &all)?;
        let sum = a.reshape(sum, [])?;
        Ok((difference, a.with(F::Div, sum, count)?))
    })?;
    let seed = Append::new(graph, Phase::Backward, "loss:gradient").run(|a| {
        let seed = a.with(F::Mul, difference, 2.0 / count)?;
        scaled(a, seed, scale, ty.dtype)
    })?;
    Ok(Appended { value, seeds: vec![(output, seed)], labels: Some(labels) })
}

/// What the gradient of cross-entropy needs of its forward phase.
struct Parts {
    exponentials: ValueId,
    sum: ValueId,
    is_label: ValueId,
    weight: ValueId,
    value: ValueId,
}

fn cross_entropy(
    graph: &mut Graph,
    logits: ValueId,
    ty: &TensorType,
    scale: Option<ValueId>,
) -> Result<Appended, TrainError> {
    let (last, classes) = (ty.rank() - 1, ty.shape[ty.rank() - 1]);
    let mut places = ty.shape.clone();
    places[last] = 1;
    let mut a = Append::new(graph, Phase::Forward, "loss");
    let (labels, labels_name) = a.input("labels", DType::I64, &ty.shape[..last]);
    let all: Vec<usize> = (0..ty.rank()).collect();
    let parts = a.run(|a| {
        let x = a.cast(logits, DType::F32)?;
        let largest = a.reduce(ReduceKind::Max, x, &[last])?;
        let x = a.map(F::Sub, &[x, largest])?;
        let exponentials = a.map(F::Exp, &[x])?;
        let sum = a.reduce(ReduceKind::Sum, exponentials, &[last])?;
        let labels = a.reshape(labels, places)?;
        let class = classes_along(a, classes, last)?;
        let is_label = a.map(F::Equal, &[labels, class])?;
        let zero = a.like(x, 0.0)?;
        let own = a.map(F::Where, &[is_label, x, zero])?;
        let own = a.reduce(ReduceKind::Sum, own, &[last])?;
        let log = a.map(F::Log, &[sum])?;
        let each = a.map(F::Sub, &[log, own])?;
        // 1 for a place that counts, divided by how many do.
        let ignored = a.with(F::Equal, labels, IGNORED as f64)?;
        let counts = a.map(F::Not, &[ignored])?;
        let counts = a.cast(counts, DType::F32)?;
        let number = a.reduce(ReduceKind::Sum, counts, &all)?;
        let number = a.with(F::Max, number, 1.0)?;
        let weight = a.map(F::Div, &[counts, number])?;
        let each = a.map(F::Mul, &[each, weight])?;
        let value = a.reduce(ReduceKind::Sum, each, &all)?;
        Ok(Parts { exponentials, sum, is_label, weight, value: a.reshape(value, [])? })
    })?;
    let seed = Append::new(graph, Phase::Backward, "loss:gradient").run(|a| {
        let likely = a.map(F::Div, &[parts.exponentials, parts.sum])?;
        let label = a.cast(parts.is_label, DType::F32)?;
        let gradient = a.map(F::Sub, &[likely, label])?;
        let gradient = a.map(F::Mul, &[gradient, parts.weight])?;
        scaled(a, gradient, scale, ty.dtype)
    })?;
    let seeds = vec![(logits, seed)];
    Ok(Appended { value: parts.value, seeds, labels: Some(labels_name) })
}

/// A gradient, multiplied by `scale` before it becomes narrow.
fn scaled(
    a: &mut Append<'_>,
    gradient: ValueId,
    scale: Option<ValueId>,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let gradient = match scale {
        Some(scale) => a.map(F::Mul, &[gradient, scale])?,
        None => gradient,
    };
    a.cast(gradient, dtype)
}

/// The numbers of the classes along the last dimension.
fn classes_along(a: &mut Append<'_>, classes: u64, last: usize) -> Result<ValueId, OpError> {
    let mut shape = vec![1; last + 1];
    shape[last] = classes;
    let number = |i| i as i128;
    let numbers = Tensor::from_int(TensorType::new(DType::I64, shape), number)
        .map_err(|e| OpError::Invalid(e.to_string()))?;
    Ok(a.constant(numbers))
}
