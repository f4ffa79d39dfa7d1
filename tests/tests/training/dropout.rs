//! Dropout in training steps: the same elements are dropped under every strategy, and others each time.

use super::support::{How, pipelined, planned};
use super::verify::{assert_good, found};
use planc::rewrite::raise;
use planc::search::baselines::baselines;
use planc::search::blocks::Blocks;
use planc::search::space::Space;
use planc::search::{SearchOptions, search};
use planc::stages::Pipelining;
use planc::train::policy::Asked;
use planc::train::recompute::recompute;
use planc::train::{Loss, Precision, Recompute, Step, TrainError, TrainOptions, step};
use planc::verify::{Numerical, Options, verify};
use planc_codegen::Schedule;
use planc_ir::onnx::import;
use planc_ir::onnx::tensor::to_proto;
use planc_ir::onnx::wire::{GraphProto, NodeProto};
use planc_ir::ops::Op;
use planc_ir::ops::dropout::Dropout;
use planc_ir::plan::Plan;
use planc_ir::program::{Instr, Kernel};
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::{DType, Graph, Tensor, TensorType, ValueId};
use planc_models::{Config, Size, Weights};
use planc_runtime::{Executor, Session, checkpoint};
use planc_tests::{contents, cost_model, random};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const BATCH: u64 = 4;
const SEQ: u64 = 8;
const VOCAB: u64 = 32;
const RATE: f64 = 3e-3;
const RATIO: f32 = 0.25;

/// Writes a model into a folder, with dropout on the results that are chosen.
fn write(
    folder: &Path,
    family: &str,
    sizes: &[(Size, u64)],
    is_dropped: impl Fn(&NodeProto) -> bool,
) -> PathBuf {
    let weights = Weights::Random { seed: 7 };
    let config = Config { weights, batch: Some(BATCH), ..Config::default() };
    let config = sizes.iter().fold(config, |config, &(size, n)| config.with(size, n));
    let mut model = planc_models::build(family, &config).expect("the model is built");
    drop_results(model.graph.as_mut().expect("a graph"), is_dropped);
    let path = folder.join("model.onnx");
    planc_models::write(&model, &path).expect("the model is written");
    path
}

/// As an exporter writes a model in training mode, but for the mode.
fn drop_results(graph: &mut GraphProto, is_dropped: impl Fn(&NodeProto) -> bool) {
    graph.initializer.push(to_proto("ratio", &Tensor::scalar(RATIO)));
    graph.initializer.push(to_proto("mode", &Tensor::scalar(false)));
    for mut node in std::mem::take(&mut graph.node) {
        let dropped = is_dropped(&node).then(|| {
            let output = node.output[0].clone();
            let kept = format!("{output}_kept");
            node.output[0].clone_from(&kept);
            NodeProto {
                op_type: Some("Dropout".into()),
                name: node.name.as_ref().map(|name| format!("{name}/Dropout")),
                input: vec![kept, "ratio".into(), "mode".into()],
                output: vec![output],
                ..NodeProto::default()
            }
        });
        graph.node.push(node);
        graph.node.extend(dropped);
    }
}

/// A GPT that drops attention weights and what blocks add to their input.
fn gpt(folder: &Path, layers: u64) -> PathBuf {
    let sizes = [
        (Size::Layers, layers),
        (Size::Hidden, 16),
        (Size::Heads, 4),
        (Size::Ffn, 32),
        (Size::Vocab, VOCAB),
        (Size::Seq, SEQ),
    ];
    write(folder, "gpt", &sizes, |node| {
        node.op_type() == "Softmax" || node.name().ends_with("/proj/Add")
    })
}

fn tokens(seed: u64) -> Tensor {
    let mut rng = fastrand::Rng::with_seed(seed);
    let ty = TensorType::new(DType::I64, [BATCH, SEQ]);
    Tensor::from_int(ty, |_| i128::from(rng.u64(..VOCAB))).expect("small")
}

/// Batch `n` of the GPT, but for the learning rate.
fn batch(n: u64) -> BTreeMap<String, Tensor> {
    [("input_ids", tokens(2 * n)), ("labels", tokens(2 * n + 1))]
        .map(|(name, tensor)| (name.to_string(), tensor))
        .into()
}

fn options(micro_batches: u32) -> TrainOptions {
    TrainOptions { micro_batches, ..TrainOptions::default() }
}

fn made(path: &Path, options: &TrainOptions) -> Step {
    let model = import(path, &options.import(BTreeMap::new())).expect("the model imports");
    let step = step(&raise(&model.graph).graph, options).expect("the step is made");
    let found = planc_ir::verify::verify(&step.graph);
    assert!(found.is_empty(), "{:?}", &found[..found.len().min(3)]);
    step
}

fn executor(path: &Path, graph: &Graph, strategy: &Strategy) -> Executor {
    let cost = cost_model("H100", strategy.mesh.ranks());
    let program = planc_codegen::partition(graph, strategy, &cost).expect("it is partitioned");
    let found = planc_ir::program::verify::verify(&program);
    assert!(found.is_empty(), "{}: {:?}", strategy.mesh, &found[..found.len().min(3)]);
    let (weights, constants) = contents(graph, path);
    Executor::new(program, &weights, &constants).expect("it loads")
}

/// The losses of five steps under a strategy.
fn losses(path: &Path, step: &Step, graph: &Graph, strategy: &Strategy) -> Vec<f64> {
    let mut executor = executor(path, graph, strategy);
    let rate = Tensor::scalar(RATE as f32);
    let count = u64::from(step.training.micro_batches);
    let one = |at: u64| {
        let batches = (at * count..(at + 1) * count).map(|n| {
            let mut inputs = batch(n);
            inputs.insert(step.training.learning_rate.clone(), rate.clone());
            inputs
        });
        executor.step(&batches.collect::<Vec<_>>()).expect("it runs")[0].1.f64_at(0)
    };
    (0..5).map(one).collect()
}

fn far(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn dropouts(graph: &Graph) -> Vec<(&Dropout, ValueId)> {
    graph
        .nodes
        .iter()
        .filter_map(|node| match &node.op {
            Op::Dropout(op) => Some((op, node.outputs[0])),
            _ => None,
        })
        .collect()
}

#[test]
fn every_strategy_drops_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = gpt(folder.path(), 2);
    for micro_batches in [1, 3] {
        let step = made(&path, &options(micro_batches));
        // Three in each of two blocks, forward and backward.
        assert_eq!(dropouts(&step.graph).len(), 12);
        let one = Strategy::replicated(&step.graph, Mesh::new([("device", 1)]));
        let alone = losses(&path, &step, &step.graph, &one);

        let other = |options: TrainOptions| {
            let other = made(&path, &options);
            let one = Strategy::replicated(&other.graph, Mesh::new([("device", 1)]));
            far(&losses(&path, &other, &other.graph, &one), &alone)
        };
        let plain = other(TrainOptions { dropout: None, ..options(micro_batches) });
        assert!(plain > 1e-3, "nothing is dropped: {plain}");
        let seeded = other(TrainOptions { dropout: Some(1), ..options(micro_batches) });
        assert!(seeded > 1e-3, "the seed decides nothing: {seeded}");

        let same = |what: &str, graph: &Graph, strategy: &Strategy| {
            let off = far(&losses(&path, &step, graph, strategy), &alone);
            eprintln!("{micro_batches} {:<14} {what:<24} {off:.1e}", strategy.mesh.to_string());
            assert!(off <= 1e-5, "{what} on {}: off by {off:e}", strategy.mesh);
        };
        for what in [Recompute::Cheap, Recompute::Blocks(u32::MAX)] {
            let graph = recompute(&step.graph, what);
            assert!(dropouts(&graph).len() > 12, "{what}: no dropout is computed again");
            let one = Strategy::replicated(&graph, Mesh::new([("device", 1)]));
            same(&format!("recomputing {what}"), &graph, &one);
        }
        let mut rng = fastrand::Rng::with_seed(5);
        for mesh in [
            Mesh::new([("device", 2)]),
            Mesh::new([("data", 2), ("tensor", 2)]),
            Mesh::new([("device", 4)]),
        ] {
            let cost = cost_model("H100", mesh.ranks());
            let blocks = Blocks::find(&step.graph);
            let space = Space::new(&step.graph, &mesh, &blocks, &cost);
            for baseline in baselines(&step.graph).into_iter().skip(1) {
                same(baseline.name(), &step.graph, &baseline.strategy(&space, &cost));
            }
            let only = SearchOptions { mesh: Some(mesh.clone()), ..SearchOptions::default() };
            let chosen = search(&step.graph, &cost, &only).expect("something fits").strategy;
            same("chosen", &step.graph, &chosen);
            for _ in 0..3 {
                same("random", &step.graph, &random::strategy(&step.graph, &mesh, &mut rng));
            }
        }
    }
}

/// Layers that differ in nothing but what they drop share their decisions.
#[test]
fn the_number_of_decisions_does_not_grow_with_depth() {
    let folder = tempfile::tempdir().expect("a folder");
    let decisions = |layers| {
        let path = gpt(folder.path(), layers);
        Blocks::find(&made(&path, &options(1)).graph).distinct_nodes()
    };
    assert_eq!(decisions(4), decisions(8));
}

/// By micro-batch and by node: which elements of a perceptron's two layers are kept. The last micro-batch of
/// each step is seen.
fn kept(path: &Path, micro_batches: u32, steps: usize, mesh: &Mesh) -> Vec<[Vec<bool>; 2]> {
    let loss = Loss::MeanSquare { output: None };
    let step = made(path, &TrainOptions { loss, ..options(micro_batches) });
    let mut graph = step.graph;
    let found: Vec<ValueId> = dropouts(&graph).into_iter().map(|(_, v)| v).take(2).collect();
    graph.outputs.extend(&found);
    let strategy = random::strategy(&graph, mesh, &mut fastrand::Rng::with_seed(2));
    let mut executor = executor(path, &graph, &strategy);
    let inputs: BTreeMap<String, Tensor> = graph
        .inputs
        .iter()
        .map(|&v| {
            let rate = graph.value(v).name == step.training.learning_rate;
            let number = |i: usize| if rate { 1e-3 } else { 1.0 + (i % 7) as f64 };
            let tensor = Tensor::from_f64(graph.ty(v).clone(), number).expect("small");
            (graph.value(v).name.clone(), tensor)
        })
        .collect();
    let mut one = |_| {
        let outputs =
            executor.step(&vec![inputs.clone(); micro_batches as usize]).expect("it runs");
        let at = outputs.len() - 2;
        [at, at + 1].map(|i| outputs[i].1.to_f64s().iter().map(|x| *x != 0.0).collect())
    };
    (0..steps).map(&mut one).collect()
}

#[test]
fn each_node_drops_anew_in_each_micro_batch() {
    let folder = tempfile::tempdir().expect("a folder");
    let sizes = [(Size::Layers, 3), (Size::Inputs, 256), (Size::Hidden, 256), (Size::Outputs, 256)];
    let path = write(folder.path(), "mlp", &sizes, |node| node.op_type() == "Gemm");
    let four = Mesh::new([("data", 2), ("tensor", 2)]);
    let single = kept(&path, 1, 6, &Mesh::new([("device", 1)]));
    let all: Vec<&Vec<bool>> = single.iter().flatten().collect();
    for (i, mask) in all.iter().enumerate() {
        let share = mask.iter().filter(|kept| !**kept).count() as f64 / mask.len() as f64;
        assert!((share - f64::from(RATIO)).abs() < 0.06, "mask {i} drops {share}");
        for (j, other) in all[..i].iter().enumerate() {
            let both = mask.iter().zip(*other).filter(|(a, b)| !**a && !**b).count() as f64;
            let both = both / mask.len() as f64;
            assert!((both - 0.0625).abs() < 0.04, "masks {i} and {j} drop {both} together");
        }
    }
    // Micro-batches are numbered through, whatever the number in a step.
    assert_eq!(kept(&path, 1, 6, &four), single);
    let every = |n: usize| single.iter().skip(n - 1).step_by(n).cloned().collect::<Vec<_>>();
    assert_eq!(kept(&path, 2, 3, &four), every(2));
    assert_eq!(kept(&path, 3, 2, &four), every(3));
}

fn session(plan: &Plan, path: &Path) -> Session {
    Session::load(plan, path).expect("it loads")
}

fn train(session: &mut Session, to: u64) -> Vec<f64> {
    let mut losses = Vec::new();
    while session.steps_done() < to {
        let first = session.steps_done() * 2;
        let batches = [batch(first), batch(first + 1)];
        losses.push(session.train_step(&batches, RATE as f32).expect("a step").loss);
    }
    losses
}

#[test]
fn what_is_dropped_goes_on_after_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = gpt(folder.path(), 2);
    let plan =
        |mesh: Mesh, how| planned(&path, &batch(0), &options(2), Asked::default(), &mesh, how);
    let four = plan(Mesh::new([("data", 2), ("tensor", 2)]), How::Searched);
    let state = &four.training.as_ref().expect("training").state;
    assert!(state.iter().any(|name| name == "dropout:micro_batches"), "{state:?}");
    let mut first = session(&four, &path);
    train(&mut first, 3);
    let saved = checkpoint::save(&first, folder.path(), 0).expect("it is saved");
    let expected = train(&mut first, 6);
    for (devices, how) in [(1, How::Searched), (2, How::Baseline("ZeRO 2"))] {
        let mut resumed = session(&plan(Mesh::new([("device", devices)]), how), &path);
        checkpoint::load(&mut resumed, &saved).expect("it is resumed");
        let off = far(&train(&mut resumed, 6), &expected);
        assert!(off <= 1e-5, "on {devices}: off by {off:e}");
    }
}

#[test]
fn plans_that_drop_are_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = gpt(folder.path(), 2);
    let four = Mesh::new([("data", 2), ("tensor", 2)]);
    let blocks = Asked { recompute: Some(Recompute::Blocks(u32::MAX)), ..Asked::default() };
    let with = |precision, seed| TrainOptions { precision, dropout: seed, ..options(2) };
    let mut plans = Vec::new();
    for (options, asked) in [
        (with(Precision::AsModel, Some(u32::MAX)), Asked::default()),
        (with(Precision::AsModel, None), Asked::default()),
        (with(Precision::Bf16, Some(0)), blocks),
        (with(Precision::F16, Some(3)), Asked::default()),
    ] {
        let how = How::Baseline("ZeRO 2");
        let plan = planned(&path, &batch(0), &options, asked, &four, how);
        let report = verify(&plan, &path, &Options::default()).expect("it is checked");
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        eprintln!("{options:?}: {:?}", report.numerical);
        let Numerical::Compared { worst, .. } = report.numerical else {
            panic!("{:?}", report.numerical);
        };
        assert!(worst.equal, "{options:?}: {worst:?}");
        let recipe = &plan.training.as_ref().expect("training").recipe;
        assert_eq!(recipe.contains_key("dropout"), options.dropout.is_some());
        plans.push(plan);
    }

    let findings = |plan: &Plan| {
        verify(plan, &path, &Options::default()).expect("it is checked").findings.join("\n")
    };
    let mut tampered = plans[0].clone();
    for instr in &mut tampered.stages[0].program.instrs {
        if let Instr::Kernel { kernel: Kernel::Dropout(op), .. } = instr {
            op.seed ^= 1;
        }
    }
    assert!(findings(&tampered).contains("kernel is not what its op lowers to"));
    let mut tampered = plans[0].clone();
    let settings = &mut tampered.training.as_mut().expect("training").settings;
    settings["step"]["dropout"] = 4.into();
    assert!(findings(&tampered).contains("kernel is not what its op lowers to"));
    tampered.training.as_mut().expect("training").settings["step"]["dropout"] = ().into();
    assert!(!findings(&tampered).is_empty());
}

/// Stages of a pipeline drop, and compute again what was dropped, as the whole does.
#[test]
fn pipelines_that_drop_are_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = gpt(folder.path(), 8);
    let kind = Pipelining { stages: 2, schedule: Schedule::OneFOneB, chunks: 1 };
    let two = Mesh::new([("device", 2)]);
    for recompute in [Recompute::Blocks(u32::MAX), Recompute::Cheap] {
        let asked = Asked { recompute: Some(recompute), ..Asked::default() };
        let how = How::Baseline("ZeRO 2");
        let plan = pipelined(&path, &batch(0), &options(4), asked, kind, &two, how);
        for stage in &plan.stages {
            assert!(stage.strategy.iter().any(|s| s.node.ends_with(":again")), "{recompute}");
        }
        assert_good(&plan, &path);
        let changed = found(&plan, &path, |plan| {
            let settings = &mut plan.training.as_mut().expect("training").settings;
            settings["pipeline"]["recompute"][1] = "nothing".into();
        });
        assert!(changed.contains("stage 1: the plan has strategies for"), "{changed}");
    }
    let kind = Pipelining { schedule: Schedule::ZeroBubbleV, chunks: 2, ..kind };
    let (asked, how) = (Asked::default(), How::Searched);
    assert_good(&pipelined(&path, &batch(0), &options(4), asked, kind, &two, how), &path);
}

/// The count of micro-batches is state only where something is dropped.
#[test]
fn what_the_loss_does_not_depend_on_counts_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let sizes = [(Size::Layers, 2), (Size::Inputs, 4), (Size::Hidden, 4), (Size::Outputs, 4)];
    let path = write(folder.path(), "mlp", &sizes, |_| false);
    let mean = |output: Option<&str>| TrainOptions {
        loss: Loss::MeanSquare { output: output.map(Into::into) },
        ..options(2)
    };
    let counts = |step: &Step| step.training.state.iter().any(|name| name.starts_with("dropout"));
    let options = mean(Some("y"));
    assert!(!counts(&made(&path, &options)));
    // The same, with an output beside the one that the loss looks at.
    let mut graph = import(&path, &options.import(BTreeMap::new())).expect("a model").graph;
    let zero = graph.constant("zero", Tensor::scalar(0i64));
    let y = graph.outputs[0];
    let op = Op::from(Dropout { ratio: 0.5, seed: 0 });
    let beside = graph.push("beside", op, &[y, zero], &["beside"]).expect("a node");
    graph.outputs.extend(beside);
    let made = |options| -> Result<Step, TrainError> { step(&graph, options) };
    assert!(!counts(&made(&options).expect("a step")));
    assert!(counts(&made(&mean(Some("beside"))).expect("a step")));
}
