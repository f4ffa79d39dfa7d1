//! Models and steps as the tests need them.

use planc::compile::{CompiledStage, compile_step};
use planc::rewrite::raise;
use planc::search::SearchOptions;
use planc::search::baselines::baselines;
use planc::search::blocks::Blocks;
use planc::search::space::Space;
use planc::stages::{Pipelines, Pipelining};
use planc::train::policy::Asked;
use planc::train::{Loss, Optimizer, TrainOptions};
use planc_cost_model::CostModel;
use planc_ir::onnx::{Model, import};
use planc_ir::ops::optimizer_step::Rule;
use planc_ir::plan::{Plan, Stage};
use planc_ir::program::Program;
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::{Graph, Tensor};
use planc_tests::training::{self, LABELS, Recipe};
use planc_tests::{DataSet, bindings, cost_model};
use std::collections::BTreeMap;
use std::path::Path;

/// The raised graph of a model, imported for training at the extents of these inputs.
pub fn model(path: &Path, inputs: &BTreeMap<String, Tensor>) -> Graph {
    raise(&imported(path, inputs, &TrainOptions::default()).graph).graph
}

fn imported(path: &Path, inputs: &BTreeMap<String, Tensor>, options: &TrainOptions) -> Model {
    let mut inputs = inputs.clone();
    inputs.remove(LABELS);
    let set = DataSet { inputs, outputs: BTreeMap::new() };
    let bind = bindings(path, &set).into_iter().collect();
    import(path, &options.import(bind)).expect("the model imports")
}

/// How a plan is found.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// By the search.
    Searched,
    /// As a baseline, by its name: it may split what is too small for splitting to pay.
    Baseline(&'static str),
}

/// A plan of training steps on a mesh, as it reads back from its file.
pub fn planned(
    path: &Path,
    inputs: &BTreeMap<String, Tensor>,
    options: &TrainOptions,
    asked: Asked,
    mesh: &Mesh,
    how: How,
) -> Plan {
    let model = imported(path, inputs, options);
    let file = path.file_name().expect("a name").to_string_lossy().into_owned();
    let cost = cost_model("H100", mesh.ranks());
    let only = SearchOptions { mesh: Some(mesh.clone()), ..SearchOptions::default() };
    let compiled = compile_step(&model, &file, &cost, &only, options, asked, &|_| ())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut plan = compiled.plan;
    if let How::Baseline(name) = how {
        let CompiledStage { graph, search, .. } = &compiled.stages[0];
        let mut strategy = baseline(graph, mesh, &cost, name);
        strategy.gather_again = search.strategy.gather_again;
        let program = planc_codegen::partition(graph, &strategy, &cost);
        carry_out(&mut plan.stages[0], &strategy, program.expect("it is partitioned"));
    }
    read_back(&plan)
}

fn carry_out(stage: &mut Stage, strategy: &Strategy, program: Program) {
    for (node, strategy) in stage.strategy.iter_mut().zip(&strategy.ops) {
        node.strategy = strategy.clone();
    }
    stage.program = program;
}

fn read_back(plan: &Plan) -> Plan {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("step.plan.json");
    plan.save(&at).expect("the plan is written");
    Plan::load(&at).expect("the plan reads back")
}

/// A plan of a pipeline, each of whose stages has this mesh, as it reads back from its file.
pub fn pipelined(
    path: &Path,
    inputs: &BTreeMap<String, Tensor>,
    options: &TrainOptions,
    asked: Asked,
    kind: Pipelining,
    mesh: &Mesh,
    how: How,
) -> Plan {
    let model = imported(path, inputs, options);
    let file = path.file_name().expect("a name").to_string_lossy().into_owned();
    let cost = cost_model("H100", kind.stages * mesh.ranks());
    let search = SearchOptions { mesh: Some(mesh.clone()), ..SearchOptions::default() };
    let asked = Asked { pipeline: Some(Pipelines::Of(kind)), ..asked };
    let compiled = compile_step(&model, &file, &cost, &search, options, asked, &|_| ())
        .unwrap_or_else(|e| panic!("{}, {kind:?}: {e}", path.display()));
    let mut plan = compiled.plan;
    for (stage, compiled) in plan.stages.iter_mut().zip(&compiled.stages) {
        let found = planc_ir::verify::verify(&compiled.graph);
        assert!(found.is_empty(), "{kind:?}: {:?}", &found[..found.len().min(3)]);
        if let How::Baseline(name) = how {
            let mut strategy = baseline(&compiled.graph, mesh, &cost, name);
            strategy.gather_again = compiled.search.strategy.gather_again;
            let order = &stage.program.order;
            let (graph, chunks) = (&compiled.graph, &compiled.chunk_of);
            let program = planc_codegen::stage(graph, &strategy, &cost, chunks, order);
            carry_out(stage, &strategy, program.expect("it is partitioned"));
        }
    }
    read_back(&plan)
}

/// The strategy of a baseline, by its name.
pub fn baseline(graph: &Graph, mesh: &Mesh, cost: &CostModel, name: &str) -> Strategy {
    let blocks = Blocks::find(graph);
    let space = Space::new(graph, mesh, &blocks, cost);
    let found = baselines(graph).into_iter().find(|b| b.name() == name);
    found.unwrap_or_else(|| panic!("no baseline is called {name}")).strategy(&space, cost)
}

/// A loss of an output.
pub fn loss(kind: training::Loss, output: &str) -> Loss {
    let output = Some(output.to_string());
    match kind {
        training::Loss::CrossEntropy => Loss::CrossEntropy { output },
        training::Loss::Mse => Loss::MeanSquare { output },
    }
}

/// What a recipe asks of a step.
pub fn options(loss: Loss, recipe: &Recipe) -> TrainOptions {
    let rule = match recipe.optimizer {
        training::Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
            Rule::Adam { beta1, beta2, epsilon, weight_decay, decoupled: true }
        }
        training::Optimizer::Sgd { momentum } => {
            Rule::Sgd { momentum, dampening: 0.0, weight_decay: 0.0, nesterov: false }
        }
    };
    TrainOptions {
        loss,
        optimizer: Optimizer(rule),
        clip_norm: recipe.clip_norm,
        micro_batches: recipe.micro_batches as u32,
        ..TrainOptions::default()
    }
}

/// Inputs with the labels under the name that the step gives them.
pub fn renamed(
    inputs: &BTreeMap<String, Tensor>,
    labels: Option<&str>,
) -> BTreeMap<String, Tensor> {
    let mut inputs = inputs.clone();
    if let (Some(tensor), Some(name)) = (inputs.remove(LABELS), labels) {
        inputs.insert(name.to_string(), tensor);
    }
    inputs
}
