//! Dropout in a training step: every node draws anew in each micro-batch of each step.
//!
//! As imported, a dropout has its place in the model as its seed and draws as in step 0. Here the recipe's seed
//! joins the place, and the number of the micro-batch, counted from the first of the first step, takes the place
//! of the step: how many the steps before had, which is state, and how many this one had so far, which is
//! accumulated.

use super::TrainError;
use super::append::Append;
use planc_ir::finish::prune;
use planc_ir::graph::{Carried, Graph, Phase, ValueDef, ValueId};
use planc_ir::ops::map::Map;
use planc_ir::ops::{Build, Op};
use planc_ir::scalar::ScalarFn as F;
use planc_ir::{DType, TensorType};

/// Makes the dropout of a model draw by this seed, or drop nothing. The state that counts micro-batches is
/// returned if the loss depends on any dropout; the update is to [`advance`] it.
///
/// # Errors
/// None in practice.
pub fn draw(
    graph: &mut Graph,
    loss: ValueId,
    seed: Option<u32>,
    micro_batches: u32,
) -> Result<Option<ValueId>, TrainError> {
    let Some(seed) = seed else {
        for node in &mut graph.nodes {
            if matches!(node.op, Op::Dropout(_)) {
                node.op = Map { f: F::Identity }.into();
                node.inputs.truncate(1);
            }
        }
        return Ok(None);
    };
    let needed = prune(Graph { outputs: vec![loss], ..graph.clone() });
    if !needed.nodes.iter().any(|n| matches!(n.op, Op::Dropout(_))) {
        return Ok(None);
    }
    let mut a = Append::new(graph, Phase::Forward, "dropout");
    let before = a.state("dropout:micro_batches".into(), scalar(), 0.0);
    let number = if micro_batches > 1 { numbered(graph, before)? } else { before };
    for node in &mut graph.nodes {
        if let (Op::Dropout(op), [_, step]) = (&mut node.op, &mut node.inputs[..]) {
            op.seed |= u64::from(seed) << 32;
            *step = number;
        }
    }
    Ok(Some(before))
}

/// Counts the micro-batches of a step.
///
/// # Errors
/// None in practice.
pub fn advance(graph: &mut Graph, state: ValueId, micro_batches: u32) -> Result<(), TrainError> {
    let next = Append::new(graph, Phase::Update, "dropout:micro_batches")
        .run(|a| a.with(F::Add, state, micro_batches.into()))?;
    graph.carried.push(Carried { state, next });
    Ok(())
}

const fn scalar() -> TensorType {
    TensorType { dtype: DType::I64, shape: Vec::new() }
}

/// The number of the micro-batch, after those `before` the step, in front of all other nodes.
fn numbered(graph: &mut Graph, before: ValueId) -> Result<ValueId, TrainError> {
    let so_far = graph.add_value("dropout:so_far", scalar(), ValueDef::Accumulator);
    let known = graph.values.len();
    let nodes = std::mem::take(&mut graph.nodes);
    let (number, next) = Append::new(graph, Phase::Forward, "dropout").run(|a| {
        let number = a.map(F::Add, &[before, so_far])?;
        Ok((number, a.with(F::Add, so_far, 1.0)?))
    })?;
    graph.carried.push(Carried { state: so_far, next });
    let inserted = graph.nodes.len() as u32;
    for value in &mut graph.values[..known] {
        if let ValueDef::Node { node, .. } = &mut value.def {
            node.0 += inserted;
        }
    }
    graph.nodes.extend(nodes);
    Ok(number)
}
