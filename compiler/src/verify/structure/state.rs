//! What lasts beyond a run: phases and state are those of the graph.
//!
//! That what is repeated and what state becomes make sense at all (types, places, order) is the program
//! verifier's to check.

use super::matching::Matching;
use crate::verify::graphs::Expected;
use planc_ir::graph::{Graph, Phase, ValueDef};
use planc_ir::program::passes::pass_of;
use planc_ir::program::{Pass, PassInstrs, Program};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(
    program: &Program,
    expected: &Expected,
    matching: &Matching,
    findings: &mut Vec<String>,
) {
    repeated(program, expected, matching, findings);
    carried(program, &expected.graph, findings);
}

/// What belongs to a micro-batch runs as often as there are micro-batches, in the passes of its phase; the update
/// runs once.
fn repeated(
    program: &Program,
    expected: &Expected,
    matching: &Matching,
    findings: &mut Vec<String>,
) {
    let graph = &expected.graph;
    let all = program.instrs.len();
    let (count, end) = program.micro_batches.map_or((1, all), |m| (m.count, m.instrs));
    if count != graph.micro_batches {
        let expected = graph.micro_batches;
        findings
            .push(format!("the program has {count} micro-batches, the model's step {expected}"));
    }
    if count <= 1 && program.passes.is_empty() {
        return;
    }
    let pass_of = pass_of(program);
    for (index, (node, instrs)) in graph.nodes.iter().zip(&matching.of_node).enumerate() {
        let chunk = expected.chunk_of.get(index).copied().unwrap_or(0);
        for &at in instrs {
            let name = &node.name;
            match (node.phase, pass_of[at].map(|pass| program.passes[pass])) {
                (Phase::Update, _) if at < end => findings
                    .push(format!("node `{name}` runs for each micro-batch, not once a step")),
                (Phase::Forward | Phase::Backward, _) if at >= end => findings
                    .push(format!("node `{name}` runs once a step, not for each micro-batch")),
                (phase, Some(pass)) if !has(pass, phase, chunk) => {
                    let PassInstrs { pass, chunk: found, .. } = pass;
                    let phase = phase.name();
                    findings.push(format!(
                        "node `{name}` of the {phase} phase of chunk {chunk} runs in the {pass} pass of \
                         chunk {found}"
                    ));
                }
                _ => {}
            }
        }
    }
}

/// Whether nodes of a phase of a chunk belong into a pass.
fn has(pass: PassInstrs, phase: Phase, chunk: u32) -> bool {
    let is_phase = match phase {
        Phase::Forward => pass.pass == Pass::Forward,
        Phase::Backward => matches!(pass.pass, Pass::Backward | Pass::Weights),
        Phase::Update => false,
    };
    is_phase && pass.chunk == chunk
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
