//! Bytes of activations: what nodes make, without weights, constants and inputs.

use planc_ir::{Graph, ValueId};

/// Bytes of all results together; those of unknown extents do not count.
pub fn total_bytes(graph: &Graph) -> u64 {
    let results = graph.nodes.iter().flat_map(|n| &n.outputs);
    results.fold(0, |sum, &v| sum.saturating_add(bytes(graph, v)))
}

/// The most that is live at once, if nodes run in order and results go after their last use.
pub fn peak_bytes(graph: &Graph) -> u64 {
    let mut last_use = vec![None; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for &v in node.outputs.iter().chain(&node.inputs) {
            last_use[v.index()] = Some(at);
        }
    }
    for &v in &graph.outputs {
        last_use[v.index()] = None; // to the end
    }
    let mut dies: Vec<Vec<ValueId>> = vec![Vec::new(); graph.nodes.len()];
    for &v in graph.nodes.iter().flat_map(|n| &n.outputs) {
        if let Some(at) = last_use[v.index()] {
            dies[at].push(v);
        }
    }
    let (mut live, mut peak) = (0u64, 0u64);
    for (node, dying) in graph.nodes.iter().zip(&dies) {
        for &v in &node.outputs {
            live = live.saturating_add(bytes(graph, v));
        }
        peak = peak.max(live);
        for &v in dying {
            live = live.saturating_sub(bytes(graph, v));
        }
    }
    peak
}

fn bytes(graph: &Graph, v: ValueId) -> u64 {
    match graph.value(v).extents {
        planc_ir::Extents::Static => graph.ty(v).bytes(),
        planc_ir::Extents::Dynamic => 0,
    }
}
