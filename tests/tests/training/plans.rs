//! What is decided about training steps of GPT with 1.3 billion parameters on 8 A100 of 40 GB: nothing is
//! recomputed or kept in shards for memory's sake where memory is to spare, and what is needed where plain data
//! parallelism does not fit.

use planc::compile::{Compiled, compile_step};
use planc::report::plan_report;
use planc::search::SearchOptions;
use planc::train::policy::Asked;
use planc::train::{Precision, Recompute, TrainOptions};
use planc_cost_model::CostModel;
use planc_ir::onnx::import;
use planc_ir::sharding::Mesh;
use planc_models::{Config, Size, build, write};
use planc_tests::cost_model;

fn compiled(batch: u64, mesh: Option<Mesh>, cost: &CostModel) -> Compiled {
    let sizes = [
        (Size::Layers, 24),
        (Size::Hidden, 2048),
        (Size::Heads, 16),
        (Size::Vocab, 50257),
        (Size::Seq, 1024),
    ];
    let config = sizes.iter().fold(Config::default(), |c, &(size, n)| c.with(size, n));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gpt-1.3b.onnx");
    write(&build("gpt", &config).expect("builds"), &path).expect("written");
    let bind = [("batch".to_string(), batch)].into();
    let options = TrainOptions { precision: Precision::Bf16, ..TrainOptions::default() };
    let model = import(&path, &options.import(bind)).expect("imports");
    let search = SearchOptions { mesh, ..SearchOptions::default() };
    compile_step(&model, "gpt-1.3b.onnx", cost, &search, &options, Asked::default(), &|_| ())
        .expect("a plan")
}

fn fits(compiled: &Compiled, baseline: &str) -> bool {
    compiled.plan.baselines.iter().any(|b| b.name == baseline && b.fits)
}

#[test]
fn with_memory_to_spare() {
    let cost = cost_model("A100-40GB", 8);
    let compiled = compiled(8, None, &cost);
    assert!(fits(&compiled, "data parallel"), "there is memory to spare");
    let step = compiled.step.as_ref().expect("a step");
    assert_eq!(step.recompute, [Recompute::Nothing]);
    assert!(!compiled.stages[0].search.strategy.gather_again);
    insta::assert_snapshot!("gpt-1.3b-batch-8", plan_report(&cost, &compiled, false));
}

#[test]
fn where_data_parallelism_does_not_fit() {
    let cost = cost_model("A100-40GB", 8);
    let compiled = compiled(128, Some(Mesh::new([("device", 8)])), &cost);
    assert!(!fits(&compiled, "data parallel"));
    assert!(compiled.plan.predicted.memory_bytes <= cost.memory_bytes());
    let step = compiled.step.as_ref().expect("a step");
    assert_ne!(step.recompute, [Recompute::Nothing]);
    insta::assert_snapshot!("gpt-1.3b-batch-128", plan_report(&cost, &compiled, false));
}
