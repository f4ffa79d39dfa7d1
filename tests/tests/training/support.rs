//! Models and steps as the tests need them.

use planc::pipeline::{Compiled, compile_step};
use planc::rewrite::raise;
use planc::search::SearchOptions;
use planc::train::policy::Asked;
use planc::train::{Loss, Optimizer, TrainOptions};
use planc_ir::onnx::{ImportOptions, Model, import};
use planc_ir::ops::optimizer_step::Rule;
use planc_ir::plan::Plan;
use planc_ir::sharding::Mesh;
use planc_ir::{Graph, Tensor};
use planc_tests::training::{self, LABELS, Recipe};
use planc_tests::{DataSet, bindings, cost_model};
use std::collections::BTreeMap;
use std::path::Path;

/// The raised graph of a model, imported for training at the extents of these inputs.
pub fn model(path: &Path, inputs: &BTreeMap<String, Tensor>) -> Graph {
    raise(&imported(path, inputs).graph).graph
}

fn imported(path: &Path, inputs: &BTreeMap<String, Tensor>) -> Model {
    let mut inputs = inputs.clone();
    inputs.remove(LABELS);
    let set = DataSet { inputs, outputs: BTreeMap::new() };
    let bind = bindings(path, &set).into_iter().collect();
    import(path, &ImportOptions { bind, training: true }).expect("the model imports")
}

/// A plan of training steps on a mesh, as it reads back from its file, within a part of the memory that the
/// quickest one takes: one that splits state if that is less than all.
pub fn plan_within(
    part: f64,
    path: &Path,
    inputs: &BTreeMap<String, Tensor>,
    options: &TrainOptions,
    mesh: &Mesh,
) -> Plan {
    let plan = |limit| compiled(path, inputs, options, Asked::default(), mesh, limit).plan;
    let quickest = plan(None);
    if part < 1.0 {
        plan(Some((quickest.predicted.memory_bytes as f64 * part) as u64))
    } else {
        quickest
    }
}

/// A plan of training steps on a mesh, as it reads back from its file.
pub fn compiled(
    path: &Path,
    inputs: &BTreeMap<String, Tensor>,
    options: &TrainOptions,
    asked: Asked,
    mesh: &Mesh,
    memory_bytes: Option<u64>,
) -> Compiled {
    let model = imported(path, inputs);
    let file = path.file_name().expect("a name").to_string_lossy().into_owned();
    let cost = cost_model("H100", mesh.ranks());
    let mesh = Some(mesh.clone());
    let only = SearchOptions { mesh, memory_bytes, ..SearchOptions::default() };
    let mut compiled = compile_step(&model, &file, &cost, &only, options, asked, &|_| ())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("step.plan.json");
    compiled.plan.save(&at).expect("the plan is written");
    compiled.plan = Plan::load(&at).expect("the plan reads back");
    compiled
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
