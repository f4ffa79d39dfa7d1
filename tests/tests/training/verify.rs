//! `planc verify` on plans of training steps: good ones pass, and what was tampered with is found.

use super::support::{self, How, loss, options};
use planc::train::policy::Asked;
use planc::train::{Precision, Recompute, TrainOptions};
use planc::verify::{Graphs, Numerical, Options, VerifyError, numbers, verify};
use planc_ir::onnx::{ImportOptions, import};
use planc_ir::ops::optimizer_step::{OptimizerStep, Rule};
use planc_ir::plan::{Plan, Source};
use planc_ir::program::{BufferId, Instr, Kernel, Program};
use planc_ir::sharding::Mesh;
use planc_ir::sharding::reshard::Step;
use planc_tests::training::CurveReference;
use std::path::{Path, PathBuf};

fn four() -> Mesh {
    Mesh::new([("data", 2), ("tensor", 2)])
}

/// A plan of a model with curves that splits state, and the model.
fn planned(
    name: &str,
    mesh: &Mesh,
    change: impl FnOnce(&mut TrainOptions),
) -> Option<(Plan, PathBuf)> {
    let reference = CurveReference::load(name)?;
    let recipe = reference.curves.values().next().expect("a curve").recipe.clone();
    let mut options = options(loss(reference.loss, &reference.output), &recipe);
    change(&mut options);
    let path = reference.model.path;
    let how = How::Baseline("ZeRO 2");
    let plan =
        support::planned(&path, &reference.batches[0], &options, Asked::default(), mesh, how);
    Some((plan, path))
}

fn accumulating(options: &mut TrainOptions) {
    options.micro_batches = 3;
    options.clip_norm = Some(0.5);
}

#[track_caller]
pub fn assert_good(plan: &Plan, path: &Path) {
    let report = verify(plan, path, &Options::default()).expect("it is checked");
    assert!(report.findings.is_empty(), "{:#?}", &report.findings[..report.findings.len().min(5)]);
    eprintln!("{}: {:?}", path.display(), report.numerical);
    let Numerical::Compared { what, worst } = report.numerical else {
        panic!("{:?}", report.numerical);
    };
    assert!(worst.equal, "{what}: {worst:?}");
}

#[test]
fn a_good_plan_is_verified() {
    let Some((plan, path)) = planned("gpt2-dynamo", &four(), |_| ()) else {
        return;
    };
    assert_good(&plan, &path);
}

#[test]
fn micro_batches_clipping_and_recomputing_are_verified() {
    let Some((plan, path)) = planned("gpt2-dynamo", &four(), accumulating) else { return };
    assert_good(&plan, &path);
    let Some(reference) = CurveReference::load("gpt2-dynamo") else { return };
    let mut options =
        options(loss(reference.loss, &reference.output), &reference.curves["adamw"].recipe);
    accumulating(&mut options);
    let asked = Asked {
        recompute: Some(Recompute::Blocks(u32::MAX)),
        gather_again: Some(true),
        ..Asked::default()
    };
    for how in [How::Searched, How::Baseline("ZeRO 3"), How::Baseline("tensor parallel")] {
        let inputs = &reference.batches[0];
        let plan = support::planned(&path, inputs, &options, asked, &four(), how);
        assert_good(&plan, &path);
    }
}

#[test]
fn half_precision_is_verified() {
    for precision in [Precision::Bf16, Precision::F16] {
        let mesh = Mesh::new([("device", 4)]);
        let lower = |o: &mut TrainOptions| o.precision = precision;
        let Some((plan, path)) = planned("llama-dynamo", &mesh, lower) else {
            return;
        };
        assert_good(&plan, &path);
    }
}

#[test]
fn convolutions_are_verified() {
    let Some((plan, path)) = planned("resnet18-dynamo", &four(), |_| ()) else {
        return;
    };
    assert_good(&plan, &path);
}

/// What is found of a plan once it is changed.
#[track_caller]
pub fn found(plan: &Plan, path: &Path, change: impl FnOnce(&mut Plan)) -> String {
    let mut changed = plan.clone();
    change(&mut changed);
    assert_ne!(changed, *plan, "something is changed");
    let report = verify(&changed, path, &Options::default()).expect("it is checked");
    let findings = report.findings.join("\n");
    assert!(!findings.is_empty(), "the change is not found");
    eprintln!("{}", report.findings[0]);
    findings
}

fn program(plan: &mut Plan) -> &mut Program {
    &mut plan.stages[0].program
}

/// Takes out the reduction of a gradient; who read the sum reads a part of it.
fn drop_all_reduce(program: &mut Program) {
    let reduces = |step: &Step, from: BufferId| {
        matches!(step, Step::AllReduce { .. } | Step::ReduceScatter { .. })
            && program.buffer(from).name.contains("gradient")
    };
    let all = program.instrs.iter().enumerate();
    let mut steps = all.flat_map(|(at, i)| i.steps().enumerate().map(move |(k, s)| (at, k, s)));
    let found = steps.find(|(_, _, (step, from, _))| reduces(step, *from));
    let (at, k, (_, part, sum)) = found.expect("a gradient is reduced");
    drop(steps);
    let mut gone = vec![at];
    if let Instr::Issue { steps, inputs, outputs } = &mut program.instrs[at]
        && steps.len() > 1
    {
        steps.remove(k);
        inputs.remove(k);
        outputs.remove(k);
        gone.clear();
    }
    let waits = program.instrs.iter().enumerate();
    gone.extend(waits.filter_map(|(at, i)| match i {
        Instr::Wait { buffer } if *buffer == sum => Some(at),
        _ => None,
    }));
    for &at in gone.iter().rev() {
        program.instrs.remove(at);
        if let Some(m) = program.micro_batches.as_mut().filter(|m| at < m.instrs) {
            m.instrs -= 1;
        }
    }
    let replace = |b: &mut BufferId| {
        if *b == sum {
            *b = part;
        }
    };
    for instr in &mut program.instrs {
        match instr {
            Instr::Kernel { inputs, .. } | Instr::Issue { inputs, .. } => {
                inputs.iter_mut().for_each(replace);
            }
            Instr::Reshard { input, .. } => replace(input),
            Instr::Wait { .. } | Instr::Send { .. } | Instr::Receive { .. } => {}
        }
    }
    program.carried.iter_mut().for_each(|c| replace(&mut c.next));
}

fn decay_more(program: &mut Program) {
    let rules = program.instrs.iter_mut().filter_map(|i| match i {
        Instr::Kernel {
            kernel: Kernel::OptimizerStep(OptimizerStep { rule: Rule::Adam { weight_decay, .. } }),
            ..
        } => Some(weight_decay),
        _ => None,
    });
    rules.for_each(|weight_decay| *weight_decay *= 2.0);
}

#[test]
fn tampering_is_found() {
    let one = Mesh::new([("device", 4)]);
    let Some((plan, path)) = planned("gpt2-dynamo", &one, accumulating) else {
        return;
    };
    let found = |change: &dyn Fn(&mut Plan)| found(&plan, &path, change);

    found(&|plan| drop_all_reduce(program(plan)));
    let decayed = found(&|plan| decay_more(program(plan)));
    assert!(decayed.contains("kernel is not what its op lowers to"), "{decayed}");

    // State: what becomes what, and where it comes from.
    found(&|plan| {
        let program = program(plan);
        let ty = |b: BufferId| (program.buffer(b).ty.clone(), program.buffer(b).sharding.clone());
        let all = &program.carried;
        let pairs = (1..all.len()).map(|i| (i - 1, i));
        let (i, j) = pairs
            .filter(|&(i, j)| ty(all[i].state) == ty(all[j].state))
            .find(|&(i, j)| program.buffer(all[i].next).name != program.buffer(all[j].next).name)
            .expect("state of one type");
        let (a, b) = (program.carried[i].next, program.carried[j].next);
        (program.carried[i].next, program.carried[j].next) = (b, a);
        let slots = (program.buffer(a).slot, program.buffer(b).slot);
        program.buffers[a.index()].slot = slots.1;
        program.buffers[b.index()].slot = slots.0;
    });
    let swapped = found(&|plan| {
        let is_file = |s: &Source| matches!(s, Source::File { .. });
        let weights = &plan.weights;
        let (i, j) = (1..weights.len())
            .flat_map(|j| (0..j).map(move |i| (i, j)))
            .find(|&(i, j)| {
                let (a, b) = (&weights[i], &weights[j]);
                a.ty == b.ty && is_file(&a.source) && is_file(&b.source)
            })
            .expect("weights of one type");
        let source = plan.weights[i].source.clone();
        plan.weights[i].source = std::mem::replace(&mut plan.weights[j].source, source);
    });
    assert!(swapped.contains("is loaded, but not as a weight of the model"), "{swapped}");
    let filled = found(&|plan| {
        let mut sources = plan.weights.iter_mut().map(|w| &mut w.source);
        let fill = sources.find(|s| matches!(s, Source::Fill(_))).expect("state");
        *fill = Source::Fill(1.0);
    });
    assert!(filled.contains("is loaded, but not as a weight of the model"), "{filled}");
    let unlisted = found(&|plan| {
        plan.training.as_mut().expect("training").state.pop();
    });
    assert!(unlisted.contains("differ in the state"), "{unlisted}");

    // How often what runs.
    let counted = found(&|plan| {
        program(plan).micro_batches.as_mut().expect("micro-batches").count = 4;
        plan.training.as_mut().expect("training").micro_batches = 4;
    });
    assert!(counted.contains("4 micro-batches, the model's step 3"), "{counted}");
    let is_kernel = |i: &Instr| matches!(i, Instr::Kernel { .. });
    let late = found(&|plan| {
        let program = program(plan);
        let micro_batches = program.micro_batches.as_mut().expect("micro-batches");
        let update = program.instrs[micro_batches.instrs..].iter().position(is_kernel);
        micro_batches.instrs += update.expect("an update") + 1;
    });
    assert!(late.contains("runs for each micro-batch, not once a step"), "{late}");
    found(&|plan| {
        let program = program(plan);
        let micro_batches = program.micro_batches.as_mut().expect("micro-batches");
        let backward = program.instrs[..micro_batches.instrs].iter().rposition(is_kernel);
        micro_batches.instrs = backward.expect("a backward phase");
    });
    found(&|plan| program(plan).micro_batches = None);
}

#[test]
fn settings_that_make_another_step_are_found() {
    let one = Mesh::new([("device", 2)]);
    let Some((plan, path)) = planned("gpt2-dynamo", &one, |_| ()) else {
        return;
    };
    let set = |plan: &mut Plan, pointer: &str, value: serde_json::Value| {
        let settings = &mut plan.training.as_mut().expect("training").settings;
        *settings.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    };
    found(&plan, &path, |plan| set(plan, "/step/optimizer/adam/weight_decay", 0.5.into()));
    found(&plan, &path, |plan| set(plan, "/step/micro_batches", 7.into()));
    found(&plan, &path, |plan| set(plan, "/step/clip_norm", 1.into()));
    found(&plan, &path, |plan| set(plan, "/recompute", "cheap".into()));
    let refused = |pointer: &str, value: serde_json::Value| {
        let mut plan = plan.clone();
        set(&mut plan, pointer, value);
        verify(&plan, &path, &Options::default()).expect_err("no step is made")
    };
    for (pointer, value) in [("", 3.into()), ("/step/loss", "hinge".into())] {
        let error = refused(pointer, value);
        assert!(matches!(error, VerifyError::Settings(_)), "{error}");
    }
    for (pointer, value) in [
        ("/step/micro_batches", 0.into()),
        ("/step/frozen", serde_json::json!(["no such weight"])),
        ("/step/clip_norm", (-1).into()),
        ("/step/optimizer/adam/beta1", 2.into()),
    ] {
        let error = refused(pointer, value);
        assert!(matches!(error, VerifyError::Train(_)), "{error}");
    }
}

/// The numbers show what is wrong even where nobody looks at the structure.
#[test]
fn wrong_numbers_are_found() {
    let Some((plan, path)) = planned("gpt2-dynamo", &four(), accumulating) else {
        return;
    };
    let settings = plan.training.as_ref().expect("training").settings.clone();
    let settings = serde_json::from_value(settings).expect("settings");
    let bind = plan.model.bindings.clone();
    let model = import(&path, &ImportOptions { bind, training: true, ..ImportOptions::default() })
        .expect("a model");
    let graphs = Graphs::of(model.graph, Some(&settings)).expect("a step");
    let is_equal = |plan: &Plan| {
        let found = numbers::check(plan, &graphs, Some(&settings), &path, &Options::default());
        match found.expect("it is checked") {
            Numerical::Compared { worst, .. } => worst.equal,
            skipped @ Numerical::Skipped { .. } => panic!("{skipped:?}"),
        }
    };
    assert!(is_equal(&plan));
    let mut decayed = plan;
    decay_more(program(&mut decayed));
    assert!(!is_equal(&decayed));
}
