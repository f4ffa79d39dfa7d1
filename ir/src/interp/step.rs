//! Evaluating a training step.

use super::{InterpError, evaluate};
use crate::Tensor;
use crate::finish::prune;
use crate::graph::{Carried, Graph, ValueDef};
use crate::weights::Weights;
use std::collections::BTreeMap;

/// What a step gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The graph's outputs.
    pub outputs: Vec<Tensor>,
    /// What state becomes, by the state's name.
    pub next: BTreeMap<String, Tensor>,
}

/// Evaluates a step: forward and backward on the inputs of each micro-batch, then the update.
///
/// # Errors
/// If there are more or fewer micro-batches than the step has, and as [`evaluate`].
pub fn evaluate_step(
    graph: &Graph,
    micro_batches: &[Vec<Tensor>],
    weights: &dyn Weights,
) -> Result<Evaluated, InterpError> {
    let (expected, found) = (graph.micro_batches as usize, micro_batches.len());
    let (last, before) = match micro_batches.split_last() {
        Some(split) if expected == found => split,
        _ => return Err(InterpError::MicroBatches { expected, found }),
    };
    // Sums so far come in as inputs and leave as outputs.
    let mut whole = Graph { carried: Vec::new(), ..graph.clone() };
    let (mut sums, mut states): (Vec<Carried>, Vec<Carried>) = (Vec::new(), Vec::new());
    let mut so_far = Vec::new();
    for &c in &graph.carried {
        let state = whole.values.get_mut(c.state.index());
        let state = state.ok_or(InterpError::Malformed("no such state"))?;
        if matches!(state.def, ValueDef::Accumulator) {
            let name = || state.name.clone();
            let zeros = Tensor::zeros(state.ty.clone());
            so_far.push(zeros.map_err(|e| InterpError::Weight { name: name(), source: e.into() })?);
            state.def = ValueDef::Input;
            whole.inputs.push(c.state);
            sums.push(c);
        } else {
            states.push(c);
        }
    }
    let outputs = sums.iter().map(|c| c.next).collect();
    let repeated = prune(Graph { outputs, ..whole.clone() });
    for inputs in before {
        so_far = evaluate(&repeated, &[inputs.as_slice(), &so_far].concat(), weights)?;
    }
    whole.outputs.extend(states.iter().map(|c| c.next));
    let mut all = evaluate(&whole, &[last.as_slice(), &so_far].concat(), weights)?;
    let next = all.split_off(graph.outputs.len());
    let names = states.iter().map(|c| graph.value(c.state).name.clone());
    Ok(Evaluated { outputs: all, next: names.zip(next).collect() })
}
