//! The structural check: see the module above.
//!
//! Each stage of a plan is checked against the graph that it should compute, and the ways between stages against
//! those of the cut. A plan without a pipeline has one stage.

mod matching;
mod nodes;
mod state;

use super::Graphs;
use super::graphs::Expected;
use crate::emit;
use matching::Matching;
use planc_ir::graph::{Extents, Graph, Value, ValueDef};
use planc_ir::plan::{Channel, ModelRef, Named, Plan, Stage, Training, pipeline};
use planc_ir::program::{self, BufferId, Instr, Kernel, Program};
use planc_ir::scalar::ScalarFn;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that is wrong with the plan's structure as a plan of a model.
pub fn check(plan: &Plan, graphs: &Graphs) -> Vec<String> {
    let (found, expected) = (plan.stages.len(), graphs.stages.len());
    if found != expected {
        return vec![format!("the plan has {found} stages, not {expected}")];
    }
    let mut findings = unsound(plan);
    if findings.is_empty() {
        for (at, (has, expected)) in plan.stages.iter().zip(&graphs.stages).enumerate() {
            let mut found = Vec::new();
            stage(plan, has, expected, &mut found);
            findings.extend(found.into_iter().map(|what| of_stage(plan, at, &what)));
        }
        channels(&plan.channels, &graphs.channels, &mut findings);
        model(&plan.model, &graphs.planned, &mut findings);
        training(plan.training.as_ref(), graphs.training.as_ref(), &mut findings);
    }
    findings
}

/// A finding of a stage, which it names if there are several.
fn of_stage(plan: &Plan, stage: usize, what: &str) -> String {
    match plan.stages.len() {
        1 => what.to_string(),
        _ => format!("stage {stage}: {what}"),
    }
}

/// What is wrong with the programs whatever the model, and with how they fit together.
fn unsound(plan: &Plan) -> Vec<String> {
    let mut findings = Vec::new();
    for (at, stage) in plan.stages.iter().enumerate() {
        let found = program::verify::verify(&stage.program);
        findings.extend(found.iter().map(|f| of_stage(plan, at, &f.to_string())));
    }
    if findings.is_empty() {
        let found = pipeline::check(&plan.stages, &plan.channels);
        findings.extend(found.iter().map(ToString::to_string));
    }
    findings
}

/// A stage computes what is expected of it.
fn stage(plan: &Plan, stage: &Stage, expected: &Expected, findings: &mut Vec<String>) {
    let (program, graph) = (&stage.program, &expected.graph);
    let matching = Matching::of(program, graph);
    interface(program, graph, findings);
    contents(plan, program, graph, findings);
    nodes::check(stage, graph, &matching, findings);
    state::check(program, expected, &matching, findings);
    reshards(program, findings);
}

/// The ways between stages are those of the cut. (That one instruction uses each at either end is checked
/// whatever the model.)
fn channels(found: &[Channel], expected: &[Channel], findings: &mut Vec<String>) {
    if found.len() != expected.len() {
        let (found, expected) = (found.len(), expected.len());
        findings.push(format!("the plan has {found} channels, not {expected}"));
    }
    let say = |c: &Channel| format!("hands on `{}` from stage {} to {}", c.value, c.from, c.to);
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        if found != expected {
            findings.push(format!("channel {at} {}; it {}", say(found), say(expected)));
        }
    }
}

/// What the plan calls inputs and outputs are those of what was planned.
fn model(says: &ModelRef, graph: &Graph, findings: &mut Vec<String>) {
    let lists =
        [("inputs", &says.inputs, &graph.inputs), ("outputs", &says.outputs, &graph.outputs)];
    for (what, says, has) in lists {
        let is_same = |(named, &v): (&Named, _)| {
            let value = graph.value(v);
            named.name == value.name && named.ty == value.ty
        };
        if says.len() != has.len() || !says.iter().zip(has).all(is_same) {
            findings.push(format!("the plan names other {what} than the model has"));
        }
    }
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
