//! A small model whose training step is written by hand: `loss = mean((x · w - t)²)`, with Adam.
#![allow(dead_code, clippy::unwrap_used, missing_docs)] // shared by tests that each use some of it

use super::common::{f32s, numbers};
use base64::Engine as _;
use planc_codegen::partition;
use planc_ir::digest::model_digest;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::optimizer_step::{OptimizerStep, Rule};
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::{Op, map::Map};
use planc_ir::plan::{
    Certificate, FORMAT, ModelRef, Named, Plan, Prediction, Semantics, Source, Stage, Training,
    Weight,
};
use planc_ir::program::Program;
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::reshard::{Step, StepCost};
use planc_ir::sharding::strategy::op_shardings;
use planc_ir::sharding::{AxisUse, Mesh, OpStrategy, ReduceKind, Sharding, Strategy};
use planc_ir::{
    Carried, Graph, NodeId, Phase, Tensor, TensorType, ValueDef, ValueId, WeightSource,
};
use planc_runtime::Session;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Micro-batches of a step.
pub const MICRO_BATCHES: u32 = 3;

/// Bytes are what steps cost.
pub struct Bytes;

impl StepCost for Bytes {
    fn step_us(&self, _: &Step, before: &TensorType, after: &TensorType, _: &Mesh) -> f64 {
        1.0 + before.bytes().max(after.bytes()) as f64
    }
}

/// What a graph is partitioned to.
pub fn partitioned(graph: &Graph, strategy: &Strategy) -> Program {
    partition(graph, strategy, &Bytes).unwrap()
}

/// A strategy that a seed decides: for each op some use of each axis, for each loaded value some home.
pub fn some_strategy(graph: &Graph, mesh: &Mesh, seed: u64) -> Strategy {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % n
    };
    let ops: Vec<OpStrategy> = graph
        .node_ids()
        .map(|id: NodeId| {
            let uses = graph.rule(id).axis_uses();
            let mut op =
                OpStrategy { axes: mesh.axis_ids().map(|_| uses[below(uses.len())]).collect() };
            for axis in (0..mesh.rank()).rev() {
                if op_shardings(graph, id, mesh, &op).is_ok() {
                    break;
                }
                op.axes[axis] = AxisUse::Replicate;
            }
            op
        })
        .collect();
    let loaded = |v: ValueId| {
        let shape = &graph.ty(v).shape;
        let mut home = Sharding::replicated(shape.len());
        for axis in mesh.axis_ids() {
            if let Some(dim) = home.dims.get_mut(below(shape.len() + 1)) {
                dim.axes.push(axis);
            }
        }
        home.canonical(shape, mesh)
    };
    Strategy::from_ops(graph, mesh.clone(), ops, loaded).unwrap()
}

/// The step of a model with `inputs` columns of input and `outputs` of output. Every element of `w` begins
/// as `start` if it is given.
pub fn step(rows: u64, inputs: u64, outputs: u64, start: Option<f64>) -> Graph {
    let mut g = Graph::new("step");
    g.micro_batches = MICRO_BATCHES;
    let push = |g: &mut Graph, phase: Phase, name: &str, op: Op, operands: &[ValueId]| {
        let v = g.push(name, op, operands, &[name]).unwrap();
        g.nodes.last_mut().unwrap().phase = phase;
        v
    };
    let map = |f| Op::from(Map { f });
    let x = g.input("x", f32s([rows, inputs]));
    let t = g.input("t", f32s([rows, outputs]));
    let rate = g.input("rate", f32s([]));
    let weights = f32s([inputs, outputs]);
    let source = match start {
        Some(value) => WeightSource::Fill { value },
        None => WeightSource::Inline(Arc::new(numbers(weights.clone(), 1))),
    };
    let w = g.add_value("w", weights.clone(), ValueDef::Weight(source));
    let zero = |g: &mut Graph, name: &str, ty: &TensorType| {
        g.add_value(name, ty.clone(), ValueDef::Weight(WeightSource::Fill { value: 0.0 }))
    };
    let (m, v) = (zero(&mut g, "w.m", &weights), zero(&mut g, "w.v", &weights));
    let n = zero(&mut g, "step", &f32s([]));
    let gradients = g.add_value("gradients", weights, ValueDef::Accumulator);
    let losses = g.add_value("losses", f32s([]), ValueDef::Accumulator);
    let one = g.constant("one", Tensor::scalar(1f32));
    let share = 1.0 / (rows * outputs * u64::from(MICRO_BATCHES)) as f32;
    let (share, twice) = (
        g.constant("share", Tensor::scalar(share)),
        g.constant("twice", Tensor::scalar(2.0 * share)),
    );

    let forward = Phase::Forward;
    let product = Op::from(MatMul { trans_a: false, trans_b: false });
    let y = push(&mut g, forward, "y", product, &[x, w])[0];
    let d = push(&mut g, forward, "d", map(ScalarFn::Sub), &[y, t])[0];
    let square = push(&mut g, forward, "square", map(ScalarFn::Mul), &[d, d])[0];
    let reduce = Op::from(Reduce { kind: ReduceKind::Sum, axes: vec![0, 1], keep: false });
    let sum = push(&mut g, forward, "sum", reduce, &[square])[0];
    let part = push(&mut g, forward, "part", map(ScalarFn::Mul), &[sum, share])[0];
    let loss = push(&mut g, forward, "loss", map(ScalarFn::Add), &[losses, part])[0];
    let backward = Phase::Backward;
    let product = Op::from(MatMul { trans_a: true, trans_b: false });
    let raw = push(&mut g, backward, "raw", product, &[x, d])[0];
    let scaled = push(&mut g, backward, "scaled", map(ScalarFn::Mul), &[raw, twice])[0];
    let gradient = push(&mut g, backward, "gradient", map(ScalarFn::Add), &[gradients, scaled])[0];
    let update = Phase::Update;
    let next = push(&mut g, update, "next", map(ScalarFn::Add), &[n, one])[0];
    let rule =
        Rule::Adam { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, decoupled: true };
    let adam = OptimizerStep { rule };
    let new = push(&mut g, update, "adam", adam.into(), &[w, gradient, rate, one, next, m, v]);
    g.outputs = vec![loss];
    g.carried = [(gradients, gradient), (losses, loss), (n, next)]
        .into_iter()
        .chain([w, m, v].into_iter().zip(new))
        .map(|(state, next)| Carried { state, next })
        .collect();
    g
}

/// A plan of a step, for a model file that it writes into `folder`.
pub fn plan(folder: &Path, graph: &Graph, strategy: &Strategy) -> Plan {
    let file = folder.join("model.onnx");
    std::fs::write(&file, b"its weights are all in the plan").unwrap();
    let program = partitioned(graph, strategy);
    let weights = graph.values.iter().filter_map(|v| {
        let source = match &v.def {
            ValueDef::Weight(WeightSource::Fill { value }) => Source::Fill(*value),
            ValueDef::Weight(WeightSource::Inline(t)) => Source::Inline(base64(t)),
            _ => return None,
        };
        Some(Weight { name: v.name.clone(), ty: v.ty.clone(), source })
    });
    let constants = graph.values.iter().filter_map(|v| match &v.def {
        ValueDef::Constant(t) => Some(planc_ir::plan::Constant {
            name: v.name.clone(),
            ty: v.ty.clone(),
            data: base64(t),
        }),
        _ => None,
    });
    let named = |ids: &[ValueId]| -> Vec<Named> {
        ids.iter()
            .map(|&v| Named { name: graph.value(v).name.clone(), ty: graph.ty(v).clone() })
            .collect()
    };
    Plan {
        format: FORMAT,
        checksum: String::new(),
        model: ModelRef {
            name: "model".into(),
            file: "model.onnx".into(),
            digest: model_digest(&file, &[]).unwrap(),
            bindings: BTreeMap::new(),
            parameters: 0,
            flops: 0.0,
            inputs: named(&graph.inputs),
            outputs: named(&graph.outputs),
        },
        training: Some(Training {
            loss: "loss".into(),
            labels: Some("t".into()),
            learning_rate: "rate".into(),
            micro_batches: MICRO_BATCHES,
            recipe: BTreeMap::new(),
            state: ["step", "w", "w.m", "w.v"].map(String::from).to_vec(),
            settings: serde_json::Value::Null,
        }),
        cluster: serde_json::Value::Null,
        semantics: Semantics::Exact,
        predicted: Prediction::default(),
        baselines: Vec::new(),
        certificate: Certificate {
            objective_us: 0.0,
            bound_us: 0.0,
            gap: 0.0,
            status: "optimal".into(),
            solver: "none".into(),
            limits: BTreeMap::new(),
            evaluated_us: 0.0,
            space: BTreeMap::new(),
        },
        stages: vec![Stage { first_rank: 0, strategy: Vec::new(), program }],
        channels: Vec::new(),
        weights: weights.collect(),
        constants: constants.collect(),
    }
}

fn base64(t: &Tensor) -> String {
    base64::engine::general_purpose::STANDARD.encode(t.to_bytes())
}

/// A session of the small model on `mesh`, under a strategy that `seed` decides; replicated if it is 0.
pub fn session(folder: &Path, mesh: &Mesh, seed: u64) -> Session {
    let graph = step(4, 6, 5, None);
    let strategy = match seed {
        0 => Strategy::replicated(&graph, mesh.clone()),
        seed => some_strategy(&graph, mesh, seed),
    };
    Session::load(&plan(folder, &graph, &strategy), &folder.join("model.onnx")).unwrap()
}

/// The inputs of the small model's micro-batches in a step.
pub fn batches(step: u64) -> Vec<BTreeMap<String, Tensor>> {
    (0..u64::from(MICRO_BATCHES))
        .map(|m| {
            let seed = 10 * step + m;
            [("x", f32s([4, 6])), ("t", f32s([4, 5]))]
                .map(|(name, ty)| (name.to_string(), numbers(ty, seed)))
                .into()
        })
        .collect()
}

/// Losses of the steps from the session's present one up to `last`.
pub fn losses(session: &mut Session, last: u64) -> Vec<f64> {
    (session.steps_done()..last)
        .map(|step| session.train_step(&batches(step), 0.05).unwrap().loss)
        .collect()
}
