//! The structural check: see the module above.

use planc_ir::graph::{Extents, Graph, NodeId, ValueDef};
use planc_ir::plan::{NodeStrategy, Plan, Stage};
use planc_ir::program::{self, BufferId, Instr, Program};
use planc_ir::sharding::op_shardings;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that is wrong with the plan's structure as a plan of `graph`.
pub fn check(plan: &Plan, graph: &Graph) -> Vec<String> {
    let [stage] = plan.stages.as_slice() else {
        return vec![format!("the plan has {} stages; one is supported", plan.stages.len())];
    };
    let mut findings: Vec<String> =
        program::verify::verify(&stage.program).iter().map(ToString::to_string).collect();
    if findings.is_empty() {
        interface(plan, &stage.program, graph, &mut findings);
        nodes(stage, graph, &mut findings);
        reshards(&stage.program, &mut findings);
    }
    findings
}

/// Inputs, outputs and weights are the model's, in name, type and place.
fn interface(plan: &Plan, program: &Program, graph: &Graph, findings: &mut Vec<String>) {
    let mut same = |what: &str, ids: &[BufferId], values: &[planc_ir::ValueId]| {
        let found: Vec<_> = ids.iter().map(|&b| &program.buffer(b).name).collect();
        let expected: Vec<_> = values.iter().map(|&v| &graph.value(v).name).collect();
        if found != expected {
            findings.push(format!("the {what} are {found:?}, the model's are {expected:?}"));
        }
    };
    same("inputs", &program.inputs, &graph.inputs);
    same("outputs", &program.outputs, &graph.outputs);

    let values: BTreeMap<&str, _> = graph.values.iter().map(|v| (v.name.as_str(), v)).collect();
    for (id, buffer) in program.buffers.iter().enumerate() {
        match values.get(buffer.name.as_str()) {
            Some(v) if (v.extents == Extents::Dynamic) != buffer.dynamic => findings.push(format!(
                "buffer {id} of `{}` and the model disagree on whether its extents are known",
                buffer.name
            )),
            Some(v) if v.ty == buffer.ty => {}
            Some(v) => findings.push(format!(
                "buffer {id} of `{}` is {}, the model's value is {}",
                buffer.name, buffer.ty, v.ty
            )),
            None => findings.push(format!("the model has no value `{}`", buffer.name)),
        }
    }
    let loaded: BTreeSet<&str> = plan
        .weights
        .iter()
        .map(|w| w.name.as_str())
        .chain(plan.constants.iter().map(|c| c.name.as_str()))
        .collect();
    for &id in program.weights.iter().chain(&program.constants) {
        let name = program.buffer(id).name.as_str();
        let known = values
            .get(name)
            .is_some_and(|v| matches!(v.def, ValueDef::Weight(_) | ValueDef::Constant(_)));
        if !known || !loaded.contains(name) {
            findings.push(format!("`{name}` is loaded but is no weight of the model and plan"));
        }
    }
}

/// Each node appears once, as the kernel that its op lowers to, on its own values, in the shardings
/// that its rule derives from its strategy.
fn nodes(stage: &Stage, graph: &Graph, findings: &mut Vec<String>) {
    let program = &stage.program;
    if stage.strategy.len() != graph.nodes.len() {
        findings.push(format!(
            "the plan has strategies for {} nodes, the model has {} nodes",
            stage.strategy.len(),
            graph.nodes.len()
        ));
        return;
    }
    // Value names are unique, node names need not be: a kernel is found by what it writes.
    let mut kernels: BTreeMap<&str, Vec<&Instr>> = BTreeMap::new();
    let mut count = 0;
    for instr in &program.instrs {
        if let Instr::Kernel { outputs, .. } = instr {
            count += 1;
            if let Some(&first) = outputs.first() {
                kernels.entry(program.buffer(first).name.as_str()).or_default().push(instr);
            }
        }
    }
    if count != graph.nodes.len() {
        findings.push(format!("{count} kernels for {} nodes", graph.nodes.len()));
    }
    for (id, strategy) in graph.node_ids().zip(&stage.strategy) {
        let first = graph.node(id).outputs.first().map(|&v| graph.value(v).name.as_str());
        let found = first.and_then(|n| kernels.get(n)).map_or(&[][..], Vec::as_slice);
        if let [instr] = found {
            node(program, graph, id, strategy, instr, findings);
        } else {
            findings.push(format!(
                "node `{}` is computed {} times",
                graph.node(id).name,
                found.len()
            ));
        }
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
    let Instr::Kernel { kernel, inputs, outputs, .. } = instr else { return };
    let node = graph.node(id);
    let mut wrong = |what: String| findings.push(format!("node `{}`: {what}", node.name));
    if strategy.node != node.name || strategy.op != node.op.name() {
        wrong(format!("its strategy is that of {} `{}`", strategy.op, strategy.node));
    }
    if *kernel != node.op.lower() {
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
        ("input", inputs, &node.inputs, shardings.inputs),
        ("output", outputs, &node.outputs, shardings.outputs),
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

/// Whatever is no kernel changes a value's sharding and nothing else. (That the step turns the one
/// sharding into the other is the program verifier's to check.)
fn reshards(program: &Program, findings: &mut Vec<String>) {
    for (_, input, output) in program.instrs.iter().flat_map(Instr::steps) {
        let (from, to) = (program.buffer(input), program.buffer(output));
        if from.name != to.name || from.ty != to.ty {
            findings.push(format!("a reshard turns `{}` into `{}`", from.name, to.name));
        }
    }
}
