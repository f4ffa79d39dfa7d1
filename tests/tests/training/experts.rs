//! Training layers of experts: the loss curve is the same however the experts are split.

use super::support::{model, renamed};
use fastrand::Rng;
use planc::search::baselines::baselines;
use planc::search::blocks::Blocks;
use planc::search::space::Space;
use planc::train::{Loss, Optimizer, Step, TrainOptions, step};
use planc_ir::ops::Op;
use planc_ir::ops::optimizer_step::Rule;
use planc_ir::sharding::{AxisUse, Mesh, OpStrategy, Sharding, Strategy};
use planc_ir::{DType, Graph, NodeId, Tensor, TensorType};
use planc_runtime::Executor;
use planc_tests::training::LABELS;
use planc_tests::{TestModel, contents, cost_model, random, run_model};
use std::collections::BTreeMap;

/// Steps of each run.
const STEPS: usize = 6;

/// The inputs of the model's first data set, and the next tokens.
fn batch(model: &TestModel) -> BTreeMap<String, Tensor> {
    let mut inputs = model.sets[0].inputs.clone();
    let tokens = &inputs["input_ids"];
    let last = tokens.shape()[1] as usize - 1;
    let next = |i: usize| if i % (last + 1) == last { -100 } else { tokens.int_at(i + 1) };
    let labels = Tensor::from_int(TensorType::new(DType::I64, tokens.shape()), next);
    inputs.insert(LABELS.to_string(), labels.expect("as many as tokens"));
    inputs
}

/// The losses of steps that see the same batch.
fn run(
    model: &TestModel,
    step: &Step,
    inputs: &BTreeMap<String, Tensor>,
    strategy: &Strategy,
) -> Vec<f64> {
    let cost = cost_model("H100", strategy.mesh.ranks());
    let program = planc_codegen::partition(&step.graph, strategy, &cost).expect("it is legal");
    assert_eq!(planc_ir::program::verify::verify(&program), []);
    let (weights, constants) = contents(&step.graph, &model.path);
    let mut executor = Executor::new(program, &weights, &constants).expect("it loads");
    let mut inputs = renamed(inputs, step.training.labels.as_deref());
    let rate = Tensor::from_f64(TensorType::new(DType::F32, []), |_| 1e-2).expect("a scalar");
    inputs.insert(step.training.learning_rate.clone(), rate);
    let inputs = [inputs];
    (0..STEPS).map(|_| executor.step(&inputs).expect("it runs")[0].1.f64_at(0)).collect()
}

/// Layers of experts and their gradients split along a factor, all else replicated.
fn split(graph: &Graph, mesh: &Mesh, factor: &str) -> Strategy {
    let of = |id: NodeId| {
        if !matches!(graph.node(id).op, Op::MixtureOfExperts(_) | Op::MixtureOfExpertsGrad(_)) {
            return OpStrategy::replicated(mesh);
        }
        let rule = graph.rule(id);
        let splits = |usage: &AxisUse| matches!(usage, AxisUse::Split(f) if rule.factors[f.index()].name == factor);
        let usage = rule.axis_uses().into_iter().find(splits).expect("the factor is there");
        OpStrategy { axes: vec![usage] }
    };
    let ops = graph.node_ids().map(of).collect();
    let whole = |v| Sharding::replicated(graph.ty(v).rank());
    Strategy::from_ops(graph, mesh.clone(), ops, whole).expect("it is legal")
}

fn check(name: &str) {
    let Some(test) = run_model(name) else { return };
    let inputs = batch(&test);
    let raised = model(&test.path, &inputs);
    let rule = Rule::Sgd { momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false };
    let options = TrainOptions {
        loss: Loss::CrossEntropy { output: None },
        optimizer: Optimizer(rule),
        ..TrainOptions::default()
    };
    let step = step(&raised, &options).expect("the step is made");
    assert_eq!(planc_ir::verify::verify(&step.graph), []);
    let gradients = step.graph.nodes.iter().filter(|n| matches!(n.op, Op::MixtureOfExpertsGrad(_)));
    assert_eq!(gradients.count(), 2, "{name}: one a layer");

    let one = Strategy::replicated(&step.graph, Mesh::new([("device", 1)]));
    let alone = run(&test, &step, &inputs, &one);
    assert!(alone[STEPS - 1] < alone[0] - 0.1, "{name} learns its batch: {alone:?}");
    let same = |what: &str, strategy: &Strategy| {
        let found = run(&test, &step, &inputs, strategy);
        let far = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        eprintln!("{name} {:<14} {what:<24} {far:.1e}", strategy.mesh.to_string());
        assert!(far <= 1e-5, "{name}, {what} on {}: off by {far:e}", strategy.mesh);
    };
    let mut rng = Rng::with_seed(5);
    for ranks in [2, 4] {
        let mesh = Mesh::new([("device", ranks)]);
        let cost = cost_model("H100", ranks);
        for factor in ["e", "f", "o", "d0"] {
            same(&format!("split along {factor}"), &split(&step.graph, &mesh, factor));
        }
        let blocks = Blocks::find(&step.graph);
        let space = Space::new(&step.graph, &mesh, &blocks, &cost);
        for baseline in baselines(&step.graph).into_iter().skip(1) {
            same(baseline.name(), &baseline.strategy(&space, &cost));
        }
        same("random", &random::strategy(&step.graph, &mesh, &mut rng));
    }
}

#[test]
fn mixtral_of_gathered_experts() {
    check("mixtral-batched-dynamo");
}

#[test]
fn mixtral_of_all_experts() {
    check("mixtral-dense-dynamo");
}
