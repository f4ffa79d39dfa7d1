//! Optimizers against PyTorch, on ranks that hold different parts; `reference/optimizer_steps.py` made the
//! numbers.

use crate::common::{f32s, numbers};
use crate::model::{partitioned, some_strategy};
use planc_codegen::MemoryReport;
use planc_ir::ops::optimizer_step::{OptimizerStep, Rule};
use planc_ir::program::verify::verify;
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::{Carried, DType, Graph, Phase, Tensor, TensorType, ValueDef, ValueId, WeightSource};
use planc_runtime::Executor;
use std::collections::BTreeMap;
use std::sync::Arc;

const SHAPE: [u64; 2] = [3, 5];
const STEPS: usize = 5;
const RATE: f32 = 0.0625;

/// PyTorch computes the same in an order of its own.
const TOLERANCE: f64 = 2e-6;

fn rules() -> Vec<(&'static str, Rule)> {
    let sgd = |momentum, dampening, weight_decay, nesterov| Rule::Sgd {
        momentum,
        dampening,
        weight_decay,
        nesterov,
    };
    let adam = |beta1, beta2, epsilon, weight_decay, decoupled| Rule::Adam {
        beta1,
        beta2,
        epsilon,
        weight_decay,
        decoupled,
    };
    vec![
        ("sgd", sgd(0.0, 0.0, 0.0, false)),
        ("sgd_decay", sgd(0.0, 0.0, 0.1, false)),
        ("sgd_momentum", sgd(0.9, 0.25, 0.01, false)),
        ("sgd_nesterov", sgd(0.9, 0.0, 0.01, true)),
        ("adam", adam(0.9, 0.999, 1e-8, 0.0, false)),
        ("adam_decay", adam(0.4, 0.95, 1e-6, 0.1, false)),
        ("adamw", adam(0.9, 0.95, 1e-8, 0.1, true)),
    ]
}

/// The parameter and the state of each optimizer after [`STEPS`] steps.
fn reference() -> BTreeMap<String, Vec<Vec<f64>>> {
    serde_json::from_str(include_str!("../reference/optimizer_steps.json")).unwrap()
}

/// A graph that only updates; parameter and state are carried, and nothing is returned.
fn update(rule: &Rule, shape: &[u64], gradient: DType, number: DType) -> Graph {
    let mut g = Graph::new("update");
    let inputs = [
        ("gradient", TensorType::new(gradient, shape)),
        ("rate", f32s([])),
        ("scale", f32s([])),
        ("number", TensorType::new(number, [])),
    ]
    .map(|(name, ty)| g.input(name, ty));
    let start = Tensor::from_f64(f32s(shape), |i| ((i * 7 % 11) as f64 - 5.0) / 8.0).unwrap();
    let weight = |g: &mut Graph, name: String, source| {
        g.add_value(name, f32s(shape), ValueDef::Weight(source))
    };
    let mut state = vec![weight(&mut g, "p".into(), WeightSource::Inline(Arc::new(start)))];
    for i in 1..=rule.states() {
        state.push(weight(&mut g, format!("state{i}"), WeightSource::Fill { value: 0.0 }));
    }
    let operands: Vec<ValueId> =
        state[..1].iter().chain(&inputs).chain(&state[1..]).copied().collect();
    let next =
        g.push("update", OptimizerStep { rule: rule.clone() }.into(), &operands, &[]).unwrap();
    g.nodes[0].phase = Phase::Update;
    g.carried = state.into_iter().zip(next).map(|(state, next)| Carried { state, next }).collect();
    g
}

fn executor(graph: &Graph, strategy: &Strategy) -> Executor {
    let program = partitioned(graph, strategy);
    assert_eq!(verify(&program), []);
    let weights: BTreeMap<String, Tensor> = graph
        .values
        .iter()
        .filter_map(|v| match &v.def {
            ValueDef::Weight(WeightSource::Inline(t)) => Some((v.name.clone(), (**t).clone())),
            ValueDef::Weight(_) => Some((v.name.clone(), Tensor::zeros(v.ty.clone()).unwrap())),
            _ => None,
        })
        .collect();
    Executor::new(program, &weights, &BTreeMap::new()).unwrap()
}

fn inputs(
    graph: &Graph,
    gradient: impl Fn(usize) -> f64,
    scale: f32,
    number: usize,
) -> BTreeMap<String, Tensor> {
    let ty = |i: usize| graph.ty(graph.inputs[i]).clone();
    [
        ("gradient", Tensor::from_f64(ty(0), gradient).unwrap()),
        ("rate", Tensor::scalar(RATE)),
        ("scale", Tensor::scalar(scale)),
        ("number", Tensor::from_f64(ty(3), |_| number as f64).unwrap()),
    ]
    .map(|(name, t)| (name.to_string(), t))
    .into()
}

fn weight(executor: &Executor, name: &str) -> Tensor {
    let ty = executor.weight_type(name).unwrap().clone();
    Tensor::from_bytes(ty, &executor.weight_bytes(name).unwrap()).unwrap()
}

fn weights(executor: &Executor) -> Vec<Tensor> {
    let names = ["p", "state1", "state2"];
    names
        .into_iter()
        .filter(|n| executor.weight_type(n).is_some())
        .map(|n| weight(executor, n))
        .collect()
}

#[test]
fn every_optimizer_follows_pytorch_on_any_ranks() {
    let reference = reference();
    assert_eq!(reference.len(), rules().len());
    let meshes = [vec![1], vec![2], vec![4], vec![2, 2]];
    let meshes = meshes.map(|sizes| Mesh::new(["a", "b"].into_iter().zip(sizes)));
    for (name, rule) in rules() {
        let expected = &reference[name];
        for (i, mesh) in meshes.iter().enumerate() {
            for seed in 1..6 {
                let gradient = [DType::F32, DType::F16, DType::BF16][(i + seed as usize) % 3];
                let number = [DType::I64, DType::F32][seed as usize % 2];
                let graph = update(&rule, &SHAPE, gradient, number);
                let strategy = some_strategy(&graph, mesh, seed);
                let mut executor = executor(&graph, &strategy);
                for step in 0..STEPS {
                    // The gradient comes twice as large, and is scaled.
                    let gradient = |i: usize| ((i * 5 + step * 3) % 13) as f64 / 8.0 - 0.75;
                    executor.step(&[inputs(&graph, gradient, 0.5, step + 1)]).unwrap();
                    // A step that overflowed changes nothing.
                    let before = weights(&executor);
                    executor.step(&[inputs(&graph, gradient, f32::INFINITY, step + 1)]).unwrap();
                    executor.step(&[inputs(&graph, gradient, f32::NAN, step + 1)]).unwrap();
                    assert_eq!(weights(&executor), before);
                }
                let found = weights(&executor);
                assert_eq!(found.len(), expected.len(), "{name}");
                for (found, expected) in found.iter().zip(expected) {
                    for (f, e) in found.to_f64s().iter().zip(expected) {
                        let close = (f - e).abs() <= TOLERANCE * e.abs().max(0.1);
                        assert!(close, "{name} on {mesh}, seed {seed}: {f}, PyTorch has {e}");
                    }
                }
            }
        }
    }
}

/// Where each element of a large parameter goes does not depend on blocks or ranks; the reference semantics
/// agree. Nothing is copied aside.
#[test]
fn large_parameters_are_updated_in_place() {
    let shape = [37, 1003];
    for (name, rule) in rules() {
        let graph = update(&rule, &shape, DType::F32, DType::F32);
        let gradient = numbers(f32s(shape), 3);
        let inputs = inputs(&graph, |i| gradient.f64_at(i) / 7.0, 0.5, 1);
        let start =
            weight(&executor(&graph, &Strategy::replicated(&graph, Mesh::new([("a", 1)]))), "p");
        let zeros = Tensor::zeros(f32s(shape)).unwrap();
        let mut operands =
            vec![&start, &inputs["gradient"], &inputs["rate"], &inputs["scale"], &inputs["number"]];
        operands.extend((0..rule.states()).map(|_| &zeros));
        let expected = graph.nodes[0].op.eval(&operands).unwrap();
        for ranks in [1, 3] {
            let mesh = Mesh::new([("a", ranks)]);
            let mut strategy = some_strategy(&graph, &mesh, 1);
            // Homes are where the update is, so that nothing is moved.
            let node = strategy.check(&graph).unwrap().remove(0);
            for (&v, s) in graph.nodes[0].inputs.iter().zip(node.inputs) {
                strategy.values[v.index()] = s;
            }
            let mut executor = executor(&graph, &strategy);
            executor.step(std::slice::from_ref(&inputs)).unwrap();
            for (found, expected) in weights(&executor).iter().zip(&expected) {
                for (f, e) in found.to_f64s().iter().zip(expected.to_f64s()) {
                    assert!((f - e).abs() <= TOLERANCE * e.abs().max(0.1), "{name}: {f}, not {e}");
                }
            }
            let (used, report) =
                (executor.memory_use(), MemoryReport::of(executor.program()).unwrap());
            assert_eq!((used.arena_bytes, used.copied_bytes), (report.arena_bytes, 0), "{name}");
            assert_eq!(report.arena_bytes, report.bound_bytes(), "{name}");
        }
    }
}
