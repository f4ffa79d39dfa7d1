//! Steps of a session: micro-batches, state, memory.

use crate::common::f32s;
use crate::model::{MICRO_BATCHES, batches, losses, plan, session, some_strategy, step};
use planc_codegen::MemoryReport;
use planc_ir::plan::Plan;
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::{Tensor, TensorType};
use planc_runtime::{RunError, Session};
use std::path::Path;

fn meshes() -> Vec<Mesh> {
    vec![
        Mesh::new([("a", 1)]),
        Mesh::new([("a", 2)]),
        Mesh::new([("a", 4)]),
        Mesh::new([("a", 2), ("b", 2)]),
    ]
}

/// The losses of a few steps, computed from the definitions in f64.
fn expected(steps: u64) -> Vec<f64> {
    let (beta1, beta2, epsilon, decay, rate) = (0.9, 0.95, 1e-8, 0.1, f64::from(0.05f32));
    let mut w = crate::common::numbers(f32s([6, 5]), 1).to_f64s();
    let (mut m, mut v) = (vec![0.0; 30], vec![0.0; 30]);
    (0..steps)
        .map(|step| {
            let (mut loss, mut gradient) = (0.0, vec![0.0; 30]);
            let share = 1.0 / f64::from(20 * MICRO_BATCHES);
            for batch in batches(step) {
                let (x, t) = (batch["x"].to_f64s(), batch["t"].to_f64s());
                for (row, column) in (0..4).flat_map(|r| (0..5).map(move |c| (r, c))) {
                    let y: f64 = (0..6).map(|k| x[row * 6 + k] * w[k * 5 + column]).sum();
                    let d = y - t[row * 5 + column];
                    loss += d * d * share;
                    for k in 0..6 {
                        gradient[k * 5 + column] += 2.0 * share * x[row * 6 + k] * d;
                    }
                }
            }
            let n = step as i32 + 1;
            for i in 0..30 {
                m[i] = beta1 * m[i] + (1.0 - beta1) * gradient[i];
                v[i] = beta2 * v[i] + (1.0 - beta2) * gradient[i] * gradient[i];
                let (mean, square) =
                    (m[i] / (1.0 - f64::powi(beta1, n)), v[i] / (1.0 - f64::powi(beta2, n)));
                w[i] = w[i] * (1.0 - rate * decay) - rate * mean / (square.sqrt() + epsilon);
            }
            loss
        })
        .collect()
}

#[test]
fn losses_are_the_same_under_any_strategy() {
    let folder = tempfile::tempdir().unwrap();
    let expected = expected(6);
    assert!(expected.is_sorted_by(|a, b| (a - b).abs() > 1e-3 * a));
    for mesh in meshes() {
        for seed in 0..8 {
            let found = losses(&mut session(folder.path(), &mesh, seed), 6);
            for (f, e) in found.iter().zip(&expected) {
                assert!(
                    (f - e).abs() <= 1e-5 * e,
                    "{mesh}, seed {seed}: {found:?}, not {expected:?}"
                );
            }
        }
    }
}

/// What ranks really use is what the memory plan says, to the byte.
#[test]
fn memory_is_what_was_planned() {
    let folder = tempfile::tempdir().unwrap();
    let mut shared = 0;
    for mesh in meshes() {
        for seed in 0..20 {
            let mut session = session(folder.path(), &mesh, seed);
            let graph = step(4, 6, 5, None);
            let strategy = match seed {
                0 => Strategy::replicated(&graph, mesh.clone()),
                seed => some_strategy(&graph, &mesh, seed),
            };
            let report = MemoryReport::of(&crate::model::partitioned(&graph, &strategy)).unwrap();
            let loaded = session.memory_use().arena_bytes;
            assert!(loaded < report.arena_bytes, "loading is not all: {loaded}");
            losses(&mut session, 2);
            let used = session.memory_use();
            assert_eq!(used.arena_bytes, report.arena_bytes, "{mesh}, seed {seed}");
            shared += u64::from(used.copied_bytes == 0);
        }
    }
    assert!(shared > 40, "{shared} of 80 strategies need no copies");
}

fn plan_of_step(folder: &Path) -> Plan {
    let graph = step(4, 6, 5, None);
    plan(folder, &graph, &Strategy::replicated(&graph, Mesh::new([("a", 2)])))
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    let good = plan_of_step(folder.path());
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        Session::load(&plan, &model).unwrap_err().to_string()
    };
    let training = |change: &dyn Fn(&mut planc_ir::plan::Training)| {
        refused(&|plan| change(plan.training.as_mut().unwrap()))
    };
    for (found, says) in [
        (
            training(&|t| t.loss = "x".into()),
            "`x` is not an output that is a floating-point scalar",
        ),
        (training(&|t| t.learning_rate = "t".into()), "`t` is not an input"),
        (training(&|t| t.micro_batches = 2), "it has 2 micro-batches, the program 3"),
        (training(&|t| t.state.truncate(3)), "a step changes `w.v`"),
        (training(&|t| t.state.push("one".into())), "`one` is listed as state"),
    ] {
        assert!(found.contains(says), "{found}");
    }

    let mut inference = good.clone();
    inference.training = None;
    let mut session = Session::load(&inference, &model).unwrap();
    assert!(matches!(session.train_step(&batches(0), 0.1), Err(RunError::NoTraining)));
    assert!(matches!(session.batch_inputs(), Err(RunError::NoTraining)));

    let mut session = Session::load(&good, &model).unwrap();
    let inputs = session.batch_inputs().unwrap();
    let inputs: Vec<(&str, &TensorType)> = inputs.into_iter().collect();
    assert_eq!(inputs, [("t", &f32s([4, 5])), ("x", &f32s([4, 6]))]);
    let two = &batches(0)[..2];
    let found = session.train_step(two, 0.1);
    assert!(matches!(found, Err(RunError::MicroBatches { expected: 3, found: 2 })));
    let mut without = batches(0);
    without[1].remove("t");
    let found = session.train_step(&without, 0.1).unwrap_err();
    assert!(matches!(found, RunError::MissingInput { name, .. } if name == "t"));
    let mut other = batches(0);
    other[2].insert("t".into(), Tensor::zeros(f32s([4, 6])).unwrap());
    let found = session.train_step(&other, 0.1).unwrap_err();
    assert!(matches!(found, RunError::InputType { name, .. } if name == "t"));
    assert_eq!(session.steps_done(), 0);
}
