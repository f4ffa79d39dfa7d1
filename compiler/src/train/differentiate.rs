//! Reverse-mode differentiation: walks the forward nodes backwards and asks each op for its
//! vector-Jacobian product.
//!
//! A node is differentiated if its result depends on a wanted value and the loss on its result. Gradients of
//! a value that several nodes read are added up as they come, so that no more than one is held.

use super::TrainError;
use planc_ir::graph::{Graph, Phase, ValueId};
use planc_ir::ops::map::Map;
use planc_ir::ops::{Op, Vjp};
use planc_ir::scalar::ScalarFn;
use planc_ir::{NodeId, OpError};
use std::collections::BTreeMap;

/// Appends what computes the gradients of a scalar with respect to the wanted values, and returns those that
/// are not zero. `seeds` are gradients with respect to values that the scalar is computed from.
///
/// As soon as a wanted value's gradient is complete, `finish` may append what follows from it, and says
/// which value stands for the gradient from there on.
///
/// # Errors
/// If an op in between has no gradient, and what `finish` says.
pub fn differentiate(
    graph: &mut Graph,
    seeds: &[(ValueId, ValueId)],
    wanted: &[ValueId],
    finish: &mut dyn FnMut(&mut Graph, ValueId, ValueId) -> Result<ValueId, TrainError>,
) -> Result<BTreeMap<ValueId, ValueId>, TrainError> {
    let active = active(graph, wanted);
    let mut backward = Backward { active, gradients: vec![None; graph.values.len()] };
    let first = graph.nodes.len();
    for &(value, gradient) in seeds {
        backward.add(graph, value, gradient, "loss")?;
    }
    let mut complete_after = first_readers(graph, wanted);
    let mut found = BTreeMap::new();
    for at in (0..first).rev() {
        backward.node(graph, NodeId(at as u32))?;
        for v in complete_after.remove(&at).unwrap_or_default() {
            if let Some(gradient) = backward.gradients[v.index()] {
                found.insert(v, finish(graph, v, gradient)?);
            }
        }
    }
    for node in &mut graph.nodes[first..] {
        node.phase = Phase::Backward;
    }
    Ok(found)
}

/// The first node that reads each wanted value: walking backwards, nothing is added to the value's gradient
/// after it.
fn first_readers(graph: &Graph, wanted: &[ValueId]) -> BTreeMap<usize, Vec<ValueId>> {
    let mut first: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        for &v in &node.inputs {
            first.entry(v).or_insert(at);
        }
    }
    let mut readers: BTreeMap<usize, Vec<ValueId>> = BTreeMap::new();
    for &v in wanted {
        if let Some(&at) = first.get(&v) {
            readers.entry(at).or_default().push(v);
        }
    }
    readers
}

/// By value: whether it is a wanted one or depends on one in a way that has gradients.
fn active(graph: &Graph, wanted: &[ValueId]) -> Vec<bool> {
    let mut active = vec![false; graph.values.len()];
    for v in wanted {
        active[v.index()] = true;
    }
    for node in &graph.nodes {
        if node.inputs.iter().any(|v| active[v.index()]) {
            for &v in &node.outputs {
                active[v.index()] = graph.ty(v).dtype.is_float();
            }
        }
    }
    active
}

struct Backward {
    active: Vec<bool>,
    /// By value of the forward phase: its gradient so far.
    gradients: Vec<Option<ValueId>>,
}

impl Backward {
    fn node(&mut self, graph: &mut Graph, id: NodeId) -> Result<(), TrainError> {
        let node = graph.node(id);
        let (inputs, outputs) = (node.inputs.clone(), node.outputs.clone());
        let gradients: Vec<_> = outputs.iter().map(|v| self.gradients[v.index()]).collect();
        let is_active = outputs.iter().any(|v| self.active[v.index()]);
        if !is_active || gradients.iter().all(Option::is_none) {
            return Ok(());
        }
        let (op, name) = (node.op.clone(), node.name.clone());
        let wanted: Vec<bool> = inputs.iter().map(|v| self.active[v.index()]).collect();
        let gradient_name = format!("{name}:gradient");
        let mut vjp = Vjp {
            graph,
            name: &gradient_name,
            inputs: inputs.clone(),
            outputs,
            gradients,
            wanted: wanted.clone(),
        };
        let failed = |why| TrainError::Gradient { node: name.clone(), op: op.name(), why };
        let found = op.vjp(&mut vjp).map_err(failed)?;
        if found.len() != inputs.len() {
            let why = format!("has {} gradients for {} operands", found.len(), inputs.len());
            return Err(failed(OpError::Invalid(why)));
        }
        for ((&v, gradient), wanted) in inputs.iter().zip(found).zip(wanted) {
            if let Some(gradient) = gradient.filter(|_| wanted) {
                self.add(graph, v, gradient, &gradient_name)?;
            }
        }
        Ok(())
    }

    /// Adds to a value's gradient.
    fn add(
        &mut self,
        graph: &mut Graph,
        v: ValueId,
        gradient: ValueId,
        name: &str,
    ) -> Result<(), TrainError> {
        let failed = |why| TrainError::Build { at: name.to_string(), why };
        let (expected, found) = (graph.ty(v), graph.ty(gradient));
        if expected != found {
            let value = &graph.value(v).name;
            let why = format!("the gradient of `{value}` is {found}, not {expected}");
            return Err(failed(OpError::Invalid(why)));
        }
        let sum = match self.gradients[v.index()] {
            None => gradient,
            Some(so_far) => {
                let op = Op::from(Map { f: ScalarFn::Add });
                let sum = graph.push(format!("{name}:sum"), op, &[so_far, gradient], &[]);
                sum.map_err(failed)?[0]
            }
        };
        self.gradients[v.index()] = Some(sum);
        Ok(())
    }
}
