//! What lasts beyond a run: phases and state are those of the graph.
//!
//! That what is repeated and what state becomes make sense at all (types, places, order) is the program
//! verifier's to check.

use super::is_copy;
use planc_ir::graph::{Graph, Phase, ValueDef};
use planc_ir::program::{Instr, Program};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(program: &Program, graph: &Graph, findings: &mut Vec<String>) {
    repeated(program, graph, findings);
    carried(program, graph, findings);
}

/// What belongs to a micro-batch runs as often as there are micro-batches, the update once.
fn repeated(program: &Program, graph: &Graph, findings: &mut Vec<String>) {
    let all = program.instrs.len();
    let (count, end) = program.micro_batches.map_or((1, all), |m| (m.count, m.instrs));
    if count != graph.micro_batches {
        let expected = graph.micro_batches;
        findings
            .push(format!("the program has {count} micro-batches, the model's step {expected}"));
    }
    if count <= 1 {
        return;
    }
    let phases: BTreeMap<&str, Phase> = graph
        .nodes
        .iter()
        .flat_map(|n| n.outputs.iter().map(|&v| (graph.value(v).name.as_str(), n.phase)))
        .collect();
    for (at, instr) in program.instrs.iter().enumerate().filter(|(_, i)| !is_copy(program, i)) {
        let Instr::Kernel { node, outputs, .. } = instr else { continue };
        let phase = outputs.first().and_then(|&b| phases.get(program.buffer(b).name.as_str()));
        match phase {
            Some(Phase::Update) if at < end => {
                findings.push(format!("node `{node}` runs for each micro-batch, not once a step"));
            }
            Some(Phase::Forward | Phase::Backward) if at >= end => {
                findings.push(format!("node `{node}` runs once a step, not for each micro-batch"));
            }
            _ => {}
        }
    }
}

/// State becomes what it becomes in the graph, and nothing else is state.
fn carried(program: &Program, graph: &Graph, findings: &mut Vec<String>) {
    let name = |v| graph.value(v).name.as_str();
    let expected: BTreeMap<&str, &str> =
        graph.carried.iter().map(|c| (name(c.state), name(c.next))).collect();
    let mut found = BTreeSet::new();
    for c in &program.carried {
        let (state, next) = (&program.buffer(c.state).name, &program.buffer(c.next).name);
        found.insert(state.as_str());
        match expected.get(state.as_str()) {
            Some(expected) if expected == next => {}
            Some(expected) => {
                findings.push(format!("state `{state}` becomes `{next}`, not `{expected}`"));
            }
            None => findings.push(format!("`{state}` becomes `{next}`, but it is not state")),
        }
    }
    for (state, next) in expected.iter().filter(|(state, _)| !found.contains(**state)) {
        findings.push(format!("state `{state}` does not become `{next}`"));
    }
    let sums = graph.values.iter().filter(|v| matches!(v.def, ValueDef::Accumulator)).count();
    if program.accumulators.len() != sums {
        let count = program.accumulators.len();
        findings.push(format!("{count} accumulators, the model's step has {sums}"));
    }
}
