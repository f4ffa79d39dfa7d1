//! A step of three layers in four parts, whose first and last layer share a weight, with a clipped gradient:
//! `loss = mean((tanh(x · w1) · w2 · w1ᵀ - t)²)`.

use super::common::{f32s, numbers};
use super::model::MICRO_BATCHES;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::{Op, map::Map};
use planc_ir::scalar::ScalarFn::{self, Add, Div, Mul, Sqrt, Sub, Tanh};
use planc_ir::sharding::ReduceKind;
use planc_ir::{Carried, Graph, Phase, Tensor, TensorType, ValueDef, ValueId, WeightSource};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Parts that the model can be cut into.
pub const PARTS: usize = 4;

/// A graph under construction, with the part of each node.
struct Steps {
    graph: Graph,
    part_of: Vec<usize>,
    phase: Phase,
}

impl Steps {
    fn push(
        &mut self,
        part: usize,
        name: &str,
        op: impl Into<Op>,
        operands: &[ValueId],
    ) -> ValueId {
        let v = self.graph.push(name, op.into(), operands, &[name]).unwrap()[0];
        self.graph.nodes.last_mut().unwrap().phase = self.phase;
        self.part_of.push(part);
        v
    }

    fn map(&mut self, part: usize, name: &str, f: ScalarFn, operands: &[ValueId]) -> ValueId {
        self.push(part, name, Map { f }, operands)
    }

    fn product(
        &mut self,
        part: usize,
        name: &str,
        (a, trans_a): (ValueId, bool),
        (b, trans_b): (ValueId, bool),
    ) -> ValueId {
        self.push(part, name, MatMul { trans_a, trans_b }, &[a, b])
    }

    fn sum(&mut self, part: usize, name: &str, x: ValueId) -> ValueId {
        let reduce = Reduce { kind: ReduceKind::Sum, axes: vec![0, 1], keep: false };
        self.push(part, name, reduce, &[x])
    }

    /// Adds a value to a sum over the micro-batches.
    fn accumulate(&mut self, part: usize, name: &str, x: ValueId) -> ValueId {
        let ty = self.graph.ty(x).clone();
        let state = self.graph.add_value(format!("{name}.sum"), ty, ValueDef::Accumulator);
        let next = self.map(part, name, ScalarFn::Add, &[state, x]);
        self.graph.carried.push(Carried { state, next });
        next
    }

    fn weight(&mut self, name: &str, ty: TensorType, seed: u64) -> ValueId {
        let source = WeightSource::Inline(Arc::new(numbers(ty.clone(), seed)));
        self.graph.add_value(name, ty, ValueDef::Weight(source))
    }
}

/// The step, and the part that each of its nodes belongs to.
pub fn step() -> (Graph, Vec<usize>) {
    let mut graph = Graph::new("tied");
    graph.micro_batches = MICRO_BATCHES;
    let mut s = Steps { graph, part_of: Vec::new(), phase: Phase::Forward };
    let x = s.graph.input("x", f32s([4, 6]));
    let t = s.graph.input("t", f32s([4, 6]));
    let rate = s.graph.input("rate", f32s([]));
    let (w1, w2) = (s.weight("w1", f32s([6, 5]), 1), s.weight("w2", f32s([5, 5]), 2));
    let count = (24 * MICRO_BATCHES) as f32;
    let share = s.graph.constant("share", Tensor::scalar(1.0 / count));
    let twice = s.graph.constant("twice", Tensor::scalar(2.0 / count));
    let one = s.graph.constant("one", Tensor::scalar(1f32));

    let h = s.product(0, "h", (x, false), (w1, false));
    let a = s.map(0, "a", Tanh, &[h]);
    let y = s.product(1, "y", (a, false), (w2, false));
    let z = s.product(2, "z", (y, false), (w1, true));
    let d = s.map(3, "d", Sub, &[z, t]);
    let square = s.map(3, "square", Mul, &[d, d]);
    let sum = s.sum(3, "sum", square);
    let part = s.map(3, "part", Mul, &[sum, share]);
    let loss = s.accumulate(3, "loss", part);

    s.phase = Phase::Backward;
    let dz = s.map(3, "dz", Mul, &[d, twice]);
    let dy = s.product(2, "dy", (dz, false), (w1, false));
    let raw = s.product(2, "raw1b", (dz, true), (y, false));
    let late = s.accumulate(2, "g1b", raw);
    let raw = s.product(1, "raw2", (a, true), (dy, false));
    let g2 = s.accumulate(1, "g2", raw);
    let da = s.product(1, "da", (dy, false), (w2, true));
    let square = s.map(0, "a2", Mul, &[a, a]);
    let slope = s.map(0, "slope", Sub, &[one, square]);
    let dh = s.map(0, "dh", Mul, &[da, slope]);
    let raw = s.product(0, "raw1", (x, true), (dh, false));
    let early = s.accumulate(0, "g1a", raw);

    s.phase = Phase::Update;
    let g1 = s.map(0, "g1", Add, &[early, late]);
    let square = s.map(0, "g1.square", Mul, &[g1, g1]);
    let norm1 = s.sum(0, "norm1", square);
    let square = s.map(1, "g2.square", Mul, &[g2, g2]);
    let norm2 = s.sum(1, "norm2", square);
    let norm = s.map(0, "norm", Add, &[norm1, norm2]);
    let norm = s.map(0, "norm.root", Sqrt, &[norm]);
    let norm = s.map(0, "norm.more", Add, &[norm, one]);
    for (part, w, g) in [(0, w1, g1), (1, w2, g2)] {
        let name = s.graph.value(w).name.clone();
        let scaled = s.map(part, &format!("{name}.scaled"), Div, &[g, norm]);
        let change = s.map(part, &format!("{name}.change"), Mul, &[scaled, rate]);
        let next = s.map(part, &format!("{name}.next"), Sub, &[w, change]);
        s.graph.carried.push(Carried { state: w, next });
    }
    s.graph.outputs = vec![loss, d];
    (s.graph, s.part_of)
}

/// The inputs of a step's micro-batches.
pub fn batches(step: u64) -> Vec<BTreeMap<String, Tensor>> {
    let batch = |m| {
        let mut batch: BTreeMap<String, Tensor> = [("x", 0), ("t", 1)]
            .map(|(name, n)| (name.to_string(), numbers(f32s([4, 6]), 100 * step + 10 * m + n)))
            .into();
        batch.insert("rate".into(), Tensor::scalar(0.5f32));
        batch
    };
    (0..u64::from(MICRO_BATCHES)).map(batch).collect()
}
