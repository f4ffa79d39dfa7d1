//! The structural check: see the module above.

mod state;

use super::Graphs;
use crate::emit;
use planc_ir::graph::{Extents, Graph, NodeId, Value, ValueDef};
use planc_ir::plan::{NodeStrategy, Plan, Stage, Training};
use planc_ir::program::{self, BufferId, Instr, Kernel, Program};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::op_shardings;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that is wrong with the plan's structure as a plan of a model.
pub fn check(plan: &Plan, graphs: &Graphs) -> Vec<String> {
    let graph = &graphs.planned;
    let [stage] = plan.stages.as_slice() else {
        return vec![format!("the plan has {} stages; one is supported", plan.stages.len())];
    };
    let mut findings: Vec<String> =
        program::verify::verify(&stage.program).iter().map(ToString::to_string).collect();
    if findings.is_empty() {
        interface(&stage.program, graph, &mut findings);
        contents(plan, &stage.program, graph, &mut findings);
        nodes(stage, graph, &mut findings);
        state::check(&stage.program, graph, &mut findings);
        training(plan.training.as_ref(), graphs.training.as_ref(), &mut findings);
        reshards(&stage.program, &mut findings);
    }
    findings
}

/// What the plan says to who runs its steps is what the step has. (What it says in words is not looked at.)
fn training(says: Option<&Training>, has: Option<&Training>, findings: &mut Vec<String>) {
    let (Some(says), Some(has)) = (says, has) else { return };
    let mut same = |what: &str, is_same: bool| {
        if !is_same {
            findings.push(format!("the plan and the step that it trains differ in {what}"));
        }
    };
    same("the loss", says.loss == has.loss);
    same("the labels", says.labels == has.labels);
    same("the learning rate", says.learning_rate == has.learning_rate);
    same("the micro-batches", says.micro_batches == has.micro_batches);
    same("the state", says.state == has.state);
}

/// Inputs and outputs are the model's, and every buffer has its value's type.
fn interface(program: &Program, graph: &Graph, findings: &mut Vec<String>) {
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
}

/// Whether a value is one of a kind, as the plan has it.
type IsSuch<'a> = dyn Fn(&Value) -> bool + 'a;

/// What is loaded is the model's, from where the model has it, and each value once: of state that were there
/// twice, one would stay as it was.
fn contents(plan: &Plan, program: &Program, graph: &Graph, findings: &mut Vec<String>) {
    let values: BTreeMap<&str, &Value> =
        graph.values.iter().map(|v| (v.name.as_str(), v)).collect();
    let weights: BTreeMap<&str, _> = plan.weights.iter().map(|w| (w.name.as_str(), w)).collect();
    let constants: BTreeMap<&str, _> =
        plan.constants.iter().map(|c| (c.name.as_str(), c)).collect();
    let is_weight = |v: &Value| {
        weights.get(v.name.as_str()).is_some_and(|w| emit::weight(v).is_ok_and(|m| m == **w))
    };
    let is_constant = |v: &Value| {
        constants.get(v.name.as_str()).is_some_and(|c| emit::constant(v).is_ok_and(|m| m == **c))
    };
    let is_accumulator = |v: &Value| matches!(v.def, ValueDef::Accumulator);
    let lists: [(&str, &[BufferId], &IsSuch<'_>); 3] = [
        ("weight", &program.weights, &is_weight),
        ("constant", &program.constants, &is_constant),
        ("accumulator", &program.accumulators, &is_accumulator),
    ];
    let mut loaded = BTreeSet::new();
    for (what, ids, is_such) in lists {
        for &id in ids {
            let name = program.buffer(id).name.as_str();
            if !values.get(name).is_some_and(|v| is_such(v)) {
                findings.push(format!("`{name}` is loaded, but not as a {what} of the model"));
            }
            if !loaded.insert(name) {
                findings.push(format!("`{name}` is loaded twice"));
            }
        }
    }
}

/// Whether an instruction only copies a value, as state is that cannot be made where it lies.
fn is_copy(program: &Program, instr: &Instr) -> bool {
    match instr {
        Instr::Kernel {
            kernel: Kernel::Map { f: ScalarFn::Identity }, inputs, outputs, ..
        } => {
            matches!((&inputs[..], &outputs[..]), (&[from], &[to])
                if program.buffer(from).name == program.buffer(to).name)
        }
        _ => false,
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
    for instr in program.instrs.iter().filter(|i| !is_copy(program, i)) {
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

/// Whatever is no kernel changes a value's sharding and nothing else, a copy not even that. (That the step
/// turns the one sharding into the other is the program verifier's to check.)
fn reshards(program: &Program, findings: &mut Vec<String>) {
    for instr in &program.instrs {
        if is_copy(program, instr)
            && let (&[input], &[output]) = (instr.reads(), instr.writes())
            && program.buffer(input).sharding != program.buffer(output).sharding
        {
            let name = &program.buffer(input).name;
            findings.push(format!("a copy of `{name}` changes its sharding"));
        }
    }
    for (_, input, output) in program.instrs.iter().flat_map(Instr::steps) {
        let (from, to) = (program.buffer(input), program.buffer(output));
        if from.name != to.name || from.ty != to.ty {
            findings.push(format!("a reshard turns `{}` into `{}`", from.name, to.name));
        }
    }
}
