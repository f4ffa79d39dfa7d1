//! What lies where state lies: facts about a graph that pricing memory needs.

use planc_ir::graph::{Carried, Graph, ValueDef, ValueId};
use planc_ir::program::Kernel;

/// State, and how what it becomes is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// The state and what it becomes.
    pub carried: Carried,
    /// The node that makes what it becomes; `None` if it is loaded.
    pub maker: Option<usize>,
    /// Whether it is written where the state lies as soon as it is there. Else it is copied there in the
    /// end, and takes memory of its own until then.
    pub in_place: bool,
}

/// All state of a graph, in its order.
pub fn next_values(graph: &Graph) -> Vec<Next> {
    let mut last_reader = vec![None; graph.values.len()];
    let mut is_viewed = vec![false; graph.values.len()];
    // Who reads a copy may read the storage of what was copied.
    let mut named: Vec<usize> = (0..graph.values.len()).collect();
    for (at, node) in graph.nodes.iter().enumerate() {
        let is_view = matches!(node.op.lower(), Kernel::Copy);
        for v in &node.inputs {
            last_reader[named[v.index()]] = Some(at);
            is_viewed[v.index()] |= is_view;
        }
        for v in &node.outputs {
            is_viewed[v.index()] |= is_view;
            if let (true, Some(from)) = (is_view, node.inputs.first()) {
                named[v.index()] = named[from.index()];
            }
        }
    }
    let mut taken = vec![false; graph.values.len()];
    let mut next = |&carried: &Carried| {
        let Carried { state, next } = carried;
        let maker = match graph.value(next).def {
            ValueDef::Node { node, .. } => Some(node.index()),
            _ => None,
        };
        let is_free = maker.is_some_and(|maker| match last_reader[state.index()] {
            Some(reader) if reader == maker => graph.nodes[maker].op.lower().is_elementwise(),
            reader => reader.is_none_or(|reader| reader < maker),
        });
        let is_output = |v: ValueId| graph.outputs.contains(&v);
        let is_first = !std::mem::replace(&mut taken[next.index()], true);
        let is_own = !is_viewed[next.index()] && !is_output(state) && !is_output(next);
        let in_place = is_free && is_first && is_own;
        Next { carried, maker, in_place }
    };
    graph.carried.iter().map(&mut next).collect()
}
