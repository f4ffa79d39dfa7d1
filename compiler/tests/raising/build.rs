//! Graphs to raise, and what is expected of them.

use planc::rewrite::raise;
use planc_ir::graph::{Graph, ValueId};
use planc_ir::interp::evaluate;
use planc_ir::ops::Op;
use planc_ir::ops::concat::Concat;
use planc_ir::ops::expand::Expand;
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::reshape::Reshape;
use planc_ir::ops::slice::{Cut, Slice};
use planc_ir::ops::softmax::Softmax;
use planc_ir::ops::transpose::Transpose;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::sharding::ReduceKind;
use planc_ir::verify::verify;
use planc_ir::weights::InMemory;
use planc_ir::{DType, Tensor, TensorType};

/// A graph under construction. Numbers are f64, so that what is raised must compute the same to the last
/// digits.
pub struct Build {
    pub graph: Graph,
    pub dtype: DType,
}

impl Build {
    pub fn new() -> Self {
        Self { graph: Graph::new("idiom"), dtype: DType::F64 }
    }

    pub fn input(&mut self, shape: &[u64]) -> ValueId {
        self.typed(self.dtype, shape)
    }

    pub fn typed(&mut self, dtype: DType, shape: &[u64]) -> ValueId {
        let name = format!("in{}", self.graph.inputs.len());
        self.graph.input(name, TensorType::new(dtype, shape))
    }

    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        let name = format!("c{}", self.graph.values.len());
        self.graph.constant(name, tensor)
    }

    pub fn number(&mut self, x: f64) -> ValueId {
        let tensor = Tensor::from_f64(TensorType::new(self.dtype, []), |_| x).expect("a number");
        self.constant(tensor)
    }

    pub fn push(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
        let name = format!("n{}", self.graph.nodes.len());
        let value = format!("v{}", self.graph.values.len());
        self.graph.push(name, op.into(), inputs, &[&value]).expect("it fits")[0]
    }

    pub fn map(&mut self, f: F, inputs: &[ValueId]) -> ValueId {
        self.push(Map { f }, inputs)
    }

    /// `f` of a value and a number.
    pub fn with(&mut self, f: F, x: ValueId, number: f64) -> ValueId {
        let number = self.number(number);
        self.map(f, &[x, number])
    }

    pub fn shape(&self, v: ValueId) -> Vec<u64> {
        self.graph.ty(v).shape.clone()
    }

    pub fn reshape(&mut self, x: ValueId, shape: &[u64]) -> ValueId {
        self.push(Reshape { shape: shape.to_vec() }, &[x])
    }

    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> ValueId {
        self.push(Transpose { perm: perm.to_vec() }, &[x])
    }

    pub fn expand(&mut self, x: ValueId, shape: &[u64]) -> ValueId {
        self.push(Expand { shape: shape.to_vec() }, &[x])
    }

    pub fn product(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.push(MatMul { trans_a: false, trans_b: false }, &[a, b])
    }

    pub fn softmax(&mut self, x: ValueId) -> ValueId {
        let axis = self.shape(x).len() - 1;
        self.push(Softmax { axis, log: false }, &[x])
    }

    pub fn concat(&mut self, axis: usize, inputs: &[ValueId]) -> ValueId {
        self.push(Concat { axis }, inputs)
    }

    /// Part of the last dimension.
    pub fn cut(&mut self, x: ValueId, start: i64, step: i64, extent: u64) -> ValueId {
        let mut cuts = vec![None; self.shape(x).len()];
        *cuts.last_mut().expect("a dimension") = Some(Cut { start, step, extent });
        self.push(Slice { cuts }, &[x])
    }

    /// The mean as exporters write it, over these dimensions.
    pub fn mean(&mut self, x: ValueId, axes: &[usize]) -> ValueId {
        let shape = self.shape(x);
        let n: u64 = axes.iter().map(|&a| shape[a]).product();
        let sum = Reduce { kind: ReduceKind::Sum, axes: axes.to_vec(), keep: true };
        let sum = self.push(sum, &[x]);
        self.with(F::Div, sum, n as f64)
    }

    /// Names of the ops after raising; checks that the graph is sound and computes the same on random
    /// numbers (flags for bools).
    pub fn raised(mut self, output: ValueId) -> Vec<&'static str> {
        self.graph.outputs.push(output);
        self.raised_with_outputs(1)
    }

    pub fn raised_with_outputs(self, seed: u64) -> Vec<&'static str> {
        let raised = raise(&self.graph).graph;
        assert_eq!(verify(&raised), []);
        let names =
            |g: &Graph| g.outputs.iter().map(|&v| g.value(v).name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&raised), names(&self.graph));
        let mut rng = fastrand::Rng::with_seed(seed);
        let inputs: Vec<Tensor> = self
            .graph
            .inputs
            .iter()
            .map(|&v| {
                let ty = self.graph.ty(v).clone();
                let bools = ty.dtype == DType::Bool;
                let number =
                    |_| if bools { f64::from(rng.u8(0..2)) } else { rng.f64() * 4.0 - 2.0 };
                Tensor::from_f64(ty, number).expect("random")
            })
            .collect();
        let run = |g: &Graph| evaluate(g, &inputs, &InMemory).expect("it runs");
        for (found, expected) in run(&raised).iter().zip(run(&self.graph)) {
            let tolerance = match expected.dtype() {
                DType::F64 => 1e-9,
                DType::F32 => 1e-5,
                _ => 3e-2,
            };
            for (x, y) in found.to_f64s().into_iter().zip(expected.to_f64s()) {
                let near = (x - y).abs() <= tolerance * y.abs().max(1.0);
                assert!(near || (x.is_nan() && y.is_nan()), "{x} instead of {y}");
            }
        }
        raised.nodes.iter().map(|n| n.op.name()).collect()
    }
}
