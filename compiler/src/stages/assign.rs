//! In which part of a pipeline each node of a graph runs.
//!
//! The forward phase is cut at given places. What follows from nothing but inputs and constants (masks,
//! positions, the number of the step) is *shared*: every part that reads it makes it, which is cheaper than
//! sending it.
//!
//! A backward node runs in the last part in which everything that it reads of the forward phase is at hand,
//! no later than what it reads of the backward phase: the way back through an op lies where the op lies. An
//! update node runs where the largest thing that it reads is made: with its gradient.

use planc_ir::{Graph, NodeId, Phase, ValueDef, ValueId};
use std::collections::BTreeSet;

/// Where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In this part.
    Part(u32),
    /// In every part that reads its results.
    Shared,
}

/// The place of each node of a graph whose forward phase is cut before the nodes of these numbers, which
/// ascend. There is one part more than there are cuts.
pub fn assign(graph: &Graph, cuts: &[usize]) -> Vec<Place> {
    let is_shared = shared(graph);
    let last = cuts.len() as u32;
    let mut places: Vec<Place> = Vec::with_capacity(graph.nodes.len());
    // By value, the parts whose forward nodes make or read it.
    let mut at_hand: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        let made = |v: &ValueId| match graph.value(*v).def {
            ValueDef::Node { node, .. } => match places[node.index()] {
                Place::Part(part) => Some((*v, node, part)),
                Place::Shared => None,
            },
            _ => None,
        };
        let place = match node.phase {
            _ if is_shared[at] => Place::Shared,
            Phase::Forward => {
                let part = cuts.partition_point(|&cut| cut <= at) as u32;
                for v in node.inputs.iter().chain(&node.outputs) {
                    at_hand[v.index()].insert(part);
                }
                Place::Part(part)
            }
            Phase::Backward => {
                let is_backward = |id: NodeId| graph.node(id).phase == Phase::Backward;
                let operands = node.inputs.iter().filter_map(made);
                let latest = operands.filter(|m| is_backward(m.1)).map(|m| m.2).min();
                let latest = latest.unwrap_or(last);
                let needed: Vec<&BTreeSet<u32>> = (node.inputs.iter())
                    .filter(|v| match graph.value(**v).def {
                        ValueDef::Node { node, .. } => {
                            !is_shared[node.index()] && !is_backward(node)
                        }
                        ValueDef::Weight(_) | ValueDef::Input => true,
                        ValueDef::Constant(_) | ValueDef::Accumulator => false,
                    })
                    .map(|v| &at_hand[v.index()])
                    .filter(|parts| !parts.is_empty())
                    .collect();
                let is_fit = |part: &u32| needed.iter().all(|parts| parts.contains(part));
                Place::Part((0..=latest).rev().find(is_fit).unwrap_or(latest))
            }
            Phase::Update => {
                let largest = (node.inputs.iter().filter_map(made))
                    .max_by_key(|(v, _, part)| (graph.ty(*v).bytes(), *part));
                Place::Part(largest.map_or(0, |m| m.2))
            }
        };
        places.push(place);
    }
    places
}

/// By node: whether it follows from nothing but inputs, constants, and state that does.
fn shared(graph: &Graph) -> Vec<bool> {
    // State that follows from itself: what is not is struck out until nothing changes.
    let mut free: BTreeSet<ValueId> =
        graph.carried.iter().map(|c| c.state).filter(|&v| graph.ty(v).rank() == 0).collect();
    loop {
        let mut is_shared = vec![false; graph.nodes.len()];
        for (at, node) in graph.nodes.iter().enumerate() {
            let follows = |v: &ValueId| match graph.value(*v).def {
                ValueDef::Input | ValueDef::Constant(_) => true,
                ValueDef::Weight(_) | ValueDef::Accumulator => free.contains(v),
                ValueDef::Node { node, .. } => is_shared[node.index()],
            };
            is_shared[at] = node.inputs.iter().all(follows) && !is_costly(graph, NodeId(at as u32));
        }
        let follows = |v: ValueId| match graph.value(v).def {
            ValueDef::Node { node, .. } => is_shared[node.index()],
            _ => false,
        };
        let held: Vec<ValueId> = (graph.carried.iter())
            .filter(|c| free.contains(&c.state) && !follows(c.next))
            .map(|c| c.state)
            .collect();
        if held.is_empty() {
            return is_shared;
        }
        for v in held {
            free.remove(&v);
        }
    }
}

/// Whether making it several times would cost more than sending it.
fn is_costly(graph: &Graph, id: NodeId) -> bool {
    if graph.is_dynamic(id) {
        return true;
    }
    graph.node(id).op.work(&graph.input_types(id), &graph.output_types(id)).kind.is_matrix()
}
