//! Computing again in the backward phase what is not kept.
//!
//! A forward node that is *recomputed* is copied into the backward phase, just before the first node there
//! that reads its result, with all that it needs and that is recomputed too. What the copies read in the end
//! is kept: inputs, weights, and results of nodes that are not recomputed.

use crate::search::blocks::Blocks;
use planc_ir::graph::{Graph, Node, NodeId, Phase, ValueDef, ValueId};
use planc_ir::ops::Op;
use planc_ir::ops::work::WorkKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// What is recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing: every result that the backward phase reads is kept.
    #[default]
    Nothing,
    /// In the repeated blocks what takes no matrix product: norms, activations, layout. Results of matrix
    /// products are kept, and what later blocks read.
    Cheap,
    /// In this many of the repeated blocks everything but what later blocks read; elsewhere nothing.
    Blocks(u32),
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Cheap => f.write_str("all but matrix products"),
            Self::Blocks(1) => f.write_str("1 block"),
            Self::Blocks(n) => write!(f, "{n} blocks"),
        }
    }
}

/// The repeated blocks of the forward phase, cut where least crosses from one to the next.
pub fn blocks(graph: &Graph) -> Vec<std::ops::Range<usize>> {
    let forward = forward_nodes(graph);
    let crossing = crossing_bytes(graph, forward);
    let mut found = Vec::new();
    for run in &Blocks::with_period(graph, LEAST_NODES).runs {
        let end = (run.start + run.nodes).min(forward);
        if run.start + 2 * run.period > end {
            continue;
        }
        let offset = (0..run.period)
            .min_by_key(|o| crossing[run.start + o + run.period.min(end - run.start - o)]);
        let mut at = run.start + offset.unwrap_or(0);
        if at > run.start {
            found.push(run.start..at);
        }
        while at < end {
            let next = (at + run.period).min(end);
            found.push(at..next);
            at = next;
        }
    }
    found
}

/// The shortest run of nodes that counts as a block.
const LEAST_NODES: usize = 4;

fn forward_nodes(graph: &Graph) -> usize {
    graph.nodes.partition_point(|n| n.phase == Phase::Forward)
}

/// Before each forward node, the bytes of results made before that forward nodes still read.
fn crossing_bytes(graph: &Graph, forward: usize) -> Vec<u64> {
    let mut last_read = vec![0; graph.values.len()];
    for (at, node) in graph.nodes[..forward].iter().enumerate() {
        node.inputs.iter().for_each(|v| last_read[v.index()] = at);
    }
    let mut bytes = vec![0u64; forward + 1];
    for (at, node) in graph.nodes[..forward].iter().enumerate() {
        for v in &node.outputs {
            for place in bytes.iter_mut().take(last_read[v.index()] + 1).skip(at + 1) {
                *place = place.saturating_add(graph.ty(*v).bytes());
            }
        }
    }
    bytes
}

/// The step in which this is recomputed.
pub fn recompute(graph: &Graph, what: Recompute) -> Graph {
    let forward = forward_nodes(graph);
    let again: Vec<bool> = match what {
        Recompute::Nothing => return graph.clone(),
        Recompute::Cheap => {
            let mut again = within(graph, forward, u32::MAX);
            for (at, again) in again.iter_mut().enumerate() {
                *again &= is_cheap(graph, NodeId(at as u32));
            }
            again
        }
        Recompute::Blocks(count) => within(graph, forward, count),
    };
    Copier::new(graph, &again).run()
}

fn is_cheap(graph: &Graph, id: NodeId) -> bool {
    if graph.is_dynamic(id) {
        return false;
    }
    let work = graph.node(id).op.work(&graph.input_types(id), &graph.output_types(id));
    !work.kind.is_matrix() && !matches!(work.kind, WorkKind::Attention { .. })
}

/// By forward node: whether it lies in one of the first `count` blocks and nothing in the forward phase
/// reads its result outside. What another stage sends comes once, so it is kept.
fn within(graph: &Graph, forward: usize, count: u32) -> Vec<bool> {
    let mut block_of = vec![None; forward];
    for (i, block) in blocks(graph).into_iter().take(count as usize).enumerate() {
        block_of[block].fill(Some(i));
    }
    let is_received = |at: usize| matches!(graph.nodes[at].op, Op::Receive(_));
    let blocks = block_of.iter().enumerate();
    let mut again: Vec<bool> = blocks.map(|(at, b)| b.is_some() && !is_received(at)).collect();
    for (at, node) in graph.nodes[..forward].iter().enumerate() {
        for v in &node.inputs {
            if let ValueDef::Node { node: maker, .. } = graph.value(*v).def
                && block_of[maker.index()] != block_of[at]
            {
                again[maker.index()] = false;
            }
        }
    }
    again
}

struct Copier<'a> {
    graph: &'a Graph,
    again: &'a [bool],
    copy: Graph,
    /// For each recomputed value its copy, once there is one.
    copies: Vec<Option<ValueId>>,
}

impl<'a> Copier<'a> {
    fn new(graph: &'a Graph, again: &'a [bool]) -> Self {
        let copy = Graph { nodes: Vec::new(), ..graph.clone() };
        Self { graph, again, copy, copies: vec![None; graph.values.len()] }
    }

    fn run(mut self) -> Graph {
        let graph = self.graph;
        for node in &graph.nodes {
            let mut node = node.clone();
            if node.phase != Phase::Forward {
                for v in &mut node.inputs {
                    if self.is_recomputed(*v) {
                        *v = self.recomputed(*v);
                    }
                }
            }
            self.push(node);
        }
        self.copy
    }

    fn is_recomputed(&self, v: ValueId) -> bool {
        match self.graph.value(v).def {
            ValueDef::Node { node, .. } => self.again.get(node.index()).copied().unwrap_or(false),
            _ => false,
        }
    }

    /// The copy of a value, made with all that it needs.
    fn recomputed(&mut self, v: ValueId) -> ValueId {
        let graph = self.graph;
        let mut needed = BTreeSet::new();
        let mut open = vec![v];
        while let Some(v) = open.pop() {
            if let ValueDef::Node { node, .. } = graph.value(v).def
                && self.is_recomputed(v)
                && self.copies[v.index()].is_none()
                && needed.insert(node)
            {
                open.extend(&graph.node(node).inputs);
            }
        }
        for id in needed {
            let node = graph.node(id);
            let inputs = node.inputs.iter().map(|v| self.copies[v.index()].unwrap_or(*v)).collect();
            let mut outputs = Vec::with_capacity(node.outputs.len());
            for &v in &node.outputs {
                let id = ValueId(self.copy.values.len() as u32);
                let mut value = graph.value(v).clone();
                value.name = format!("{}:again", value.name);
                self.copy.values.push(value);
                self.copies[v.index()] = Some(id);
                outputs.push(id);
            }
            let name = format!("{}:again", node.name);
            let phase = Phase::Backward;
            self.push(Node { name, phase, inputs, outputs, ..node.clone() });
        }
        self.copies[v.index()].unwrap_or(v)
    }

    fn push(&mut self, node: Node) {
        let id = NodeId(self.copy.nodes.len() as u32);
        for (output, v) in node.outputs.iter().enumerate() {
            self.copy.values[v.index()].def = ValueDef::Node { node: id, output: output as u32 };
        }
        self.copy.nodes.push(node);
    }
}
