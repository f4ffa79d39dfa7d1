//! Each node appears once, as what its op lowers to, on its own values, in the shardings that its rule derives
//! from its strategy.

use super::matching::Matching;
use planc_ir::graph::{Graph, NodeId};
use planc_ir::ops::Op;
use planc_ir::plan::{NodeStrategy, Stage};
use planc_ir::program::{Instr, Program};
use planc_ir::sharding::op_shardings;

pub(super) fn check(stage: &Stage, graph: &Graph, matching: &Matching, findings: &mut Vec<String>) {
    let program = &stage.program;
    if stage.strategy.len() != graph.nodes.len() {
        findings.push(format!(
            "the plan has strategies for {} nodes, the model has {} nodes",
            stage.strategy.len(),
            graph.nodes.len()
        ));
        return;
    }
    if matching.count != graph.nodes.len() {
        findings.push(format!("{} kernels for {} nodes", matching.count, graph.nodes.len()));
    }
    for ((id, strategy), found) in graph.node_ids().zip(&stage.strategy).zip(&matching.of_node) {
        if let &[at] = &found[..] {
            node(program, graph, id, strategy, &program.instrs[at], findings);
        } else {
            findings.push(format!(
                "node `{}` is computed {} times",
                graph.node(id).name,
                found.len()
            ));
        }
    }
}

/// Whether an instruction does what an op says. By which channel it sends or receives is what it was found by.
fn is_of(instr: &Instr, op: &Op) -> bool {
    match (instr, op) {
        (Instr::Send { .. }, Op::Send(_)) | (Instr::Receive { .. }, Op::Receive(_)) => true,
        (Instr::Kernel { kernel, .. }, _) => *kernel == op.lower(),
        _ => false,
    }
}

fn node(
    program: &Program,
    graph: &Graph,
    id: NodeId,
    strategy: &NodeStrategy,
    instr: &Instr,
    findings: &mut Vec<String>,
) {
    let node = graph.node(id);
    let mut wrong = |what: String| findings.push(format!("node `{}`: {what}", node.name));
    if strategy.node != node.name || strategy.op != node.op.name() {
        wrong(format!("its strategy is that of {} `{}`", strategy.op, strategy.node));
    }
    if !is_of(instr, &node.op) {
        wrong("its kernel is not what its op lowers to".to_string());
    }
    let shardings = match op_shardings(graph, id, &program.mesh, &strategy.strategy) {
        Ok(shardings) => shardings,
        Err(e) => {
            wrong(e.to_string());
            return;
        }
    };
    let sides = [
        ("input", instr.reads(), &node.inputs, shardings.inputs),
        ("output", instr.writes(), &node.outputs, shardings.outputs),
    ];
    for (side, buffers, values, expected) in sides {
        if buffers.len() != values.len() {
            wrong(format!("has {} {side}s, expected {}", buffers.len(), values.len()));
            continue;
        }
        for ((&b, &v), sharding) in buffers.iter().zip(values).zip(expected) {
            let (buffer, value) = (program.buffer(b), graph.value(v));
            if buffer.name != value.name {
                wrong(format!("{side} is `{}`, expected `{}`", buffer.name, value.name));
            } else if buffer.sharding != sharding {
                wrong(format!(
                    "{side} `{}` is {}, its strategy needs {}",
                    value.name,
                    buffer.sharding.display(&program.mesh),
                    sharding.display(&program.mesh)
                ));
            }
        }
    }
}
