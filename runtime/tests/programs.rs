//! Programs written by hand, against what they must compute.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use planc_ir::Tensor;
use planc_ir::program::Kernel;
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{Mesh, ReduceKind};
use planc_runtime::{Executor, RunError, execute};
use std::collections::BTreeMap;

const PRODUCT: Kernel = Kernel::MatMul { trans_a: false, trans_b: false };
const RELU: Kernel = Kernel::Map { f: ScalarFn::Relu };

/// `relu(x · a) · b`, the first weight split by columns, the second by rows.
fn mlp(mesh: Mesh, [rows, width, hidden]: [u64; 3]) -> Builder {
    let mut p = Builder::new(mesh);
    let x = p.input("x", f32s([rows, width]), split(&[&[0], &[]]));
    let a = p.weight("a", f32s([width, hidden]), split(&[&[], &[1]]));
    let b = p.weight("b", f32s([hidden, width]), split(&[&[1], &[]]));
    let h = p.buffer("h", f32s([rows, hidden]), split(&[&[0], &[1]]));
    let r = p.buffer("r", f32s([rows, hidden]), split(&[&[0], &[1]]));
    let y = p.buffer("y", f32s([rows, width]), partial(&[&[0], &[]], &[1], ReduceKind::Sum));
    p.kernel(PRODUCT, &[x, a], h);
    p.kernel(RELU, &[h], r);
    p.kernel(PRODUCT, &[r, b], y);
    p
}

fn mlp_reference(x: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
    let h = product(x, a);
    let r = Tensor::from_f64(h.ty().clone(), |i| h.f64_at(i).max(0.0)).unwrap();
    product(&r, b)
}

fn check_mlp(p: &Builder, [rows, width, hidden]: [u64; 3]) {
    let x = numbers(f32s([rows, width]), 1);
    let (a, b) = (numbers(f32s([width, hidden]), 2), numbers(f32s([hidden, width]), 3));
    let want = mlp_reference(&x, &a, &b);
    let out = execute(&p.0, &named([("a", a), ("b", b)]), &BTreeMap::new(), &named([("x", x)]));
    assert_eq!(out.unwrap(), [("y".to_string(), want)]);
}

#[test]
fn columns_then_rows_with_an_all_reduce() {
    for (data, tensor) in [(1, 1), (1, 4), (3, 1), (2, 3)] {
        for extents in [[4, 6, 8], [5, 7, 10], [1, 2, 3], [0, 3, 4], [3, 0, 2]] {
            let mut p = mlp(Mesh::new([("data", data), ("tensor", tensor)]), extents);
            let y = p.0.instrs.len() as u32 + 2;
            let y = planc_ir::program::BufferId(y);
            let done = p.buffer("y", f32s([extents[0], extents[1]]), split(&[&[0], &[]]));
            p.step(Step::AllReduce { axes: axes(&[1]), kind: ReduceKind::Sum }, y, done);
            p.output(done);
            check_mlp(&p, extents);
        }
    }
}

#[test]
fn columns_then_rows_with_a_reduce_scatter_and_an_all_gather() {
    for (data, tensor) in [(1, 4), (2, 3)] {
        for extents in [[4, 6, 8], [5, 7, 10], [1, 2, 3]] {
            let mut p = mlp(Mesh::new([("data", data), ("tensor", tensor)]), extents);
            let y = planc_ir::program::BufferId(p.0.buffers.len() as u32 - 1);
            let ty = f32s([extents[0], extents[1]]);
            let part = p.buffer("y", ty.clone(), split(&[&[0, 1], &[]]));
            let done = p.buffer("y", ty, split(&[&[0], &[]]));
            let (on, kind) = (axes(&[1]), ReduceKind::Sum);
            p.step(Step::ReduceScatter { axes: on.clone(), dim: 0, kind, unit: 1 }, y, part);
            p.step(Step::AllGather { axes: on, dim: 0 }, part, done);
            p.output(done);
            check_mlp(&p, extents);
        }
    }
}

#[test]
fn weights_stay_between_runs_and_ranks_read_only_their_parts() {
    let mut p = mlp(Mesh::new([("data", 1), ("tensor", 4)]), [2, 4, 8]);
    let y = planc_ir::program::BufferId(p.0.buffers.len() as u32 - 1);
    let done = p.buffer("y", f32s([2, 4]), split(&[&[0], &[]]));
    p.step(Step::AllReduce { axes: axes(&[1]), kind: ReduceKind::Sum }, y, done);
    p.output(done);
    let (a, b) = (numbers(f32s([4, 8]), 2), numbers(f32s([8, 4]), 3));
    let weights = named([("a", a.clone()), ("b", b.clone())]);
    let mut executor = Executor::new(p.0, &weights, &BTreeMap::new()).unwrap();
    drop(weights);
    assert_eq!(executor.weight_bytes_read(), [2 * 4 * 8; 4]);
    for seed in 0..3 {
        let x = numbers(f32s([2, 4]), seed);
        let want = mlp_reference(&x, &a, &b);
        assert_eq!(executor.run(&named([("x", x)])).unwrap()[0].1, want);
    }
}

#[test]
fn wrong_inputs_are_named() {
    let mut p = Builder::new(Mesh::new([("d", 2)]));
    let x = p.input("x", f32s([4]), split(&[&[0]]));
    p.output(x);
    let mut e = Executor::new(p.0, &named([]), &BTreeMap::new()).unwrap();
    let mut message = |inputs| e.run(&inputs).unwrap_err().to_string();
    let x = || numbers(f32s([4]), 0);
    assert_eq!(message(named([])), "input `x` (f32[4]) is missing");
    assert_eq!(message(named([("x", x()), ("z", x())])), "`z` is not an input; the inputs are `x`");
    assert_eq!(
        message(named([("x", numbers(f32s([3]), 0))])),
        "input `x` is f32[3], expected f32[4]"
    );
    assert_eq!(e.run(&named([("x", x())])).unwrap()[0].1, x());
}

#[test]
fn a_rank_that_fails_ends_all() {
    // Only rank 2 holds the index that no table has; the others wait for it in the all-gather.
    let mut p = Builder::new(Mesh::new([("d", 4)]));
    let ty = planc_ir::TensorType::new(planc_ir::DType::I64, [4]);
    let table = p.weight("table", f32s([3]), whole(1));
    let index = p.input("index", ty, split(&[&[0]]));
    let part = p.buffer("y", f32s([4]), split(&[&[0]]));
    let all = p.buffer("y", f32s([4]), whole(1));
    p.kernel(Kernel::Gather { axis: 0 }, &[table, index], part);
    p.step(Step::AllGather { axes: axes(&[0]), dim: 0 }, part, all);
    p.output(all);
    let weights = named([("table", numbers(f32s([3]), 0))]);
    let mut e = Executor::new(p.0, &weights, &BTreeMap::new()).unwrap();
    let inputs = |i: [i64; 4]| named([("index", Tensor::vector(i.to_vec()))]);
    let error = e.run(&inputs([0, 1, 7, 2])).unwrap_err();
    assert!(matches!(error, RunError::Kernel { rank: 2, instr: 0, .. }), "{error}");
    assert!(error.to_string().contains("node0"), "{error}");
    assert!(e.run(&inputs([0, 1, -3, 2])).is_ok(), "the next run is not affected");
}

#[test]
fn absurd_arenas_are_refused() {
    let mut p = Builder::new(Mesh::new([("d", 2)]));
    p.0.arena_bytes = 1 << 62;
    let error = Executor::new(p.0, &named([]), &BTreeMap::new()).unwrap_err();
    assert!(matches!(error, RunError::Memory { rank: 0, .. }), "{error}");
}
