//! Gradients of whole models against PyTorch's.

use super::support::{loss, model, renamed};
use planc::train::{TrainOptions, gradients};
use planc_ir::sharding::{Mesh, Strategy};
use planc_tests::training::GradientReference;
use planc_tests::{contents, cost_model};
use std::collections::BTreeMap;

fn check(name: &str) {
    let Some(reference) = GradientReference::load(name) else { return };
    let expected = &reference.expected;
    let path = &reference.model.path;
    let graph = model(path, &reference.inputs);
    let loss = loss(expected.loss, &expected.output);
    let options = TrainOptions { loss, ..TrainOptions::default() };
    let (graph, parameters, labels) = gradients(&graph, &options).expect("it is differentiated");
    let found = planc_ir::verify::verify(&graph);
    assert!(found.is_empty(), "{name}: {found:?}");
    let mesh = Mesh::new([("device", 1)]);
    let strategy = Strategy::replicated(&graph, mesh);
    let program = planc_codegen::partition(&graph, &strategy, &cost_model("H100", 1))
        .expect("it is partitioned");
    let found = planc_ir::program::verify::verify(&program);
    assert!(found.is_empty(), "{name}: {found:?}");
    let (weights, constants) = contents(&graph, path);
    let inputs = renamed(&reference.inputs, labels.as_deref());
    let mut outputs = planc_runtime::execute(&program, &weights, &constants, &inputs)
        .expect("it runs")
        .into_iter()
        .map(|(_, tensor)| tensor);
    let value = outputs.next().expect("the loss").f64_at(0);
    let found: BTreeMap<_, _> = parameters.into_iter().zip(outputs).collect();
    eprintln!("{name}: loss {value}, {} gradients", found.len());
    reference.assert_close(value, &found, 1e-4);
}

macro_rules! models {
    ($($test:ident: $name:literal),+ $(,)?) => {
        $(#[test]
        fn $test() {
            check($name);
        })+
    };
}

models! {
    gpt2: "gpt2-dynamo",
    llama: "llama-dynamo",
    bert: "bert-dynamo",
    bert_of_the_legacy_exporter: "bert-legacy",
    vit: "vit-hf-dynamo",
    resnet18: "resnet18-dynamo",
    dlrm: "dlrm-dynamo",
}
