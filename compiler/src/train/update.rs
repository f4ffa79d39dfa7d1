//! What happens to gradients: accumulation over micro-batches, loss scaling, clipping, the optimizer.
//!
//! Parameters whose elements are not f32 are copies: the optimizer keeps an f32 master of each, and after the
//! update the copy is made anew. All state is carried from step to step.

use super::append::Append;
use super::precision::Master;
use super::{TrainError, TrainOptions};
use planc_ir::graph::{Carried, Graph, Phase, ValueDef, ValueId, WeightSource};
use planc_ir::ops::Build;
use planc_ir::ops::einsum::Einsum;
use planc_ir::ops::optimizer_step::{OptimizerStep, Rule};
use planc_ir::ops::reshape::Reshape;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::{DType, OpError, TensorType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How parameters follow their gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Optimizer(pub Rule);

impl Default for Optimizer {
    /// AdamW as PyTorch has it by default.
    fn default() -> Self {
        Self(Rule::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 1e-2,
            decoupled: true,
        })
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rule::Sgd { momentum, dampening, weight_decay, nesterov } => {
                write!(f, "SGD (momentum {momentum}, dampening {dampening}, ")?;
                write!(
                    f,
                    "weight decay {weight_decay}{})",
                    if *nesterov { ", Nesterov" } else { "" }
                )
            }
            Rule::Adam { beta1, beta2, epsilon, weight_decay, decoupled } => {
                let name = if *decoupled { "AdamW" } else { "Adam" };
                write!(f, "{name} (betas {beta1} and {beta2}, epsilon {epsilon}, ")?;
                write!(f, "weight decay {weight_decay})")
            }
        }
    }
}

/// How the loss is scaled, so that gradients in half precision do not vanish: by a factor that falls when
/// gradients overflow (that step is skipped) and rises after a number of steps without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The factor at first.
    pub initial: f64,
    /// What it is multiplied by after `interval` steps.
    pub growth: f64,
    /// What it is multiplied by after an overflow.
    pub backoff: f64,
    /// Steps without overflow before it rises.
    pub interval: f64,
}

impl LossScale {
    /// PyTorch's `GradScaler`.
    pub const DYNAMIC: Self =
        Self { initial: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000.0 };

    /// The factor, as state of a graph.
    pub fn append(self, graph: &mut Graph) -> ValueId {
        let scalar = TensorType::new(DType::F32, []);
        Append::new(graph, Phase::Forward, "loss_scale").state(
            "loss_scale".into(),
            scalar,
            self.initial,
        )
    }
}

/// A parameter, as the model reads it, and its gradient ([`collect`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trained {
    /// The weight.
    pub parameter: ValueId,
    /// Its gradient.
    pub gradient: ValueId,
}

/// What an update adds to a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Updated {
    /// The loss and, where gradients are clipped, the norm of all gradients before that.
    pub outputs: Vec<ValueId>,
    /// The input that is the learning rate.
    pub learning_rate: String,
}

/// Appends what turns gradients into the next state. `scale` is what the loss was scaled by, if it was.
///
/// # Errors
/// If a parameter is of a type whose updates cannot be kept.
pub fn append(
    graph: &mut Graph,
    loss: ValueId,
    trained: &[Trained],
    masters: &BTreeMap<ValueId, Master>,
    scale: Option<ValueId>,
    options: &TrainOptions,
) -> Result<Updated, TrainError> {
    let micro_batches = options.micro_batches;
    graph.micro_batches = micro_batches;
    let loss = match micro_batches {
        1 => loss,
        n => sum(graph, "loss".into(), loss, f64::from(n))?,
    };
    let mut a = Append::new(graph, Phase::Update, "update");
    let scalar = TensorType::new(DType::F32, []);
    let (rate, learning_rate) = a.input("learning_rate", DType::F32, &[]);
    let mut outputs = vec![loss];
    let mut factor = a.run(|a| a.scalar(DType::F32, 1.0 / f64::from(micro_batches)))?;
    let mut is_good = None;
    if scale.is_some() || options.clip_norm.is_some() {
        a.name = "gradient_norm".into();
        let squares = a.run(|a| sum_of_squares(a, trained))?;
        if let Some(scale) = scale {
            is_good = Some(a.run(|a| a.with(F::Less, squares, f64::INFINITY))?);
            factor = a.run(|a| a.map(F::Div, &[factor, scale]))?;
        }
        if let Some(most) = options.clip_norm {
            let (norm, clipped) = a.run(|a| {
                let norm = a.map(F::Sqrt, &[squares])?;
                let norm = a.map(F::Mul, &[norm, factor])?;
                // As PyTorch's clip_grad_norm_ has it.
                let above = a.with(F::Add, norm, 1e-6)?;
                let most = a.scalar(DType::F32, most)?;
                let ratio = a.map(F::Div, &[most, above])?;
                let ratio = a.with(F::Min, ratio, 1.0)?;
                Ok((norm, a.map(F::Mul, &[factor, ratio])?))
            })?;
            factor = clipped;
            outputs.push(norm);
        }
    }
    a.name = "step".into();
    let step = a.state("step".into(), TensorType::new(DType::I64, []), 0.0);
    let next_step = a.run(|a| {
        let next = a.with(F::Add, step, 1.0)?;
        match is_good {
            Some(is_good) => a.map(F::Where, &[is_good, next, step]),
            None => Ok(next),
        }
    })?;
    let mut carried = vec![Carried { state: step, next: next_step }];
    if let (Some(scale), Some(is_good)) = (scale, is_good) {
        a.name = "loss_scale".into();
        let so_far = a.state("loss_scale:good_steps".into(), scalar, 0.0);
        let (next_scale, next_so_far) = a.run(|a| rescale(a, scale, so_far, is_good))?;
        carried.push(Carried { state: scale, next: next_scale });
        carried.push(Carried { state: so_far, next: next_so_far });
        // A factor that is not finite makes the optimizer skip the step.
        factor = a.run(|a| {
            let skip = a.scalar(DType::F32, f64::INFINITY)?;
            a.map(F::Where, &[is_good, factor, skip])
        })?;
    }
    for t in trained {
        let master = master(&mut a, t.parameter, masters)?;
        let name = a.graph.value(master).name.clone();
        let ty = a.graph.ty(master).clone();
        a.name = format!("{name}:update");
        let mut operands = vec![master, t.gradient, rate, factor, next_step];
        for suffix in states(&options.optimizer.0) {
            operands.push(a.state(format!("{name}:{suffix}"), ty.clone(), 0.0));
        }
        let op = OptimizerStep { rule: options.optimizer.0.clone() };
        let results = a.run(|a| a.push_multi(op, &operands))?;
        let own = std::iter::once(master).chain(operands[5..].iter().copied());
        carried.extend(own.zip(results.iter()).map(|(state, &next)| Carried { state, next }));
        if master != t.parameter {
            let narrow = a.graph.ty(t.parameter).dtype;
            let next = a.run(|a| a.cast(results[0], narrow))?;
            carried.push(Carried { state: t.parameter, next });
        }
    }
    graph.carried.extend(carried);
    Ok(Updated { outputs, learning_rate })
}

/// Makes a complete gradient a value of its own, which is split as is best for it: the sum over
/// micro-batches, or, of a single one, the same numbers. In f32 if it is a sum.
///
/// # Errors
/// None in practice.
pub fn collect(
    graph: &mut Graph,
    parameter: ValueId,
    gradient: ValueId,
    micro_batches: u32,
) -> Result<ValueId, TrainError> {
    let name = format!("{}:gradient", graph.value(parameter).name);
    if micro_batches > 1 {
        return sum(graph, name, gradient, 1.0);
    }
    let shape = graph.ty(gradient).shape.clone();
    Append::new(graph, Phase::Backward, name).run(|a| a.push(Reshape { shape }, &[gradient]))
}

/// The sum over micro-batches of a value over a number.
fn sum(
    graph: &mut Graph,
    name: String,
    x: ValueId,
    divided_by: f64,
) -> Result<ValueId, TrainError> {
    let ty = TensorType::new(DType::F32, graph.ty(x).shape.clone());
    let so_far = graph.add_value(format!("{name}:so_far"), ty, ValueDef::Accumulator);
    let next = Append::new(graph, Phase::Backward, name).run(|a| {
        let x = a.cast(x, DType::F32)?;
        let x = if divided_by > 1.0 { a.with(F::Div, x, divided_by)? } else { x };
        a.map(F::Add, &[so_far, x])
    })?;
    graph.carried.push(Carried { state: so_far, next });
    Ok(next)
}

/// The names of an optimizer's state, behind the parameter's.
const fn states(rule: &Rule) -> &'static [&'static str] {
    match rule {
        Rule::Sgd { momentum, .. } if *momentum == 0.0 => &[],
        Rule::Sgd { .. } => &["momentum"],
        Rule::Adam { .. } => &["first_moment", "second_moment"],
    }
}

/// The f32 weight that a parameter follows: itself, or its master.
fn master(
    a: &mut Append<'_>,
    parameter: ValueId,
    masters: &BTreeMap<ValueId, Master>,
) -> Result<ValueId, TrainError> {
    let value = a.graph.value(parameter);
    let dtype = value.ty.dtype;
    if dtype == DType::F32 {
        return Ok(parameter);
    }
    let ty = TensorType::new(DType::F32, value.ty.shape.clone());
    let (name, source) = match (masters.get(&parameter), &value.def) {
        (Some(m), _) => (m.name.clone(), m.source.clone()),
        (None, ValueDef::Weight(source)) if matches!(dtype, DType::F16 | DType::BF16) => {
            let source = WeightSource::Cast { from: dtype, source: Box::new(source.clone()) };
            (format!("{}:master", value.name), source)
        }
        _ => return Err(TrainError::ParameterType { name: value.name.clone(), dtype }),
    };
    Ok(a.graph.add_value(name, ty, ValueDef::Weight(source)))
}

/// The sum of the squares of all elements of all gradients, in f32.
fn sum_of_squares(a: &mut Append<'_>, trained: &[Trained]) -> Result<ValueId, OpError> {
    let mut total: Option<ValueId> = None;
    for t in trained {
        let x = a.cast(t.gradient, DType::F32)?;
        let rank = a.graph.ty(x).rank() as u8;
        let letters: String = (0..rank).map(|d| char::from(b'a' + d)).collect();
        let op = Einsum { inputs: vec![letters.clone(), letters], output: String::new() };
        let square = a.push(op, &[x, x])?;
        total = Some(match total {
            Some(so_far) => a.map(F::Add, &[so_far, square])?,
            None => square,
        });
    }
    total.ok_or_else(|| OpError::Invalid("there is no gradient".into()))
}

/// The next factor of the loss and the next number of steps without overflow.
fn rescale(
    a: &mut Append<'_>,
    scale: ValueId,
    so_far: ValueId,
    is_good: ValueId,
) -> Result<(ValueId, ValueId), OpError> {
    let rule = LossScale::DYNAMIC;
    let more = a.with(F::Add, so_far, 1.0)?;
    let rises = a.with(F::GreaterOrEqual, more, rule.interval)?;
    let zero = a.scalar(DType::F32, 0.0)?;
    let up = a.with(F::Mul, scale, rule.growth)?;
    let up = a.map(F::Where, &[rises, up, scale])?;
    let down = a.with(F::Mul, scale, rule.backoff)?;
    let next_scale = a.map(F::Where, &[is_good, up, down])?;
    let more = a.map(F::Where, &[rises, zero, more])?;
    Ok((next_scale, a.map(F::Where, &[is_good, more, zero])?))
}
