//! Loss curves: on one rank PyTorch's, and on several ranks the same under every strategy.

use super::support::{loss, model, options, renamed};
use fastrand::Rng;
use planc::search::baselines::baselines;
use planc::search::blocks::Blocks;
use planc::search::evaluate::evaluate;
use planc::search::space::Space;
use planc::search::{SearchOptions, search};
use planc::train::{
    Step,
    recompute::{Recompute, recompute},
    step,
};
use planc_cost_model::CostModel;
use planc_cost_model::simulate::{instr_us, simulate};
use planc_ir::DType;
use planc_ir::Graph;
use planc_ir::Tensor;
use planc_ir::TensorType;
use planc_ir::program::{Instr, Program};
use planc_ir::sharding::{Mesh, Strategy};
use planc_runtime::Executor;
use planc_tests::training::{Curve, CurveReference};
use planc_tests::{contents, cost_model, random};
use std::path::Path;

/// A program with communication beside compute, in buckets small enough for several of them.
fn overlapped(graph: &Graph, serial: &Program, cost: &CostModel) -> Program {
    let time_us = |program: &Program, instr: &Instr| instr_us(program, instr, cost);
    let program = planc_codegen::overlap(graph, serial, 1 << 12, &time_us).expect("it is small");
    let (before, after) = (simulate(serial, cost), simulate(&program, cost));
    assert!(after.total_us <= before.total_us * (1.0 + 1e-9), "{after:?} {before:?}");
    program
}

/// One after the other, a program takes the time that the evaluator says, or less: it counts steps that paths
/// share once for each. Copies of what state becomes it does not count.
fn assert_sum(graph: &Graph, strategy: &Strategy, serial: &Program, cost: &CostModel) {
    let kernels = serial.instrs.iter().filter(|i| matches!(i, Instr::Kernel { .. })).count();
    if kernels > graph.nodes.len() {
        return;
    }
    let expected = evaluate(graph, strategy, cost).expect("it has a price");
    let repeats = |at: usize| match serial.micro_batches {
        Some(m) if at < m.instrs => u64::from(m.count),
        _ => 1,
    };
    let steps = serial.instrs.iter().enumerate().flat_map(|(at, i)| i.steps().map(move |_| at));
    let shared = expected.steps.values().sum::<u64>() - steps.map(repeats).sum::<u64>();
    let found = simulate(serial, cost).total_us / expected.total_us;
    assert!(found < 1.0 + 1e-6, "{}: {found}", strategy.mesh);
    assert!(shared > 0 || found > 1.0 - 1e-6, "{}: {found}", strategy.mesh);
}

/// The losses of a recipe's steps under a strategy.
fn losses(
    reference: &CurveReference,
    curve: &Curve,
    step: &Step,
    graph: &Graph,
    strategy: &Strategy,
) -> Vec<f64> {
    let what = &strategy.mesh;
    let cost = cost_model("H100", strategy.mesh.ranks());
    let serial = planc_codegen::partition(graph, strategy, &cost).expect("it is partitioned");
    let program = overlapped(graph, &serial, &cost);
    assert_sum(graph, strategy, &serial, &cost);
    let found = planc_ir::program::verify::verify(&program);
    assert!(found.is_empty(), "{what}: {:?}", &found[..found.len().min(3)]);
    let path: &Path = &reference.model.path;
    let (weights, constants) = contents(graph, path);
    let mut executor = Executor::new(program, &weights, &constants).expect("it loads");
    let rate = Tensor::from_f64(TensorType::new(DType::F32, []), |_| curve.recipe.learning_rate);
    let rate = rate.expect("a scalar");
    let one = |at: usize| {
        let batches = reference.step(curve, at).into_iter().map(|inputs| {
            let mut inputs = renamed(inputs, step.training.labels.as_deref());
            inputs.insert(step.training.learning_rate.clone(), rate.clone());
            inputs
        });
        let outputs = executor.step(&batches.collect::<Vec<_>>()).expect("it runs");
        outputs[0].1.f64_at(0)
    };
    (0..curve.steps()).map(one).collect()
}

fn check(name: &str, recipe: &str) {
    let Some(reference) = CurveReference::load(name) else { return };
    let curve = &reference.curves[recipe];
    let raised = model(&reference.model.path, &reference.batches[0]);
    let options = options(loss(reference.loss, &reference.output), &curve.recipe);
    let step = step(&raised, &options).expect("the step is made");
    let found = planc_ir::verify::verify(&step.graph);
    assert!(found.is_empty(), "{name}: {:?}", &found[..found.len().min(3)]);

    let one = Strategy::replicated(&step.graph, Mesh::new([("device", 1)]));
    let alone = losses(&reference, curve, &step, &step.graph, &one);
    curve.assert_close(&alone, 1e-4);

    let same = |what: &str, graph: &Graph, strategy: &Strategy| {
        let found = losses(&reference, curve, &step, graph, strategy);
        let far = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        eprintln!("{name} {recipe:<12} {:<14} {what:<24} {far:.1e}", strategy.mesh.to_string());
        assert!(far <= 1e-5, "{name}, {recipe}, {what} on {}: off by {far:e}", strategy.mesh);
    };
    for what in [Recompute::Cheap, Recompute::Blocks(u32::MAX)] {
        let graph = recompute(&step.graph, what);
        let found = planc_ir::verify::verify(&graph);
        assert!(found.is_empty(), "{name}, {what}: {:?}", &found[..found.len().min(3)]);
        let one = Strategy::replicated(&graph, Mesh::new([("device", 1)]));
        same(&format!("recomputing {what}"), &graph, &one);
    }
    let mut rng = Rng::with_seed(11);
    for mesh in [
        Mesh::new([("device", 2)]),
        Mesh::new([("data", 2), ("tensor", 2)]),
        Mesh::new([("device", 8)]),
    ] {
        let cost = cost_model("H100", mesh.ranks());
        let blocks = Blocks::find(&step.graph);
        let space = Space::new(&step.graph, &mesh, &blocks, &cost);
        for baseline in baselines(&step.graph).into_iter().skip(1) {
            let mut strategy = baseline.strategy(&space, &cost);
            strategy.gather_again = mesh.rank() == 1;
            same(baseline.name(), &step.graph, &strategy);
        }
        let only = SearchOptions { mesh: Some(mesh.clone()), ..SearchOptions::default() };
        let chosen = search(&step.graph, &cost, &only).expect("something fits").strategy;
        same("chosen", &step.graph, &chosen);
        same("random", &step.graph, &random::strategy(&step.graph, &mesh, &mut rng));
    }
}

macro_rules! curves {
    ($($test:ident: $name:literal, $recipe:literal;)+) => {
        $(#[test]
        fn $test() {
            check($name, $recipe);
        })+
    };
}

curves! {
    gpt2_adamw: "gpt2-dynamo", "adamw";
    gpt2_clipped: "gpt2-dynamo", "adamw-clipped";
    gpt2_accumulated: "gpt2-dynamo", "adamw-accumulated";
    llama_adamw: "llama-dynamo", "adamw";
    resnet18_adamw: "resnet18-dynamo", "adamw";
    resnet18_momentum: "resnet18-dynamo", "sgd-momentum";
}
