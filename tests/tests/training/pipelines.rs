//! Pipelines: the losses of one rank under every schedule, mixed with data and tensor parallelism.

use super::support::{How, loss, options, pipelined, planned, renamed};
use planc::stages::Pipelining;
use planc::train::TrainOptions;
use planc::train::policy::Asked;
use planc_codegen::Schedule;
use planc_ir::Tensor;
use planc_ir::plan::Plan;
use planc_ir::sharding::Mesh;
use planc_runtime::Session;
use planc_tests::training::CurveReference;
use std::collections::BTreeMap;

/// Steps of each curve.
const STEPS: usize = 6;

/// The losses of a plan, whose step `s` runs micro-batches `s * M` and on.
fn losses(reference: &CurveReference, plan: &Plan, rate: f64) -> Vec<f64> {
    let training = plan.training.as_ref().expect("it trains");
    let count = training.micro_batches as usize;
    let batches: Vec<BTreeMap<String, Tensor>> = (reference.batches.iter())
        .map(|inputs| renamed(inputs, training.labels.as_deref()))
        .collect();
    let mut session = Session::load(plan, &reference.model.path).expect("it loads");
    let mut step = |s: usize| {
        let of_step = |m: usize| batches[(s * count + m) % batches.len()].clone();
        let inputs: Vec<_> = (0..count).map(of_step).collect();
        session.train_step(&inputs, rate as f32).expect("it runs").loss
    };
    (0..STEPS).map(&mut step).collect()
}

fn check(name: &str, recipe: &str, stages: u32) {
    let Some(reference) = CurveReference::load(name) else { return };
    let recipe = &reference.curves[recipe].recipe;
    let kinds = [
        (Schedule::GPipe, 1),
        (Schedule::OneFOneB, 1),
        (Schedule::ZeroBubble, 1),
        (Schedule::Interleaved, 2),
        (Schedule::ZeroBubbleV, 2),
    ];
    let options = TrainOptions {
        micro_batches: 4,
        ..options(loss(reference.loss, &reference.output), recipe)
    };
    let (path, inputs) = (&reference.model.path, &reference.batches[0]);
    let one = Mesh::new([("device", 1)]);
    let alone = planned(path, inputs, &options, Asked::default(), &one, How::Searched);
    let expected = losses(&reference, &alone, recipe.learning_rate);
    for (schedule, chunks) in kinds {
        for (mesh, how) in [
            (one.clone(), How::Searched),
            (Mesh::new([("device", 2)]), How::Searched),
            (Mesh::new([("device", 2)]), How::Baseline("data parallel")),
            (Mesh::new([("device", 2)]), How::Baseline("tensor parallel")),
            (Mesh::new([("device", 2)]), How::Baseline("ZeRO 2")),
        ] {
            if stages * mesh.ranks() > 8 {
                continue;
            }
            let kind = Pipelining { stages, schedule, chunks };
            let plan = pipelined(path, inputs, &options, Asked::default(), kind, &mesh, how);
            assert_eq!(plan.stages.len(), stages as usize);
            let found = losses(&reference, &plan, recipe.learning_rate);
            let far = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            eprintln!("{name} {stages} x {mesh} {schedule:<12} {how:?}: {far:.1e}");
            assert!(far <= 1e-5, "{name}, {schedule}, {stages} x {mesh}, {how:?}: off by {far:e}");
        }
    }
}

#[test]
fn gpt2_in_two() {
    check("gpt2-dynamo", "adamw-clipped", 2);
}

#[test]
fn gpt2_in_four() {
    check("gpt2-dynamo", "adamw", 4);
}

#[test]
fn llama_in_two() {
    check("llama-dynamo", "adamw", 2);
}

#[test]
fn llama_in_four() {
    check("llama-dynamo", "adamw", 4);
}
