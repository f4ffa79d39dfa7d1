//! Distinct blocks and their repeats, as a person counts layers.

use crate::report::layers::collapse;
use crate::search::blocks::Blocks;
use planc_ir::{Graph, Node};
use serde::Serialize;
use std::collections::BTreeMap;

/// The shortest run of nodes that counts as a block.
const LEAST_NODES: usize = 4;

/// A distinct block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layers {
    /// How often it stands in a row; a run may end with a part of the block.
    pub repeats: u64,
    /// Nodes in it.
    pub nodes: u64,
    /// What the names of its nodes have in common, digits replaced by `*`; may be empty.
    pub name: String,
    /// Its ops.
    pub ops: BTreeMap<String, u64>,
}

/// The blocks of a graph in order; last, what belongs to none.
pub fn layers(graph: &Graph) -> Vec<Layers> {
    let blocks = Blocks::with_period(graph, LEAST_NODES);
    let mut in_run = vec![false; graph.nodes.len()];
    let mut found = Vec::new();
    for run in &blocks.runs {
        in_run[run.start..run.start + run.nodes].fill(true);
        let block = &graph.nodes[run.start..run.start + run.period];
        found.push(layer((run.nodes / run.period) as u64, block.iter()));
    }
    let rest = graph.nodes.iter().zip(&in_run).filter(|(_, inside)| !**inside);
    let rest = layer(1, rest.map(|(node, _)| node));
    if rest.nodes > 0 {
        found.push(Layers { name: String::new(), ..rest });
    }
    found
}

fn layer<'a>(repeats: u64, nodes: impl Iterator<Item = &'a Node> + Clone) -> Layers {
    let mut ops = BTreeMap::new();
    for node in nodes.clone() {
        *ops.entry(node.op.name().to_string()).or_insert(0) += 1;
    }
    let labels = nodes.clone().map(|n| if n.scope.is_empty() { &n.name } else { &n.scope });
    let name = common_prefix(labels.map(|label| collapse(label)));
    Layers { repeats, nodes: nodes.count() as u64, name, ops }
}

/// The parts, between dots and slashes, with which all labels begin.
fn common_prefix(mut labels: impl Iterator<Item = String>) -> String {
    let Some(mut prefix) = labels.next() else { return String::new() };
    for label in labels {
        let same = prefix.chars().zip(label.chars()).take_while(|(a, b)| a == b);
        let length: usize = same.map(|(c, _)| c.len_utf8()).sum();
        let whole = |s: &str| s.len() == length || s[length..].starts_with(['.', '/']);
        if whole(&prefix) && whole(&label) {
            prefix.truncate(length);
        } else {
            let end = prefix[..length].rfind(['.', '/']).unwrap_or(0);
            prefix.truncate(end);
        }
    }
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_between_parts() {
        let of = |labels: &[&str]| common_prefix(labels.iter().map(ToString::to_string));
        assert_eq!(of(&["h.*.attn.q", "h.*.attn.k", "h.*.mlp"]), "h.*");
        assert_eq!(of(&["h.*.attn", "h.*.attn.k"]), "h.*.attn");
        assert_eq!(of(&["h.*.at", "h.*.attn"]), "h.*");
        assert_eq!(of(&["a", "b"]), "");
        assert_eq!(of(&[]), "");
    }
}
