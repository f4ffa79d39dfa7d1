//! Memory of training steps: what the plan predicts is what the program takes and the runtime holds, byte for
//! byte.

use super::support::{How, loss, model, options, planned, renamed};
use planc::search::baselines::baselines;
use planc::search::blocks::Blocks;
use planc::search::evaluate::evaluate;
use planc::search::space::Space;
use planc::train::policy::Asked;
use planc::train::recompute::recompute;
use planc::train::{Recompute, step};
use planc_codegen::MemoryReport;
use planc_ir::program::Program;
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::{DType, Graph, Tensor, TensorType};
use planc_runtime::{Executor, Session};
use planc_tests::training::CurveReference;
use planc_tests::{contents, cost_model};

fn meshes() -> [Mesh; 4] {
    [
        Mesh::new([("device", 1)]),
        Mesh::new([("device", 2)]),
        Mesh::new([("data", 2), ("tensor", 2)]),
        Mesh::new([("device", 8)]),
    ]
}

fn check(name: &str) {
    let Some(reference) = CurveReference::load(name) else { return };
    let curve = &reference.curves["adamw"];
    let path = &reference.model.path;
    let options = options(loss(reference.loss, &reference.output), &curve.recipe);

    // Through the plan.
    for mesh in meshes() {
        let (inputs, how) = (&reference.batches[0], How::Searched);
        let plan = planned(path, inputs, &options, Asked::default(), &mesh, how);
        let report = MemoryReport::of(&plan.stages[0].program).expect("it is counted");
        assert_eq!(plan.predicted.memory_bytes, report.arena_bytes, "{name} on {mesh}");
        assert_eq!(plan.predicted.weight_bytes, report.weight_bytes, "{name} on {mesh}");
        let parts = plan.predicted.weight_bytes + plan.predicted.activation_bytes;
        assert_eq!(parts, plan.predicted.memory_bytes, "{name} on {mesh}");
        let mut session = Session::load(&plan, path).expect("it loads");
        let training = plan.training.as_ref().expect("training");
        let batch = renamed(&reference.batches[0], training.labels.as_deref());
        session.train_step(&[batch], 1e-3).expect("it runs");
        assert_eq!(session.memory_use().arena_bytes, report.arena_bytes, "{name} on {mesh}");
    }

    // Any strategy.
    let raised = model(path, &reference.batches[0]);
    let step = step(&raised, &options).expect("the step is made");
    let (weights, constants) = contents(&step.graph, path);
    let mut batch = renamed(&reference.batches[0], step.training.labels.as_deref());
    let rate = Tensor::from_f64(TensorType::new(DType::F32, []), |_| 1e-3).expect("a scalar");
    batch.insert(step.training.learning_rate.clone(), rate);
    let takes = |program: Program| {
        let mut executor = Executor::new(program, &weights, &constants).expect("it loads");
        executor.step(std::slice::from_ref(&batch)).expect("it runs");
        executor.memory_use().arena_bytes
    };
    let same = |what: &str, graph: &Graph, strategy: &Strategy| {
        let mesh = &strategy.mesh;
        let cost = cost_model("H100", mesh.ranks());
        let program = planc_codegen::partition(graph, strategy, &cost).expect("a program");
        let report = MemoryReport::of(&program).expect("it is counted");
        let priced = evaluate(graph, strategy, &cost).expect("it is priced").memory_bytes;
        let (bound, arena) = (report.bound_bytes(), report.arena_bytes);
        eprintln!(
            "{name} {mesh:<18} {what:<24} priced {:+.2} %, placed {:+.2} % of {bound} bytes",
            100.0 * (priced as f64 / bound as f64 - 1.0),
            100.0 * (arena as f64 / bound as f64 - 1.0),
        );
        assert!(priced >= bound, "{name}, {what} on {mesh}: {priced} of {bound}");
        assert_eq!(takes(program), arena, "{name}, {what} on {mesh}");
    };
    for mesh in meshes() {
        let cost = cost_model("H100", mesh.ranks());
        let blocks = Blocks::find(&step.graph);
        let space = Space::new(&step.graph, &mesh, &blocks, &cost);
        for baseline in baselines(&step.graph) {
            let mut strategy = baseline.strategy(&space, &cost);
            strategy.gather_again = mesh.rank() == 1;
            same(baseline.name(), &step.graph, &strategy);
        }
        for what in [Recompute::Cheap, Recompute::Blocks(u32::MAX)] {
            let graph = recompute(&step.graph, what);
            let one = Strategy::replicated(&graph, mesh.clone());
            same(&format!("recomputing {what}"), &graph, &one);
        }
    }
}

#[test]
fn gpt2() {
    check("gpt2-dynamo");
}

#[test]
fn llama() {
    check("llama-dynamo");
}

#[test]
fn resnet18() {
    check("resnet18-dynamo");
}
