//! Any legal strategy of a real model is executed right, not only the chosen one: strategies drawn at
//! random per op (partial sums, reshards in odd places, extents that do not divide) give the outputs
//! that ONNX Runtime computed.
#![allow(clippy::print_stderr)] // says aloud what was drawn

use fastrand::Rng;
use planc::verify::{Tolerance, compare};
use planc_ir::onnx::{ImportOptions, import};
use planc_ir::sharding::Mesh;
use planc_tests::{bindings, contents, cost_model, random, run_model};

/// Strategies drawn for each mesh.
const DRAWS: u64 = 2;

fn meshes() -> Vec<Mesh> {
    let mut uneven = Mesh::new([("a", 2), ("b", 2)]);
    uneven.axes[1].shares = Some(vec![1, 3]);
    vec![
        Mesh::new([("a", 2)]),
        Mesh::new([("a", 3)]),
        Mesh::new([("a", 2), ("b", 2)]),
        Mesh::new([("a", 4), ("b", 2)]),
        uneven,
    ]
}

fn check(name: &str) {
    let Some(model) = run_model(name) else { return };
    let set = &model.sets[0];
    let bind = bindings(&model.path, set).into_iter().collect();
    let graph = import(&model.path, &ImportOptions { bind, ..ImportOptions::default() })
        .expect("imports")
        .graph;
    let (weights, constants) = contents(&graph, &model.path);
    let mut rng = Rng::with_seed(7);
    let tolerance = Tolerance { atol: model.atol, rtol: model.rtol };
    for mesh in meshes() {
        let cost = cost_model("H100", mesh.ranks());
        for draw in 0..DRAWS {
            let strategy = random::strategy(&graph, &mesh, &mut rng);
            let program =
                planc_codegen::partition(&graph, &strategy, &cost).expect("it is partitioned");
            let found = planc_ir::program::verify::verify(&program);
            assert!(found.is_empty(), "{name} on {mesh}, draw {draw}: {found:?}");
            let outputs = planc_runtime::execute(&program, &weights, &constants, &set.inputs)
                .unwrap_or_else(|e| panic!("{name} on {mesh}, draw {draw}: {e}"));
            for (output, found) in &outputs {
                let c = compare(found, &set.outputs[output], tolerance);
                assert!(c.equal, "{name} on {mesh}, draw {draw}: `{output}` {c:?}");
            }
            let reshards = program
                .instrs
                .iter()
                .filter(|i| matches!(i, planc_ir::program::Instr::Reshard { .. }))
                .count();
            eprintln!("{name:<20} {mesh:<16} draw {draw}: {reshards} reshard steps, equal");
        }
    }
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
    bert_legacy: "bert-legacy",
    vit_hf_dynamo: "vit-hf-dynamo",
    resnet18_dynamo: "resnet18-dynamo",
    mobilenetv2_legacy: "mobilenetv2-legacy",
    dlrm_dynamo: "dlrm-dynamo",
}
