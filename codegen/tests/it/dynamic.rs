//! Values whose extents are only known when the program runs: made and read whole by every rank, kept
//! outside the arena.

use crate::random;

use planc_codegen::{CodegenError, MemoryReport, partition};
use planc_ir::interp::evaluate;
use planc_ir::ops::Op;
use planc_ir::ops::deferred::{Deferred, Promise};
use planc_ir::ops::if_op::If;
use planc_ir::ops::loop_op::Loop;
use planc_ir::ops::map::Map;
use planc_ir::ops::transpose::Transpose;
use planc_ir::program::verify::verify;
use planc_ir::program::{BufferId, Instr, Kernel, Program, Slot};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::{
    AxisId, AxisUse, DimSharding, FactorId, Mesh, OpStrategy, ReduceKind, Sharding, Strategy,
};
use planc_ir::weights::InMemory;
use planc_ir::{DType, Extents, Graph, Tensor, TensorType, ValueId};
use random::{Draw, Prices};
use std::collections::BTreeMap;
use std::sync::Arc;

const RANKS: u32 = 2;

fn matrix() -> TensorType {
    TensorType::new(DType::F32, [4, 3])
}

fn map(g: &mut Graph, f: ScalarFn, inputs: &[ValueId], name: &str) -> ValueId {
    g.push(name, Map { f }.into(), inputs, &[name]).expect("fits")[0]
}

/// A branch with two outputs: its input transposed or not, and a map of it.
fn branch(name: &str, f: ScalarFn, transposes: bool) -> Arc<Graph> {
    let mut g = Graph::new(name);
    let x = g.input("x", matrix());
    let y = if transposes {
        g.push("t", Transpose { perm: vec![1, 0] }.into(), &[x], &["t"]).expect("fits")[0]
    } else {
        map(&mut g, ScalarFn::Identity, &[x], "same")
    };
    let z = map(&mut g, f, &[x], "mapped");
    g.outputs = vec![y, z];
    Arc::new(g)
}

/// `h = -x`; of the two results of the branch on `h`, the extents of the first depend on `c`; `w` is
/// made of the second.
fn branching() -> Graph {
    let mut g = Graph::new("branching");
    let c = g.input("c", TensorType::new(DType::Bool, []));
    let x = g.input("x", matrix());
    let h = map(&mut g, ScalarFn::Neg, &[x], "h");
    let op = If {
        then_branch: branch("then", ScalarFn::Exp, false),
        else_branch: branch("else", ScalarFn::Sqrt, true),
    };
    let results = g.push("if", op.into(), &[c, h, h], &["y", "z"]).expect("fits");
    g.values[results[0].index()].extents = Extents::Dynamic;
    let w = map(&mut g, ScalarFn::Add, &[results[1], h], "w");
    g.outputs = vec![results[0], w, results[0]];
    g
}

/// `s` doubled `n` times, and all the numbers on the way.
fn looping() -> Graph {
    let ty = || TensorType::new(DType::F32, [4]);
    let mut body = Graph::new("body");
    body.input("i", TensorType::new(DType::I64, []));
    let running = body.input("running", TensorType::new(DType::Bool, []));
    let s = body.input("s", ty());
    let doubled = map(&mut body, ScalarFn::Add, &[s, s], "doubled");
    body.outputs = vec![running, doubled, doubled];

    let mut g = Graph::new("looping");
    let n = g.input("n", TensorType::new(DType::I64, []));
    let s = g.input("s", ty());
    let body = Arc::new(body);
    let op =
        Loop { body, has_trip_count: true, has_condition: false, carried: 1, iterations: None };
    g.outputs = g.push("loop", op.into(), &[n, s], &["last", "all"]).expect("fits");
    g.values[g.outputs[1].index()].extents = Extents::Dynamic;
    g
}

/// An ONNX operator that is decoded when the program runs, with what is promised of its result.
fn deferred(g: &mut Graph, op_type: &str, inputs: &[ValueId], shape: Option<&[u64]>) -> ValueId {
    let op = Deferred {
        op_type: op_type.into(),
        opset: 17,
        operands: vec![true; inputs.len()],
        ..Deferred::identity(Promise { dtype: DType::F32, shape: shape.map(<[u64]>::to_vec) })
    };
    let name = format!("{op_type} {}", g.nodes.len());
    g.push(&name, op.into(), inputs, &[&name]).expect("fits")[0]
}

/// The product of what the branches leave open and a matrix that is split by rows, and a map of it.
fn reading(promised: &[u64]) -> Graph {
    let mut g = branching();
    let (y, h) = (g.outputs[0], g.inputs[1]);
    let turned = deferred(&mut g, "Transpose", &[y], None);
    let squashed = deferred(&mut g, "Tanh", &[turned], None);
    let product = deferred(&mut g, "MatMul", &[squashed, h], Some(promised));
    let w = map(&mut g, ScalarFn::Neg, &[product], "v");
    g.outputs = vec![w, squashed];
    g
}

/// Everything by rows where that is possible; loops and branches are not split.
fn strategy(g: &Graph) -> Strategy {
    let by_rows = |v: ValueId| {
        let mut s = Sharding::replicated(g.ty(v).rank());
        if let Some(rows) = s.dims.first_mut() {
            *rows = DimSharding::split([AxisId(0)]);
        }
        s
    };
    let ops = g.nodes.iter().map(|n| {
        let split = n.op.name() == "Map" && g.ty(n.outputs[0]).rank() > 0;
        let usage = if split { AxisUse::Split(FactorId(0)) } else { AxisUse::Replicate };
        OpStrategy { axes: vec![usage] }
    });
    Strategy::from_ops(g, Mesh::new([("r", RANKS)]), ops.collect(), by_rows).expect("legal")
}

fn plan(g: &Graph) -> Result<Program, CodegenError> {
    partition(g, &strategy(g), &Prices::draw(&mut Draw::new(&[])))
}

/// Runs the program as it comes out of a plan file, and compares with the reference, bit by bit.
fn check(g: &Graph, program: &Program, inputs: &[Tensor], shapes: &[&[u64]]) {
    let text = serde_json::to_string(program).expect("a document");
    let read: Program = serde_json::from_str(&text).expect("the same document");
    assert_eq!(read, *program);

    let names = g.inputs.iter().map(|&v| g.value(v).name.clone());
    let named: BTreeMap<String, Tensor> = names.zip(inputs.iter().cloned()).collect();
    let none = BTreeMap::<String, Tensor>::new();
    let found = planc_runtime::execute(&read, &none, &none, &named).expect("runs");
    let expected = evaluate(g, inputs, &InMemory).expect("runs");
    assert_eq!(found.len(), shapes.len());
    for (((name, found), expected), &shape) in found.iter().zip(&expected).zip(shapes) {
        assert_eq!((found.shape(), found.ty()), (shape, expected.ty()), "{name}");
        assert_eq!(found.to_bytes(), expected.to_bytes(), "{name}");
    }
}

#[test]
fn a_branch_decides_the_extents_of_an_output() {
    let g = branching();
    let program = plan(&g).expect("supported");
    assert_eq!(verify(&program), []);
    let reshards = |p: &Program| p.instrs.iter().any(|i| matches!(i, Instr::Reshard { .. }));
    assert!(reshards(&program), "the branch gets its operand whole");
    // The square root of a negative number is not one; copies of it are the same nevertheless.
    let x = Tensor::from_f64(matrix(), |i| i as f64 * 0.5 - 2.0).expect("small");
    check(&g, &program, &[Tensor::scalar(true), x.clone()], &[&[4, 3], &[4, 3], &[4, 3]]);
    check(&g, &program, &[Tensor::scalar(false), x], &[&[3, 4], &[4, 3], &[3, 4]]);
}

#[test]
fn a_loop_decides_the_extents_of_an_output() {
    let g = looping();
    let program = plan(&g).expect("supported");
    assert_eq!(verify(&program), []);
    let s = Tensor::vector(vec![1.0f32, f32::NAN, -3.0, 0.5]);
    for n in [3i64, 1, 0] {
        let stacked = [n as u64, 4];
        check(&g, &program, &[Tensor::scalar(n), s.clone()], &[&[4], &stacked]);
    }
}

#[test]
fn nodes_that_run_whole_read_what_is_dynamic() {
    let g = reading(&[3, 3]);
    let program = plan(&g).expect("supported");
    assert_eq!(verify(&program), []);
    assert_eq!(program.buffers.iter().filter(|b| b.dynamic).count(), 3);
    let x = Tensor::from_f64(matrix(), |i| i as f64 * 0.25 - 1.0).expect("small");
    check(&g, &program, &[Tensor::scalar(true), x.clone()], &[&[3, 3], &[3, 4]]);
    // The other branch gives a matrix that does not fit, the promise may be wrong too.
    let fails = |g: &Graph, c: bool| {
        let none = BTreeMap::<String, Tensor>::new();
        let inputs = [("c", Tensor::scalar(c)), ("x", x.clone())];
        let inputs = inputs.map(|(name, t)| (name.to_string(), t)).into_iter().collect();
        let program = plan(g).expect("supported");
        planc_runtime::execute(&program, &none, &none, &inputs).expect_err("fails").to_string()
    };
    let unfit = fails(&g, false);
    assert!(unfit.contains("MatMul"), "{unfit}");
    let promise = fails(&reading(&[3, 4]), true);
    assert!(promise.contains("gives f32[3,3], but the model says f32[3,4]"), "{promise}");
}

#[test]
fn operands_of_deferred_operators_are_whole() {
    let mut program = plan(&reading(&[3, 3])).expect("supported");
    let split = program.buffers.iter().position(|b| b.sharding.split_axes().next().is_some());
    let split = BufferId(split.expect("x is split") as u32);
    let product = program.instrs.iter_mut().find_map(|i| match i {
        Instr::Kernel { node, inputs, .. } if node.starts_with("MatMul") => Some(inputs),
        _ => None,
    });
    product.expect("there is one")[1] = split;
    let found = verify(&program).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(found.contains("operand of a deferred operator, but not whole"), "{found}");
}

#[test]
fn dynamic_buffers_take_no_memory() {
    let mut g = branching();
    let program = plan(&g).expect("supported");
    let dynamic: Vec<_> = program.buffers.iter().filter(|b| b.dynamic).collect();
    let [y] = dynamic[..] else { panic!("{dynamic:?}") };
    assert_eq!((y.name.as_str(), y.slot), ("y", Slot::default()));
    let without = {
        g.outputs = vec![g.outputs[1]];
        plan(&g).expect("supported")
    };
    let report = |p| MemoryReport::of(p).expect("small");
    assert_eq!(report(&program), report(&without));
    // Its field is written where it is true, and nowhere else.
    let text = serde_json::to_string(&program).expect("a document");
    assert_eq!(text.matches("\"dynamic\":true").count(), 1);
    assert_eq!(text.matches("\"dynamic\":false").count(), 0);
}

#[test]
fn what_else_is_dynamic_is_refused() {
    let refused = |g: &Graph, value: &str| {
        assert_eq!(plan(g).expect_err("refused"), CodegenError::Dynamic { value: value.into() });
    };
    // Another node reads it.
    let mut g = branching();
    let y = g.outputs[0];
    map(&mut g, ScalarFn::Neg, &[y], "reader");
    refused(&g, "y");
    // A node with a kernel of its own makes it, or no node at all.
    for name in ["w", "c"] {
        let mut g = branching();
        let found = g.values.iter_mut().find(|v| v.name == name).expect("there");
        (found.extents, found.ty.shape) = (Extents::Dynamic, vec![]);
        let whole = Strategy::replicated(&g, Mesh::new([("r", RANKS)]));
        let e = partition(&g, &whole, &Prices::draw(&mut Draw::new(&[]))).expect_err("refused");
        assert_eq!(e, CodegenError::Dynamic { value: name.into() });
    }
}

/// What the verifier says of the branching program with one thing changed.
fn findings(change: impl FnOnce(&mut Program, BufferId)) -> String {
    let mut program = plan(&branching()).expect("supported");
    let y = program.buffers.iter().position(|b| b.dynamic).expect("one is");
    change(&mut program, BufferId(y as u32));
    verify(&program).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn set_dynamic(p: &mut Program, name: &str) {
    p.buffers.iter_mut().filter(|b| b.name == name).for_each(|b| b.dynamic = true);
}

#[test]
fn the_verifier_holds_dynamic_buffers_to_their_rules() {
    assert_eq!(findings(|_, _| {}), "");
    let extents = findings(|p, y| {
        let buffer = &mut p.buffers[y.index()];
        (buffer.ty.shape, buffer.sharding) = (vec![4], Sharding::replicated(1));
    });
    assert!(extents.contains("(`y`) is dynamic, but f32[4] has extents"), "{extents}");
    let partial = findings(|p, y| {
        p.buffers[y.index()].sharding.partial = vec![(AxisId(0), ReduceKind::Sum)];
    });
    assert!(partial.contains("not whole on every rank"), "{partial}");
    let loaded = findings(|p, _| set_dynamic(p, "c"));
    assert!(loaded.contains("the inputs of the program: names buffer 0 (`c`)"), "{loaded}");
    let kernel = findings(|p, _| set_dynamic(p, "w"));
    assert!(kernel.contains("(node `w`): names buffer"), "{kernel}");
    let read = findings(|p, y| {
        let Some(Instr::Kernel { kernel, inputs, .. }) = p.instrs.last_mut() else {
            panic!("the last instruction is a kernel")
        };
        assert!(matches!(kernel, Kernel::Map { .. }));
        inputs[0] = y;
    });
    assert!(read.contains("(node `w`): names buffer"), "{read}");
    let bodies = findings(|p, _| {
        let made = p.instrs.iter_mut().find_map(|i| match i {
            Instr::Kernel { kernel: Kernel::Reference { op }, .. } => Some(op),
            _ => None,
        });
        if let Op::If(op) = &mut **made.expect("the branch") {
            Arc::make_mut(&mut op.else_branch).outputs[0] = ValueId(99);
        }
    });
    assert!(bodies.contains("(node `if`): on the rank at [0], in a body of If: "), "{bodies}");
    let slot = findings(|p, y| p.buffers[y.index()].slot = Slot { offset: 0, bytes: 4 });
    assert!(slot.contains("its slot has 4 bytes, its largest part 0"), "{slot}");
}
