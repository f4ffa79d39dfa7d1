//! Layers of experts on real models: each form becomes one op a layer, nothing that only the run decides is
//! left, the model computes what it did, and so do ranks among which experts, or what is between their layers,
//! are split.
#![allow(clippy::print_stderr)] // says aloud what is left out

use planc::rewrite::raise;
use planc::verify::{Tolerance, compare};
use planc_ir::onnx::{ImportError, ImportOptions, import};
use planc_ir::ops::Op;
use planc_ir::sharding::{AxisUse, Mesh, OpStrategy, Sharding, Strategy};
use planc_ir::weights::ModelFiles;
use planc_ir::{Graph, NodeId, Tensor, interp, verify};
use planc_tests::{DataSet, TestModel, bindings, contents, cost_model, run_model, shared};
use std::time::Instant;

/// Models of two layers each.
const MODELS: [&str; 6] = [
    "mixtral-batched-dynamo",
    "mixtral-batched-legacy",
    "mixtral-dense-dynamo",
    "mixtral-gshard-legacy",
    "mixtral-hf",
    "old-mixtral-legacy",
];

fn layers(graph: &Graph) -> Vec<NodeId> {
    let is_layer = |id: &NodeId| matches!(graph.node(*id).op, Op::MixtureOfExperts(_));
    graph.node_ids().filter(is_layer).collect()
}

fn raised(model: &TestModel, set: &DataSet) -> Graph {
    let bind = bindings(&model.path, set).into_iter().collect();
    raise(
        &import(&model.path, &ImportOptions { bind, ..ImportOptions::default() })
            .expect("imports")
            .graph,
    )
    .graph
}

fn assert_equal(model: &TestModel, set: &DataSet, name: &str, found: &Tensor) {
    let tolerance = Tolerance { atol: model.atol, rtol: model.rtol };
    let c = compare(found, &set.outputs[name], tolerance);
    assert!(c.equal, "{}: `{name}` {c:?}", model.path.display());
}

#[test]
fn each_form_becomes_one_op_a_layer() {
    for name in MODELS {
        let Some(model) = run_model(name) else { continue };
        for set in &model.sets {
            let graph = raised(&model, set);
            assert_eq!(verify::verify(&graph), [], "{name}");
            assert_eq!(layers(&graph).len(), 2, "{name}");
            let deferred = graph.nodes.iter().filter(|n| matches!(n.op, Op::Deferred(_)));
            assert_eq!(deferred.count(), 0, "{name}");
            let inputs: Vec<Tensor> =
                graph.inputs.iter().map(|&v| set.inputs[&graph.value(v).name].clone()).collect();
            let outputs = interp::evaluate(&graph, &inputs, &ModelFiles::new(&model.path))
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            for (&v, found) in graph.outputs.iter().zip(&outputs) {
                assert_equal(&model, set, &graph.value(v).name, found);
            }
        }
    }
}

#[test]
fn large_models_are_raised_at_once() {
    let Some(shared) = shared() else {
        eprintln!("SKIPPED: ../shared/models is absent");
        return;
    };
    // Of the one-hot form experts have fewer places than there are tokens: some would be dropped.
    for (name, expected) in [
        ("mixtral-8x7b-hf-bf16", 32),
        ("mixtral-8x7b-batched-dynamo-bf16", 32),
        ("mixtral-8x7b-gshard-dynamo-fp16", 0),
    ] {
        let path = shared.join("plan").join(format!("{name}.onnx"));
        let graph = match import(&path, &ImportOptions::default()) {
            Ok(model) => model.graph,
            Err(ImportError::Unbound { names }) => {
                // The tokens are batch × sequence, each of several names.
                let bind = names.into_iter().map(|name| (name, 16)).collect();
                import(&path, &ImportOptions { bind, ..ImportOptions::default() })
                    .expect("imports")
                    .graph
            }
            Err(e) => panic!("{name}: {e}"),
        };
        let started = Instant::now();
        let raised = raise(&graph).graph;
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("{name}: {seconds:.2} s, {} nodes to {}", graph.nodes.len(), raised.nodes.len());
        assert_eq!(layers(&raised).len(), expected, "{name}");
        assert!(seconds < 1.0, "{name}: {seconds} s");
    }
}

/// Runs a raised model with its layers of experts split along a factor and all else replicated.
fn run_split(name: &str, factor: &str, ranks: u32) {
    let Some(model) = run_model(name) else { return };
    let set = &model.sets[0];
    let graph = raised(&model, set);
    assert_eq!(layers(&graph).len(), 2, "{name}");
    let mesh = Mesh::new([("a", ranks)]);
    let ops = graph
        .node_ids()
        .map(|id| {
            if !matches!(graph.node(id).op, Op::MixtureOfExperts(_)) {
                return OpStrategy::replicated(&mesh);
            }
            let rule = graph.rule(id);
            let splits = |usage: &AxisUse| {
                matches!(usage, AxisUse::Split(f) if rule.factors[f.index()].name == factor)
            };
            let usage = rule.axis_uses().into_iter().find(splits).expect("the factor is there");
            OpStrategy { axes: vec![usage] }
        })
        .collect();
    let whole = |v| Sharding::replicated(graph.ty(v).rank());
    let strategy = Strategy::from_ops(&graph, mesh, ops, whole).expect("it is legal");
    let program = planc_codegen::partition(&graph, &strategy, &cost_model("H100", ranks))
        .expect("it is partitioned");
    assert_eq!(planc_ir::program::verify::verify(&program), []);
    let (weights, constants) = contents(&graph, &model.path);
    let outputs = planc_runtime::execute(&program, &weights, &constants, &set.inputs)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    for (output, found) in &outputs {
        assert_equal(&model, set, output, found);
    }
}

#[test]
fn ranks_hold_some_of_the_experts_or_a_part_of_each() {
    for ranks in [2, 4] {
        for name in MODELS {
            run_split(name, "e", ranks);
            run_split(name, "f", ranks);
        }
    }
}
