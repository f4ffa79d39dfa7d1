//! Removes what no output needs, and makes names unique.

use crate::graph::{Carried, Graph, Node, NodeId, Value, ValueDef, ValueId};
use std::collections::HashMap;

/// Drops nodes, weights and constants that no output and no state needs. Inputs stay: they are the
/// signature.
pub fn prune(graph: Graph) -> Graph {
    let mut needed = vec![false; graph.values.len()];
    let carried = graph.carried.iter().flat_map(|c| [&c.state, &c.next]);
    for v in graph.inputs.iter().chain(&graph.outputs).chain(carried) {
        needed[v.index()] = true;
    }
    let mut kept = vec![false; graph.nodes.len()];
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        // What has no results does something elsewhere.
        if node.outputs.is_empty() || node.outputs.iter().any(|v| needed[v.index()]) {
            kept[id.index()] = true;
            for v in node.inputs.iter().chain(&node.outputs) {
                needed[v.index()] = true;
            }
        }
    }
    let values = renumber(&needed);
    let nodes = renumber(&kept);
    let value = |v: ValueId| ValueId(values[v.index()]);
    let list = |l: &[ValueId]| l.iter().map(|&v| value(v)).collect::<Vec<_>>();
    Graph {
        inputs: list(&graph.inputs),
        outputs: list(&graph.outputs),
        nodes: graph
            .nodes
            .into_iter()
            .zip(&kept)
            .filter(|(_, kept)| **kept)
            .map(|(n, _)| Node { inputs: list(&n.inputs), outputs: list(&n.outputs), ..n })
            .collect(),
        values: graph
            .values
            .into_iter()
            .zip(&needed)
            .filter(|(_, needed)| **needed)
            .map(|(v, _)| match v.def {
                ValueDef::Node { node, output } => {
                    let node = NodeId(nodes[node.index()]);
                    Value { def: ValueDef::Node { node, output }, ..v }
                }
                _ => v,
            })
            .collect(),
        carried: graph
            .carried
            .iter()
            .map(|c| Carried { state: value(c.state), next: value(c.next) })
            .collect(),
        micro_batches: graph.micro_batches,
        under_way: graph.under_way,
        name: graph.name,
    }
}

/// New numbers for what is kept.
fn renumber(kept: &[bool]) -> Vec<u32> {
    let mut next = 0;
    let number = |&kept: &bool| {
        next += u32::from(kept);
        next.saturating_sub(1)
    };
    kept.iter().map(number).collect()
}

/// Makes the names of values and those of nodes unique by numbering repeated ones: exporters slip,
/// and branches that were inlined repeat names. Inputs, weights and outputs keep theirs.
pub fn unique_names(graph: &mut Graph) {
    let mut fixed = vec![false; graph.values.len()];
    for v in graph.outputs.iter().chain(&graph.inputs) {
        fixed[v.index()] = true;
    }
    for (fixed, value) in fixed.iter_mut().zip(&graph.values) {
        *fixed |= matches!(value.def, ValueDef::Weight(_));
    }
    let mut names = Names::default();
    for fixed_first in [true, false] {
        let turn = graph.values.iter_mut().zip(&fixed).filter(|(_, f)| **f == fixed_first);
        turn.for_each(|(value, _)| names.claim(&mut value.name));
    }
    let mut names = Names::default();
    graph.nodes.iter_mut().for_each(|node| names.claim(&mut node.name));
}

/// Names in use, and the last number tried behind each.
#[derive(Default)]
struct Names(HashMap<String, u64>);

impl Names {
    fn claim(&mut self, name: &mut String) {
        if !self.0.contains_key(name.as_str()) {
            self.0.insert(name.clone(), 1);
            return;
        }
        let mut number = self.0[name.as_str()];
        let free = loop {
            number += 1;
            let candidate = format!("{name}#{number}");
            if !self.0.contains_key(&candidate) {
                break candidate;
            }
        };
        self.0.insert(std::mem::replace(name, free.clone()), number);
        self.0.insert(free, 1);
    }
}
