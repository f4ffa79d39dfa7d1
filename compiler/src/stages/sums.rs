//! Gradients of what several parts read, summed over micro-batches by each of them.
//!
//! The gradient of a weight that two parts read (an embedding that is the head too) is the sum of what both
//! find. As it is made, that sum is taken in each micro-batch, so one part would have to send its summand each
//! time. Here each part sums its own over the micro-batches, and what they found is added once a step.

use super::assign::{Place, assign};
use planc_ir::graph::Node;
use planc_ir::ops::Op;
use planc_ir::ops::map::Map;
use planc_ir::scalar::ScalarFn;
use planc_ir::{Carried, Graph, NodeId, Phase, ValueDef, ValueId};
use std::collections::BTreeMap;

/// A sum over micro-batches whose summands are found in several parts.
struct Split {
    /// Index among what is carried.
    carried: usize,
    /// The summands, each of another part, the first of which stays where it was.
    summands: Vec<ValueId>,
    /// What is done to their sum before it is added up: nodes of one operand that counts.
    chain: Vec<NodeId>,
}

/// The graph in which no part sends a summand of a sum over micro-batches for each of them.
pub fn split_sums(graph: &Graph, cuts: &[usize]) -> Graph {
    let places = assign(graph, cuts);
    let found: Vec<Split> =
        (0..graph.carried.len()).filter_map(|c| split(graph, &places, c)).collect();
    if found.is_empty() {
        return graph.clone();
    }
    let mut result = Graph { nodes: Vec::new(), ..graph.clone() };
    // By what a sum came to: what its parts came to.
    let mut partial: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    let mut total: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for node in &graph.nodes {
        if node.phase == Phase::Update && total.is_empty() {
            for (&next, parts) in &partial {
                let all = parts.iter().copied();
                let sum = all.reduce(|so_far, x| {
                    let name = format!("{}:total", graph.value(next).name);
                    let op = Op::from(Map { f: ScalarFn::Add });
                    push(&mut result, name, op, Phase::Update, &[so_far, x], next)
                });
                total.extend(sum.map(|sum| (next, sum)));
            }
        }
        let mut node = node.clone();
        if node.phase == Phase::Update {
            for v in &mut node.inputs {
                *v = total.get(v).copied().unwrap_or(*v);
            }
        }
        let next = node.outputs.first().copied();
        let split = found.iter().find(|s| Some(graph.carried[s.carried].next) == next);
        append(&mut result, node);
        if let (Some(split), Some(next)) = (split, next) {
            let parts = apart(graph, &mut result, split);
            partial.insert(next, parts);
        }
    }
    planc_ir::finish::prune(result)
}

/// Makes the sums of a split, and returns what they come to.
fn apart(graph: &Graph, result: &mut Graph, split: &Split) -> Vec<ValueId> {
    let Carried { state, next } = graph.carried[split.carried];
    let mut sums = Vec::with_capacity(split.summands.len());
    for (i, &summand) in split.summands.iter().enumerate() {
        let suffix = if i == 0 { String::new() } else { format!(":{i}") };
        let state_here = if i == 0 {
            state
        } else {
            let value = graph.value(state).clone();
            result.add_value(format!("{}{suffix}", value.name), value.ty, value.def)
        };
        let mut at = summand;
        for &id in &split.chain {
            let node = graph.node(id);
            let inputs: Vec<ValueId> =
                (node.inputs.iter()).map(|&v| if matters(graph, v) { at } else { v }).collect();
            let like = node.outputs[0];
            let name = format!("{}{suffix}:apart", node.name);
            at = push(result, name, node.op.clone(), node.phase, &inputs, like);
        }
        let name = format!("{}{suffix}:apart", graph.value(next).name);
        let op = Op::from(Map { f: ScalarFn::Add });
        let sum = push(result, name, op, Phase::Backward, &[state_here, at], next);
        if i == 0 {
            result.carried[split.carried].next = sum;
        } else {
            result.carried.push(Carried { state: state_here, next: sum });
        }
        sums.push(sum);
    }
    sums
}

/// Whether a value is more than a constant.
fn matters(graph: &Graph, v: ValueId) -> bool {
    !matches!(graph.value(v).def, ValueDef::Constant(_))
}

fn append(graph: &mut Graph, node: Node) {
    let id = NodeId(graph.nodes.len() as u32);
    for (output, v) in node.outputs.iter().enumerate() {
        graph.values[v.index()].def = ValueDef::Node { node: id, output: output as u32 };
    }
    graph.nodes.push(node);
}

/// Appends a node with one result, of the type of another value.
fn push(
    graph: &mut Graph,
    name: String,
    op: Op,
    phase: Phase,
    inputs: &[ValueId],
    like: ValueId,
) -> ValueId {
    let v = ValueId(graph.values.len() as u32);
    let mut value = graph.value(like).clone();
    value.name.clone_from(&name);
    graph.values.push(value);
    let (inputs, outputs) = (inputs.to_vec(), vec![v]);
    append(graph, Node { name, scope: String::new(), phase, op, inputs, outputs });
    v
}

/// How a carried sum is split, if parts find its summands.
fn split(graph: &Graph, places: &[Place], carried: usize) -> Option<Split> {
    let Carried { state, next } = graph.carried[carried];
    let is_add = |id: NodeId| matches!(&graph.node(id).op, Op::Map(m) if m.f == ScalarFn::Add);
    let maker = |v: ValueId| match graph.value(v).def {
        ValueDef::Node { node, .. } => Some(node),
        _ => None,
    };
    if !matches!(graph.value(state).def, ValueDef::Accumulator) {
        return None;
    }
    let last = maker(next).filter(|&id| is_add(id) && graph.node(id).inputs.contains(&state))?;
    let mut at = *graph.node(last).inputs.iter().find(|v| **v != state)?;
    let mut chain = Vec::new();
    loop {
        let id = maker(at).filter(|&id| graph.node(id).phase == Phase::Backward)?;
        let node = graph.node(id);
        let operands: Vec<ValueId> =
            node.inputs.iter().copied().filter(|&v| matters(graph, v)).collect();
        match operands[..] {
            [only] if is_linear(&node.op) && node.inputs[0] == only => {
                chain.push(id);
                at = only;
            }
            [_, _] if is_add(id) => break,
            _ => return None,
        }
    }
    chain.reverse();
    // The summands by part, what a part adds up already as one.
    let mut open = vec![at];
    let mut summands: BTreeMap<Place, Vec<ValueId>> = BTreeMap::new();
    while let Some(v) = open.pop() {
        let id = maker(v)?;
        let node = graph.node(id);
        let place = |v: &ValueId| maker(*v).map(|id| places[id.index()]);
        let crosses = node.inputs.iter().any(|x| place(x) != Some(places[id.index()]));
        if is_add(id) && crosses && node.phase == Phase::Backward {
            open.extend(&node.inputs);
        } else {
            summands.entry(places[id.index()]).or_default().push(v);
        }
    }
    let is_apart = summands.len() > 1 && summands.values().all(|s| s.len() == 1);
    is_apart.then(|| Split { carried, summands: summands.into_values().flatten().collect(), chain })
}

/// Whether an op whose other operands are constants commutes with sums of the first.
fn is_linear(op: &Op) -> bool {
    use ScalarFn::{Cast, Div, Identity, Mul};
    match op {
        Op::Map(m) => matches!(m.f, Div | Mul | Identity | Cast(_)),
        Op::Reshape(_) => true,
        _ => false,
    }
}
