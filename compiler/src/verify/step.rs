//! The numbers of a training step: its outputs, and all state after it.
//!
//! The step starts where rounding decides little: second moments, whose root is divided by, are far from
//! zero. The learning rate is large, so that an update shows in the parameter.

use super::compare::{Comparison, Tolerance, compare, random_inputs};
use super::numbers::{Loaded, constants, in_order, named};
use super::{Graphs, VerifyError};
use planc_ir::graph::{Graph, ValueDef};
use planc_ir::interp::evaluate_step;
use planc_ir::ops::Op;
use planc_ir::ops::optimizer_step::{FIRST_STATE, Rule};
use planc_ir::plan::Stage;
use planc_ir::{DType, EvalError, Tensor, ValueId};
use planc_runtime::{Executor, RunError};
use std::collections::BTreeMap;

const LEARNING_RATE: f64 = 0.5;

/// Differences that count for nothing, whatever the tensor's elements: gradients that are zero but for rounding.
const ROUNDING: f64 = 1e-6;

/// Runs a step of the stages' programs and of the reference on the same random inputs; the largest difference.
pub(super) fn run(
    graphs: &Graphs,
    learning_rate: &str,
    stages: Vec<Stage>,
    mut weights: BTreeMap<String, Tensor>,
    seed: u64,
) -> Result<Comparison, VerifyError> {
    for v in second_moments(&graphs.planned) {
        let value = graphs.planned.value(v);
        let mut rng = fastrand::Rng::with_seed(seed ^ u64::from(v.0));
        let start = Tensor::from_f64(value.ty.clone(), |_| 0.5 + rng.f64())?;
        weights.insert(value.name.clone(), start);
    }
    let named = named(&graphs.reference);
    let batches = (0..u64::from(graphs.reference.micro_batches)).map(|m| {
        let mut inputs = random_inputs(&named, seed.wrapping_add(m))?;
        for tensor in inputs.values_mut() {
            *tensor = seeing(tensor)?;
        }
        if let Some(rate) = inputs.get_mut(learning_rate) {
            *rate = Tensor::from_f64(rate.ty().clone(), |_| LEARNING_RATE)?;
        }
        Ok(inputs)
    });
    let batches: Vec<BTreeMap<String, Tensor>> = batches.collect::<Result<_, VerifyError>>()?;
    let ordered = |inputs: &BTreeMap<String, Tensor>| -> Vec<Tensor> {
        named.iter().filter_map(|n| inputs.get(&n.name).cloned()).collect()
    };
    let ordered: Vec<Vec<Tensor>> = batches.iter().map(ordered).collect();
    let expected = evaluate_step(&graphs.reference, &ordered, &Loaded(&weights))?;
    let constants = constants(&graphs.planned);
    let mut executor = Executor::of_stages(stages, &graphs.channels, &weights, &constants)?;
    let outputs = in_order(&graphs.planned, executor.step(&batches)?)?;

    let relative = relative(&graphs.reference);
    let mut worst = Comparison { max_abs: 0.0, max_rel: 0.0, equal: true };
    let mut against = |found: &Tensor, expected: &Tensor| {
        let sizes = (0..expected.len()).map(|i| expected.f64_at(i).abs());
        let largest = sizes.filter(|x| x.is_finite()).fold(0.0, f64::max);
        let tolerance = Tolerance { atol: ROUNDING + relative * largest, rtol: 0.0 };
        let c = compare(found, expected, tolerance);
        worst.max_abs = worst.max_abs.max(c.max_abs);
        worst.max_rel = worst.max_rel.max(c.max_rel);
        worst.equal &= c.equal;
    };
    for (found, expected) in outputs.iter().zip(&expected.outputs) {
        against(found, expected);
    }
    for (name, expected) in &expected.next {
        let bytes = executor.weight_bytes(name)?;
        let found = Tensor::from_bytes(expected.ty().clone(), &bytes)
            .map_err(|source| RunError::Output { name: name.clone(), source })?;
        against(&found, expected);
    }
    Ok(worst)
}

/// A tensor whose integers begin with 1 in each row: in a mask, every query then sees a key, if only the first.
/// The gradient of one that sees none depends on how its scores are masked, which raising may change.
fn seeing(tensor: &Tensor) -> Result<Tensor, EvalError> {
    let ty = tensor.ty();
    let row = ty.shape.last().map_or(1, |&n| n.max(1) as usize);
    if ty.dtype.is_float() {
        return Ok(tensor.clone());
    }
    Tensor::from_int(ty.clone(), |i| if i % row == 0 { 1 } else { tensor.int_at(i) })
}

fn second_moments(graph: &Graph) -> impl Iterator<Item = ValueId> {
    graph.nodes.iter().filter_map(|node| match &node.op {
        Op::OptimizerStep(op) if matches!(op.rule, Rule::Adam { .. }) => {
            let v = *node.inputs.get(FIRST_STATE + 1)?;
            matches!(graph.value(v).def, ValueDef::Weight(_)).then_some(v)
        }
        _ => None,
    })
}

/// What rounding in another order may change, as a part of a tensor's largest element.
fn relative(graph: &Graph) -> f64 {
    let made = |dtype: DType| {
        graph.nodes.iter().flat_map(|n| &n.outputs).any(|&v| graph.ty(v).dtype == dtype)
    };
    if made(DType::BF16) {
        1e-1
    } else if made(DType::F16) {
        2e-2
    } else {
        1e-4
    }
}
