//! `planc verify` on plans of pipelines: good ones pass, and what was tampered with is found.

use super::support::{self, How, loss, options};
use super::verify::{assert_good, found};
use planc::stages::Pipelining;
use planc::train::policy::Asked;
use planc::train::{Precision, Settings, TrainError, TrainOptions};
use planc::verify::{Graphs, Numerical, Options, VerifyError, structure, verify};
use planc_codegen::{Schedule, Shape, schedule};
use planc_ir::Graph;
use planc_ir::onnx::import;
use planc_ir::plan::{Plan, Source};
use planc_ir::program::{Buffer, BufferId, Instr, Kernel, Pass, Program};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::Mesh;
use planc_tests::training::CurveReference;
use serde_json::Value;
use std::path::{Path, PathBuf};

const ONE_F_ONE_B: Pipelining = Pipelining { stages: 2, schedule: Schedule::OneFOneB, chunks: 1 };
const ZERO_BUBBLE_V: Pipelining =
    Pipelining { stages: 4, schedule: Schedule::ZeroBubbleV, chunks: 2 };

fn devices(count: u32) -> Mesh {
    Mesh::new([("device", count)])
}

/// The plan of a pipeline of a model with curves, and the model.
fn planned(
    name: &str,
    kind: Pipelining,
    mesh: &Mesh,
    how: How,
    asked: Asked,
    precision: Precision,
) -> Option<(Plan, PathBuf)> {
    let reference = CurveReference::load(name)?;
    let recipe = reference.curves.values().next().expect("a curve").recipe.clone();
    let options = TrainOptions {
        micro_batches: 4,
        clip_norm: Some(0.5),
        precision,
        ..options(loss(reference.loss, &reference.output), &recipe)
    };
    let path = reference.model.path;
    let plan = support::pipelined(&path, &reference.batches[0], &options, asked, kind, mesh, how);
    Some((plan, path))
}

/// GPT-2, whose embedding is the head too, in two stages with state in shards.
fn gpt2() -> Option<(Plan, PathBuf)> {
    let how = How::Baseline("ZeRO 2");
    planned("gpt2-dynamo", ONE_F_ONE_B, &devices(2), how, Asked::default(), Precision::AsModel)
}

#[test]
fn good_pipelines_are_verified() {
    let Some((plan, path)) = gpt2() else { return };
    assert_good(&plan, &path);
    // With its strategies carried out anew, as on dimensions that are easier to check.
    let options = Options { bind: plan.model.bindings.clone(), ..Options::default() };
    assert!(!options.bind.is_empty(), "the model has symbolic dimensions");
    let report = verify(&plan, &path, &options).expect("it is checked");
    match report.numerical {
        Numerical::Compared { worst, .. } => assert!(worst.equal, "{worst:?}"),
        skipped @ Numerical::Skipped { .. } => panic!("{skipped:?}"),
    }
    let again = Asked { gather_again: Some(true), ..Asked::default() };
    for (name, kind, ranks, asked, precision) in [
        ("llama-dynamo", ONE_F_ONE_B, 2, again, Precision::AsModel),
        ("llama-dynamo", ZERO_BUBBLE_V, 1, Asked::default(), Precision::AsModel),
        ("gpt2-dynamo", ZERO_BUBBLE_V, 1, Asked::default(), Precision::AsModel),
        ("llama-dynamo", ONE_F_ONE_B, 2, Asked::default(), Precision::Bf16),
        ("llama-dynamo", ONE_F_ONE_B, 1, Asked::default(), Precision::F16),
    ] {
        let mesh = devices(ranks);
        let Some((plan, path)) = planned(name, kind, &mesh, How::Searched, asked, precision) else {
            return;
        };
        assert_good(&plan, &path);
    }
}

/// The graphs that a plan is checked against.
fn graphs(plan: &Plan, path: &Path) -> Graphs {
    let settings = settings(plan);
    Graphs::of(imported(plan, path), Some(&settings)).expect("a step")
}

fn imported(plan: &Plan, path: &Path) -> Graph {
    let bind = plan.model.bindings.clone();
    import(path, &settings(plan).step.import(bind)).expect("a model").graph
}

fn settings(plan: &Plan) -> Settings {
    let settings = plan.training.as_ref().expect("training").settings.clone();
    serde_json::from_value(settings).expect("settings")
}

/// Takes instructions out of a program.
fn remove(program: &mut Program, at: usize) {
    program.instrs.remove(at);
    let shorten = |end: &mut usize| *end -= usize::from(at < *end);
    program.passes.iter_mut().for_each(|p| shorten(&mut p.end));
    program.micro_batches.iter_mut().for_each(|m| shorten(&mut m.instrs));
}

/// Gives the buffers of a program that was changed places anew, so that these are right.
fn place(program: &mut Program) {
    let order = program.order.clone();
    planc_codegen::pipeline::schedule(program, &order).expect("buffers have places");
}

fn sends(program: &Program) -> Vec<(usize, u32)> {
    let send = |(at, i): (usize, &Instr)| match i {
        Instr::Send { channel, .. } => Some((at, *channel)),
        _ => None,
    };
    program.instrs.iter().enumerate().filter_map(send).collect()
}

#[test]
fn tampering_is_found() {
    let Some((plan, path)) = gpt2() else { return };
    let found = |change: &dyn Fn(&mut Plan)| found(&plan, &path, change);

    let other = found(&|plan| {
        let instrs = &mut plan.stages[1].program.instrs;
        let mut maps = instrs.iter_mut().filter_map(|i| match i {
            Instr::Kernel { kernel: Kernel::Map { f }, .. } if *f == ScalarFn::Add => Some(f),
            _ => None,
        });
        *maps.next().expect("a sum") = ScalarFn::Sub;
    });
    assert!(other.starts_with("stage 1: "), "{other}");
    assert!(other.contains("kernel is not what its op lowers to"), "{other}");

    // Ways between stages.
    let named = found(&|plan| plan.channels[0].value.push('x'));
    assert!(named.contains("channel 0 hands on"), "{named}");
    let other = found(&|plan| {
        let program = &mut plan.stages[0].program;
        let (at, _) = sends(program)[0];
        let sent = program.buffer(program.instrs[at].reads()[0]).clone();
        let mut made = program.instrs[..at].iter().rev().flat_map(Instr::writes);
        let is_like =
            |b: &Buffer| b.name != sent.name && b.ty == sent.ty && b.sharding.partial.is_empty();
        let like = made.find(|&&b| is_like(program.buffer(b))).copied().expect("another value");
        if let Instr::Send { buffer, .. } = &mut program.instrs[at] {
            *buffer = like;
        }
        place(program);
    });
    assert!(other.contains("input is"), "{other}");
    let dropped = found(&|plan| {
        let program = &mut plan.stages[0].program;
        let (at, _) = sends(program)[0];
        remove(program, at);
    });
    assert!(dropped.contains("channel"), "{dropped}");
    found(&|plan| plan.channels.swap(0, 1));
    found(&|plan| plan.stages.swap(0, 1));
    let lacking = found(&|plan| drop(plan.stages.pop()));
    assert_eq!(lacking, "the plan has 1 stages, not 2");
    found(&|plan| plan.stages[1].first_rank = 1);

    // What runs when.
    found(&|plan| {
        let order = &mut plan.stages[0].program.order;
        let backward = order.iter().position(|a| a.pass == Pass::Backward).expect("a pass");
        order.swap(0, backward);
    });
    found(&|plan| {
        plan.stages[0].program.order.pop();
    });
    found(&|plan| {
        let passes = &mut plan.stages[1].program.passes;
        passes[0].end -= 1;
    });
    let late = found(&|plan| {
        let program = &mut plan.stages[0].program;
        let repeated = program.micro_batches.as_mut().expect("micro-batches");
        let is_kernel = |i: &Instr| matches!(i, Instr::Kernel { .. });
        let update = program.instrs[repeated.instrs..].iter().position(is_kernel);
        repeated.instrs += update.expect("an update") + 1;
        program.passes.last_mut().expect("passes").end = repeated.instrs;
        place(program);
    });
    assert!(late.contains("once a step"), "{late}");

    // State, and where it comes from.
    let kept = found(&|plan| {
        let program = &mut plan.stages[0].program;
        program.carried.pop();
        place(program);
    });
    assert!(kept.contains("does not become"), "{kept}");
    let swapped = found(&|plan| {
        let program = &mut plan.stages[1].program;
        let ty = |b: BufferId| (program.buffer(b).ty.clone(), program.buffer(b).sharding.clone());
        let all = &program.carried;
        let is_weight = |i: usize| program.weights.contains(&all[i].state);
        let mut pairs = (1..all.len())
            .map(|j| (j - 1, j))
            .filter(|&(i, j)| is_weight(i) && is_weight(j) && ty(all[i].state) == ty(all[j].state));
        let (i, j) = pairs.next().expect("state of one type");
        let (a, b) = (all[i].next, all[j].next);
        (program.carried[i].next, program.carried[j].next) = (b, a);
        place(program);
    });
    assert!(swapped.contains("becomes"), "{swapped}");
    let source = found(&|plan| {
        let files = plan.weights.iter_mut().filter_map(|w| match &mut w.source {
            Source::File { offset, .. } => Some(offset),
            _ => None,
        });
        *files.last().expect("a weight in a file") += 4;
    });
    assert!(source.contains("is loaded, but not as a weight of the model"), "{source}");
}

/// Chunks are told apart, and any order that comes to its end computes the same.
#[test]
fn passes_of_chunks_are_told_apart() {
    let (asked, precision) = (Asked::default(), Precision::AsModel);
    let kind = Pipelining { stages: 2, ..ZERO_BUBBLE_V };
    let plan = planned("gpt2-dynamo", kind, &devices(1), How::Searched, asked, precision);
    let Some((plan, path)) = plan else { return };
    let graphs = graphs(&plan, &path);
    assert_eq!(structure::check(&plan, &graphs), Vec::<String>::new());
    let mut swapped = plan.clone();
    let program = &mut swapped.stages[0].program;
    program.passes.iter_mut().for_each(|p| p.chunk = 1 - p.chunk);
    program.order.iter_mut().for_each(|a| a.chunk = 1 - a.chunk);
    let findings = structure::check(&swapped, &graphs).join("\n");
    assert!(findings.contains("runs in the forward pass of chunk"), "{findings}");

    let Some((mut plan, path)) = gpt2() else { return };
    let graphs = self::graphs(&plan, &path);
    let shape = Shape { stages: 2, chunks: 1, micro_batches: 4 };
    let orders = schedule::order(Schedule::GPipe, shape).expect("a schedule");
    for (stage, order) in plan.stages.iter_mut().zip(&orders) {
        assert_ne!(stage.program.order, *order);
        planc_codegen::pipeline::schedule(&mut stage.program, order).expect("another order");
    }
    assert_eq!(structure::check(&plan, &graphs), Vec::<String>::new());
}

#[test]
fn settings_of_other_pipelines_are_found_or_refused() {
    let Some((plan, path)) = gpt2() else { return };
    let set = |plan: &mut Plan, pointer: &str, value: Value| {
        let settings = &mut plan.training.as_mut().expect("training").settings;
        *settings.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    };
    let cut = settings(&plan).pipeline.expect("a pipeline").cuts[0];
    let other = |pointer: &str, value: Value| found(&plan, &path, |p| set(p, pointer, value));
    other("/pipeline/cuts/0", (cut + 1).into());
    other("/pipeline/holders", serde_json::json!([1, 0]));
    other("/pipeline", Value::Null);
    for (pointer, value) in [
        ("/pipeline/cuts", serde_json::json!([])),
        ("/pipeline/cuts", serde_json::json!([0])),
        ("/pipeline/cuts", serde_json::json!([cut, cut])),
        ("/pipeline/cuts", serde_json::json!([usize::MAX])),
        ("/pipeline/cuts", serde_json::json!([cut, cut - 1])),
        ("/pipeline/holders", serde_json::json!([0, 2])),
        ("/pipeline/holders", serde_json::json!([0, u32::MAX])),
        ("/pipeline/holders", serde_json::json!([0, 0])),
        ("/pipeline/holders", serde_json::json!([0, 1, 1])),
        ("/pipeline/recompute", serde_json::json!(["nothing"])),
        ("/pipeline/gather_again", serde_json::json!([])),
    ] {
        let mut plan = plan.clone();
        set(&mut plan, pointer, value.clone());
        let error = verify(&plan, &path, &Options::default()).expect_err("it is refused");
        let is_pipeline = matches!(error, VerifyError::Train(TrainError::Pipeline(_)));
        assert!(is_pipeline, "{pointer} {value}: {error}");
    }
}

/// Changes something in a document at random: a number, a text, or which of a list's items there are.
fn mutate(value: &mut Value, rng: &mut fastrand::Rng) {
    match value {
        Value::Array(list) if !list.is_empty() => {
            let at = rng.usize(..list.len());
            match rng.u32(..8) {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                2 => list.swap(at, rng.usize(..=at)),
                _ => mutate(&mut list[at], rng),
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = rng.usize(..fields.len());
            if let Some(field) = fields.values_mut().nth(at) {
                mutate(field, rng);
            }
        }
        Value::Number(n) => {
            let n = n.as_u64().unwrap_or(0);
            let others = [0, n.saturating_sub(1), n + 1, n ^ 7, u64::from(u32::MAX), u64::MAX >> 1];
            *value = others[rng.usize(..others.len())].into();
        }
        Value::String(text) => text.push('x'),
        Value::Bool(b) => *b = !*b,
        Value::Null | Value::Array(_) | Value::Object(_) => {}
    }
}

#[test]
fn nothing_makes_it_panic() {
    let Some((plan, path)) = gpt2() else { return };
    let graphs = graphs(&plan, &path);
    let mut rng = fastrand::Rng::with_seed(5);
    let whole = serde_json::to_value((&plan.stages, &plan.channels)).expect("a document");
    let (mut read, mut wrong) = (0, 0);
    for _ in 0..200 {
        let mut value = whole.clone();
        (0..rng.u32(1..3)).for_each(|_| mutate(&mut value, &mut rng));
        let Ok((stages, channels)) = serde_json::from_value(value) else { continue };
        let changed = Plan { stages, channels, ..plan.clone() };
        read += 1;
        wrong += usize::from(!structure::check(&changed, &graphs).is_empty());
    }
    eprintln!("{read} changed plans were read, something was found in {wrong}");
    assert!(read > 50 && wrong > read / 2, "{read} were read, something was found in {wrong}");

    let model = imported(&plan, &path);
    let whole = serde_json::to_value(settings(&plan).pipeline).expect("a document");
    let mut refused = 0;
    for _ in 0..30 {
        let mut value = whole.clone();
        (0..rng.u32(1..4)).for_each(|_| mutate(&mut value, &mut rng));
        let Ok(pipeline) = serde_json::from_value(value) else { continue };
        let settings = Settings { pipeline: Some(pipeline), ..settings(&plan) };
        match Graphs::of(model.clone(), Some(&settings)) {
            Ok(graphs) => drop(structure::check(&plan, &graphs)),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
}
