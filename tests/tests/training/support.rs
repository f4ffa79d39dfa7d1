//! Models and steps as the tests need them.

use planc::rewrite::raise;
use planc::train::{Loss, Optimizer, TrainOptions};
use planc_ir::onnx::{ImportOptions, import};
use planc_ir::ops::optimizer_step::Rule;
use planc_ir::{Graph, Tensor};
use planc_tests::training::{self, LABELS, Recipe};
use planc_tests::{DataSet, bindings};
use std::collections::BTreeMap;
use std::path::Path;

/// The raised graph of a model, imported for training at the extents of these inputs.
pub fn model(path: &Path, inputs: &BTreeMap<String, Tensor>) -> Graph {
    let mut inputs = inputs.clone();
    inputs.remove(LABELS);
    let set = DataSet { inputs, outputs: BTreeMap::new() };
    let bind = bindings(path, &set).into_iter().collect();
    let model = import(path, &ImportOptions { bind, training: true }).expect("the model imports");
    raise(&model.graph).graph
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
