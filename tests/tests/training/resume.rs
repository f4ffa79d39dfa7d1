//! Twenty steps of a real model through plan files and checkpoints, and resumed under other plans.

use super::support::{How, loss, options, planned, renamed};
use planc::train::policy::Asked;
use planc::train::{Optimizer, TrainOptions};
use planc_ir::ops::optimizer_step::Rule;
use planc_ir::plan::Plan;
use planc_ir::sharding::Mesh;
use planc_runtime::Session;
use planc_runtime::checkpoint::{self, CheckpointError};
use planc_tests::training::{Curve, CurveReference};

fn plan(reference: &CurveReference, options: &TrainOptions, mesh: &Mesh) -> Plan {
    let how = if mesh.rank() > 1 { How::Searched } else { How::Baseline("ZeRO 2") };
    let (path, inputs) = (&reference.model.path, &reference.batches[0]);
    planned(path, inputs, options, Asked::default(), mesh, how)
}

/// Trains up to a step; the losses.
fn train(session: &mut Session, reference: &CurveReference, curve: &Curve, to: u64) -> Vec<f64> {
    let labels = session.training().expect("training").labels.clone();
    let mut losses = Vec::new();
    while session.steps_done() < to {
        let batches = reference.step(curve, session.steps_done() as usize);
        let batches: Vec<_> =
            batches.into_iter().map(|inputs| renamed(inputs, labels.as_deref())).collect();
        let rate = curve.recipe.learning_rate as f32;
        losses.push(session.train_step(&batches, rate).expect("a step").loss);
    }
    losses
}

#[test]
fn training_goes_on_under_other_plans() {
    let Some(reference) = CurveReference::load("gpt2-dynamo") else { return };
    let curve = &reference.curves["adamw"];
    let options = options(loss(reference.loss, &reference.output), &curve.recipe);
    let path = &reference.model.path;
    let session = |mesh: &Mesh| {
        let plan = plan(&reference, &options, mesh);
        Session::load(&plan, path).unwrap_or_else(|e| panic!("{mesh}: {e}"))
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = session(&Mesh::new([("data", 2), ("tensor", 2)]));
    let mut losses = train(&mut first, &reference, curve, 10);
    let saved = checkpoint::save(&first, folder.path(), 0).expect("it is saved");
    losses.extend(train(&mut first, &reference, curve, 20));
    curve.assert_close(&losses, 1e-4);

    for mesh in [Mesh::new([("device", 2)]), Mesh::new([("device", 8)])] {
        let mut resumed = session(&mesh);
        checkpoint::load(&mut resumed, &saved).expect("it is resumed");
        assert_eq!(resumed.steps_done(), 10);
        let found = train(&mut resumed, &reference, curve, 20);
        let far = found.iter().zip(&losses[10..]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        eprintln!("resumed on {mesh}: {far:.1e}");
        assert_eq!(found.len(), 10);
        assert!(far <= 1e-5, "resumed on {mesh}: off by {far:e}");
    }
}

#[test]
fn checkpoints_of_other_models_and_optimizers_are_refused() {
    let Some(reference) = CurveReference::load("gpt2-dynamo") else { return };
    let Some(other) = CurveReference::load("llama-dynamo") else { return };
    let adam = options(loss(reference.loss, &reference.output), &reference.curves["adamw"].recipe);
    let sgd = |momentum| {
        let rule = Rule::Sgd { momentum, dampening: 0.0, weight_decay: 0.0, nesterov: false };
        TrainOptions { optimizer: Optimizer(rule), ..adam.clone() }
    };
    let two = Mesh::new([("device", 2)]);
    let session = |reference: &CurveReference, options: &TrainOptions| {
        Session::load(&plan(reference, options, &two), &reference.model.path).expect("it loads")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let saved = checkpoint::save(&session(&reference, &adam), folder.path(), 0).expect("saved");
    let plain = folder.path().join("plain");
    let plain = checkpoint::save(&session(&reference, &sgd(0.0)), &plain, 0).expect("saved");

    let refused = |mut session: Session, path| {
        let error = checkpoint::load(&mut session, path).expect_err("it is refused");
        eprintln!("{error}");
        assert_eq!(session.steps_done(), 0);
        error
    };
    let error = refused(session(&reference, &sgd(0.9)), &saved);
    let CheckpointError::Unknown { name, .. } = &error else { panic!("{error}") };
    assert!(name.ends_with(":first_moment"), "{name}");
    let error = refused(session(&reference, &adam), &plain);
    let CheckpointError::Missing { name, .. } = &error else { panic!("{error}") };
    assert!(name.ends_with("_moment"), "{name}");
    let recipe = &other.curves["adamw"].recipe;
    let llama = session(&other, &options(loss(other.loss, &other.output), recipe));
    let error = refused(llama, &saved);
    let CheckpointError::Unknown { name, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
}
