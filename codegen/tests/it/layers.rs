//! What partitioning makes of hand-written strategies.

use crate::random;

use planc_codegen::{CodegenError, MemoryReport, partition};
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::reshape::Reshape;
use planc_ir::program::verify::verify;
use planc_ir::program::{Instr, Program};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{
    AxisId, AxisUse, DimSharding, FactorId, Mesh, OpStrategy, ReduceKind, Sharding, Strategy,
    StrategyError,
};
use planc_ir::{DType, Extents, Graph, TensorType, ValueDef, ValueId, WeightSource};
use random::{Draw, Prices};

fn f32s(shape: &[u64]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn weight(g: &mut Graph, name: &str, shape: &[u64]) -> ValueId {
    let location = name.to_string();
    let source = WeightSource::External { location, offset: 0, bytes: f32s(shape).bytes() };
    g.add_value(name, f32s(shape), ValueDef::Weight(source))
}

fn matmul(g: &mut Graph, name: &str, a: ValueId, b: ValueId) -> ValueId {
    let op = MatMul { trans_a: false, trans_b: false }.into();
    g.push(name, op, &[a, b], &[]).expect("fits")[0]
}

fn map(g: &mut Graph, name: &str, f: ScalarFn, inputs: &[ValueId]) -> ValueId {
    g.push(name, Map { f }.into(), inputs, &[]).expect("fits")[0]
}

/// A multi-layer perceptron: `relu(x · a) · b`.
fn mlp() -> Graph {
    let mut g = Graph::new("mlp");
    let x = g.input("x", f32s(&[8, 16]));
    let a = weight(&mut g, "a", &[16, 64]);
    let b = weight(&mut g, "b", &[64, 16]);
    weight(&mut g, "unread", &[1000, 1000]);
    let h = matmul(&mut g, "up", x, a);
    let h = map(&mut g, "relu", ScalarFn::Relu, &[h]);
    let y = matmul(&mut g, "down", h, b);
    g.outputs.push(y);
    g
}

fn split(factor: u8) -> OpStrategy {
    OpStrategy { axes: vec![AxisUse::Split(FactorId(factor))] }
}

fn at(shape: &[u64], dim: usize) -> Sharding {
    let mut s = Sharding::replicated(shape.len());
    s.dims[dim] = DimSharding::split([AxisId(0)]);
    s
}

/// Column then row: `a` split by columns, `b` by rows.
fn column_then_row(g: &Graph) -> Strategy {
    let homes = |v: ValueId| {
        let value = g.value(v);
        match value.name.as_str() {
            "a" => at(&value.ty.shape, 1),
            "b" => at(&value.ty.shape, 0),
            _ => Sharding::replicated(value.ty.rank()),
        }
    };
    let ops = vec![split(1), split(1), split(2)];
    Strategy::from_ops(g, Mesh::new([("t", 4)]), ops, homes).expect("legal")
}

fn prices() -> Prices {
    Prices::draw(&mut Draw::new(&[]))
}

fn steps(p: &Program) -> Vec<&Step> {
    p.instrs
        .iter()
        .filter_map(|i| match i {
            Instr::Reshard { step, .. } => Some(step),
            _ => None,
        })
        .collect()
}

#[test]
fn tensor_parallelism_reduces_once() {
    let g = mlp();
    let p = partition(&g, &column_then_row(&g), &prices()).expect("legal");
    assert_eq!(verify(&p), []);
    let steps = steps(&p);
    assert_eq!(steps.len(), 1);
    assert!(matches!(steps[0], Step::AllReduce { .. } | Step::ReduceScatter { .. }));
    let names: Vec<&str> = p.weights.iter().map(|&b| p.buffer(b).name.as_str()).collect();
    assert_eq!(names, ["a", "b"], "what nothing reads is not loaded");
    let memory = MemoryReport::of(&p).expect("small");
    assert_eq!(memory.weight_bytes, 2 * 16 * 64 * 4 / 4);
    assert_eq!(memory.arena_bytes, memory.bound_bytes());
}

#[test]
fn consumers_share_a_reshard() {
    let mut g = Graph::new("shared");
    let x = g.input("x", f32s(&[8, 8]));
    let y = map(&mut g, "first", ScalarFn::Relu, &[x]);
    let z = map(&mut g, "second", ScalarFn::Neg, &[x]);
    let w = map(&mut g, "sum", ScalarFn::Add, &[y, z]);
    g.outputs.push(w);
    let mesh = Mesh::new([("t", 2)]);
    let ops = vec![split(1), split(1), split(1)];
    let strategy = Strategy::from_ops(&g, mesh, ops, |_| at(&[8, 8], 0)).expect("legal");
    let p = partition(&g, &strategy, &prices()).expect("legal");
    let moved = Step::AllToAll { axes: vec![AxisId(0)], from: 0, to: 1, unit: 1 };
    assert_eq!(steps(&p), [&moved]);
}

#[test]
fn an_output_that_is_read_in_a_finished_form_is_not_reduced_again() {
    let mut g = mlp();
    let y = g.outputs[0];
    let z = map(&mut g, "after", ScalarFn::Relu, &[y]);
    g.outputs.push(z);
    let mut strategy = column_then_row(&g_without_last(&g));
    strategy.ops.push(split(0));
    strategy.values.push(at(&[8, 16], 0));
    let p = partition(&g, &strategy, &prices()).expect("legal");
    let scattered = matches!(steps(&p)[0], Step::ReduceScatter { dim: 0, .. });
    assert!(scattered && steps(&p).len() == 1, "{:?}", steps(&p));
}

fn g_without_last(g: &Graph) -> Graph {
    let mut g = g.clone();
    g.nodes.pop();
    g.values.pop();
    g.outputs.pop();
    g
}

/// A long chain needs two buffers beside its input, and its views need none.
#[test]
fn storage_is_reused() {
    let mut g = Graph::new("chain");
    let mut v = g.input("x", f32s(&[32, 32]));
    for i in 0..20 {
        v = map(&mut g, &format!("map{i}"), ScalarFn::Relu, &[v]);
        let shape = if i % 2 == 0 { vec![1024] } else { vec![32, 32] };
        v = g.push(format!("view{i}"), Reshape { shape }.into(), &[v], &[]).expect("fits")[0];
    }
    g.outputs.push(v);
    let mesh = Mesh::new([("t", 2)]);
    let p = partition(&g, &Strategy::replicated(&g, mesh), &prices()).expect("legal");
    assert_eq!(verify(&p), []);
    assert_eq!(p.arena_bytes, 3 * 32 * 32 * 4);
}

fn refused(g: &Graph, strategy: &Strategy) -> CodegenError {
    partition(g, strategy, &prices()).expect_err("refused")
}

#[test]
fn strategies_that_do_not_fit_are_refused() {
    let g = mlp();
    let sound = column_then_row(&g);
    let change = |change: fn(&mut Strategy)| {
        let mut s = sound.clone();
        change(&mut s);
        match refused(&g, &s) {
            CodegenError::Strategy(e) => e,
            other => panic!("{other}"),
        }
    };
    let e = change(|s| s.mesh.axes[0].size = 0);
    assert!(matches!(e, StrategyError::Mesh(_)), "{e}");
    let e = change(|s| drop(s.ops.pop()));
    assert!(matches!(e, StrategyError::Length { what: "nodes", expected: 3, found: 2 }), "{e}");
    let e = change(|s| drop(s.values.pop()));
    assert!(matches!(e, StrategyError::Length { what: "values", .. }), "{e}");
    let e = change(|s| s.ops[2].axes.clear());
    assert!(matches!(e, StrategyError::AxisCount { found: 0, .. }), "{e}");
    let e = change(|s| s.ops[2] = split(7));
    assert!(matches!(&e, StrategyError::Illegal { node, .. } if node == "down"), "{e}");
    let e = change(|s| s.values[0].dims[0].unit = 3);
    assert!(matches!(&e, StrategyError::BadHome { value, .. } if value == "x"), "{e}");
    let e = change(|s| s.values[0].partial.push((AxisId(0), ReduceKind::Sum)));
    assert!(matches!(&e, StrategyError::PartialHome { value, .. } if value == "x"), "{e}");
    let e = change(|s| s.ops[1] = split(0));
    assert!(matches!(&e, StrategyError::Home { node, .. } if node == "relu"), "{e}");
}

#[test]
fn values_of_unknown_extents_are_refused() {
    let mut g = mlp();
    let strategy = column_then_row(&g);
    let y = g.outputs[0];
    g.values[y.index()].extents = Extents::Dynamic;
    let e = refused(&g, &strategy);
    assert_eq!(e, CodegenError::Dynamic { value: g.value(y).name.clone() });
}
