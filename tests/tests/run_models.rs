//! Real exported models: planned for 1, 2, 4 and 8 devices and run on as many CPU ranks, the outputs are
//! those that ONNX Runtime computed.
#![allow(clippy::print_stderr)] // says aloud how close they are

use planc_tests::{RunResult, plan_and_run, run_model};

const RANKS: [u32; 4] = [1, 2, 4, 8];

fn check(name: &str) {
    let Some(model) = run_model(name) else { return };
    assert!(!model.sets.is_empty(), "{name} has no data");
    let mut failures = Vec::new();
    for ranks in RANKS {
        for (i, set) in model.sets.iter().enumerate() {
            let RunResult { mesh, worst } = plan_and_run(&model, set, ranks);
            eprintln!(
                "{name:<22} set {i} {ranks} ranks {mesh:<24} largest difference {:.2e} absolute, {:.2e} relative",
                worst.max_abs, worst.max_rel
            );
            if !worst.equal {
                failures.push(format!("{name}, set {i}, {ranks} ranks: {worst:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

macro_rules! models {
    ($($test:ident: $name:literal),+ $(,)?) => {
        $(#[test] fn $test() { check($name); })+
    };
}

models! {
    gpt2_dynamo: "gpt2-dynamo",
    gpt2_legacy: "gpt2-legacy",
    llama_dynamo: "llama-dynamo",
    llama_legacy: "llama-legacy",
    bert_dynamo: "bert-dynamo",
    bert_legacy: "bert-legacy",
    vit_hf_dynamo: "vit-hf-dynamo",
    resnet18_dynamo: "resnet18-dynamo",
    resnet18_legacy: "resnet18-legacy",
    mobilenetv2_dynamo: "mobilenetv2-dynamo",
    mobilenetv2_legacy: "mobilenetv2-legacy",
    dlrm_dynamo: "dlrm-dynamo",
    dlrm_legacy: "dlrm-legacy",
}
