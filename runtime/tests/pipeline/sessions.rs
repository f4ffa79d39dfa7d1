//! Plans of several stages: sessions, and checkpoints that go from one cut to another.

use super::cut::{cut, places};
use super::model::{Bytes, MICRO_BATCHES, batches, losses, plan, session, some_strategy, step};
use super::orders::{Kind, orders};
use super::steps::mesh;
use planc_codegen::stage;
use planc_ir::Phase;
use planc_ir::plan::{Plan, Stage};
use planc_ir::sharding::{Mesh, Strategy};
use planc_runtime::{Session, checkpoint};
use std::path::Path;

/// The small model's plan in two stages: the product, and the loss.
fn plan_of_stages(folder: &Path, seed: u64) -> Plan {
    let graph = step(4, 6, 5, None);
    let whole = Strategy::replicated(&graph, Mesh::new([("a", 1)]));
    let mut plan = plan(folder, &graph, &whole);
    let first = |name: &str| name == "y" || name == "raw" || name == "scaled" || name == "gradient";
    let part = |n: &planc_ir::Node| usize::from(!first(&n.name) && n.phase != Phase::Update);
    let parts: Vec<usize> = graph.nodes.iter().map(part).collect();
    let (cuts, channels) = cut(&graph, &places(&parts, &[0, 1]), 2);
    let orders = orders(Kind::InTurn, &[0, 1], MICRO_BATCHES);
    plan.stages.clear();
    let mut first_rank = 0;
    for (s, (cut, order)) in cuts.iter().zip(&orders).enumerate() {
        let mesh = mesh(seed + 3 * s as u64);
        let strategy = some_strategy(&cut.graph, &mesh, seed + s as u64);
        let program = stage(&cut.graph, &strategy, &Bytes, &cut.chunks, order).unwrap();
        plan.stages.push(Stage { first_rank, strategy: Vec::new(), program });
        first_rank += mesh.ranks();
    }
    plan.channels = channels;
    plan
}

#[test]
fn stages_train_as_one_does_and_exchange_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let expected = losses(&mut session(folder.path(), &Mesh::new([("a", 1)]), 0), 6);
    for seed in 1..6 {
        let plan = plan_of_stages(folder.path(), seed);
        // Also through the document.
        let plan = Plan::from_json(&plan.to_json().unwrap()).unwrap();
        let model = folder.path().join("model.onnx");
        let mut stages = Session::load(&plan, &model).unwrap();
        let inputs: Vec<String> =
            stages.batch_inputs().unwrap().into_keys().map(String::from).collect();
        assert_eq!(inputs, ["t", "x"]);
        let mut found = losses(&mut stages, 3);
        let saved = checkpoint::save(&stages, &folder.path().join("from-stages"), 1).unwrap();
        let mut alone = session(folder.path(), &mesh(seed), seed);
        checkpoint::load(&mut alone, &saved).unwrap();
        found.extend(losses(&mut alone, 5));
        let saved = checkpoint::save(&alone, &folder.path().join("from-one"), 1).unwrap();
        checkpoint::load(&mut stages, &saved).unwrap();
        found.extend(losses(&mut stages, 6));
        for (f, e) in found.iter().zip(&expected) {
            assert!((f - e).abs() <= 1e-5 * e, "seed {seed}: {found:?}, not {expected:?}");
        }
        let arenas: Vec<u64> = plan.stages.iter().map(|s| s.program.arena_bytes).collect();
        let used: Vec<u64> = stages.memory_of_stages().iter().map(|m| m.arena_bytes).collect();
        assert_eq!(used, arenas);
    }
}

/// Inputs are those of all stages together.
#[test]
fn inputs_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan_of_stages(folder.path(), 2);
    let mut session = Session::load(&plan, &folder.path().join("model.onnx")).unwrap();
    let mut other = batches(0);
    let x = other[1]["x"].clone();
    other[1].insert("z".into(), x);
    let found = session.train_step(&other, 0.1).unwrap_err().to_string();
    assert!(found.contains("`z` is not an input"), "{found}");
    let mut missing = batches(0);
    missing[2].remove("t");
    let found = session.train_step(&missing, 0.1).unwrap_err().to_string();
    assert!(found.contains("input `t`") && found.contains("is missing"), "{found}");
}
