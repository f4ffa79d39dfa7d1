//! Random graphs small enough that all their strategies can be tried.

use super::super::request::random::Rng;
use planc_ir::ops::Op;
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::reshape::Reshape;
use planc_ir::ops::softmax::Softmax;
use planc_ir::ops::transpose::Transpose;
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::ReduceKind;
use planc_ir::{DType, Graph, TensorType, ValueDef, ValueId, WeightSource};

/// A weight whose bytes nobody reads.
pub fn weight(graph: &mut Graph, name: &str, shape: &[u64]) -> ValueId {
    let ty = TensorType::new(DType::F32, shape);
    let bytes = ty.bytes();
    graph.add_value(name, ty, ValueDef::Weight(WeightSource::ModelFile { offset: 0, bytes }))
}

/// Appends a node of one result.
pub fn apply(graph: &mut Graph, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
    let name = format!("n{}", graph.nodes.len());
    graph.push(name, op.into(), inputs, &[]).unwrap()[0]
}

/// A random graph of `nodes` nodes over matrices: values are used once, several times or not at all,
/// extents do not always divide, and some results are outputs as well as operands.
pub fn random(seed: u64, nodes: usize) -> Graph {
    let mut rng = Rng(seed);
    let mut graph = Graph::new(format!("random {seed}"));
    let extents = [4, 6, 8, 12];
    let shape = |rng: &mut Rng| [extents[rng.below(4)], extents[rng.below(4)]];
    let first = shape(&mut rng);
    let mut values = vec![graph.input("x", TensorType::new(DType::F32, first))];
    for i in 0..nodes {
        let a = values[values.len() - 1 - rng.below(values.len().min(2))];
        let [rows, columns] = *graph.ty(a).shape else { unreachable!("all values are matrices") };
        let result = match rng.below(8) {
            0 | 1 => {
                let n = extents[rng.below(4)];
                let b = weight(&mut graph, &format!("w{i}"), &[columns, n]);
                apply(&mut graph, MatMul { trans_a: false, trans_b: false }, &[a, b])
            }
            2 => {
                let b = weight(&mut graph, &format!("b{i}"), &[columns]);
                apply(&mut graph, Map { f: ScalarFn::Add }, &[a, b])
            }
            3 => apply(&mut graph, Map { f: ScalarFn::Mul }, &[a, a]),
            4 => apply(&mut graph, Map { f: ScalarFn::Neg }, &[a]),
            5 => apply(&mut graph, Transpose { perm: vec![1, 0] }, &[a]),
            6 => apply(&mut graph, Softmax { axis: 1, log: false }, &[a]),
            _ if rng.below(2) == 0 => {
                let op = Reduce { kind: ReduceKind::Sum, axes: vec![1], keep: true };
                let sum = apply(&mut graph, op, &[a]);
                apply(&mut graph, Map { f: ScalarFn::Sub }, &[a, sum])
            }
            _ if columns % 2 == 0 => {
                apply(&mut graph, Reshape { shape: vec![rows * 2, columns / 2] }, &[a])
            }
            _ => apply(&mut graph, Map { f: ScalarFn::Abs }, &[a]),
        };
        values.push(result);
    }
    let last = values[values.len() - 1];
    graph.outputs.push(last);
    if rng.below(3) == 0 && values[values.len() - 2] != last {
        graph.outputs.push(values[values.len() - 2]);
    }
    graph
}
