//! Which instructions carry out which node.

use super::is_copy;
use planc_ir::graph::{Graph, NodeId};
use planc_ir::ops::Op;
use planc_ir::program::{Instr, Program};
use std::collections::BTreeMap;

/// What tells the instruction of a node from others. Names of values that a stage makes are unique, those of nodes
/// need not be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mark<'a> {
    /// The value that it makes, the first of them.
    Makes(&'a str),
    /// The channel by which it sends.
    Sends(u32),
    /// The channel by which it receives.
    Receives(u32),
}

/// The instructions of a program that compute, send or receive.
pub(super) struct Matching {
    /// By node, those that carry it out: their numbers.
    pub of_node: Vec<Vec<usize>>,
    /// How many there are in all. A copy of a value is none of them.
    pub count: usize,
}

impl Matching {
    pub fn of(program: &Program, graph: &Graph) -> Self {
        let mut marked: BTreeMap<Mark<'_>, Vec<usize>> = BTreeMap::new();
        let mut count = 0;
        for (at, instr) in program.instrs.iter().enumerate().filter(|(_, i)| !is_copy(program, i)) {
            let mark = match instr {
                Instr::Kernel { outputs, .. } => {
                    outputs.first().map(|&b| Mark::Makes(program.buffer(b).name.as_str()))
                }
                Instr::Send { channel, .. } => Some(Mark::Sends(*channel)),
                Instr::Receive { channel, .. } => Some(Mark::Receives(*channel)),
                Instr::Reshard { .. } | Instr::Issue { .. } | Instr::Wait { .. } => continue,
            };
            count += 1;
            if let Some(mark) = mark {
                marked.entry(mark).or_default().push(at);
            }
        }
        let found = |id| mark(graph, id).and_then(|mark| marked.get(&mark)).cloned();
        let of_node = graph.node_ids().map(|id| found(id).unwrap_or_default()).collect();
        Self { of_node, count }
    }
}

fn mark(graph: &Graph, id: NodeId) -> Option<Mark<'_>> {
    let node = graph.node(id);
    match &node.op {
        Op::Send(op) => Some(Mark::Sends(op.channel)),
        Op::Receive(op) => Some(Mark::Receives(op.channel)),
        _ => node.outputs.first().map(|&v| Mark::Makes(graph.value(v).name.as_str())),
    }
}
