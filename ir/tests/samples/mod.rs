//! One or more applications of every op, small and with extents that do not divide evenly.

use crate::random::Random;
use planc_ir::ops::Op;
use planc_ir::ops::arg_reduce::ArgReduce;
use planc_ir::ops::concat::Concat;
use planc_ir::ops::conv::Conv;
use planc_ir::ops::cumsum::CumSum;
use planc_ir::ops::einsum::Einsum;
use planc_ir::ops::expand::Expand;
use planc_ir::ops::fill::Fill;
use planc_ir::ops::gather::Gather;
use planc_ir::ops::gather_elements::GatherElements;
use planc_ir::ops::gather_nd::GatherNd;
use planc_ir::ops::lrn::Lrn;
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::normalize::Normalize;
use planc_ir::ops::pad::Pad;
use planc_ir::ops::pool::Pool;
use planc_ir::ops::range::{Range, Scalar};
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::reshape::Reshape;
use planc_ir::ops::scatter::Update;
use planc_ir::ops::scatter_elements::ScatterElements;
use planc_ir::ops::scatter_nd::ScatterNd;
use planc_ir::ops::slice::{Cut, Slice};
use planc_ir::ops::softmax::Softmax;
use planc_ir::ops::top_k::TopK;
use planc_ir::ops::transpose::Transpose;
use planc_ir::ops::trilu::Trilu;
use planc_ir::program::kernel::PadMode;
use planc_ir::program::{PoolKind, Window};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::ReduceKind;
use planc_ir::{DType, Tensor, TensorType};

/// An op with inputs that it accepts.
pub struct Sample {
    pub op: Op,
    pub inputs: Vec<Tensor>,
}

/// A tensor of random numbers.
pub fn random_tensor(random: &mut Random, shape: &[u64]) -> Tensor {
    Tensor::from_f64(TensorType::new(DType::F64, shape), |_| random.next()).unwrap()
}

fn window(strides: &[u64], dilations: &[u64], before: &[u64], after: &[u64]) -> Window {
    Window {
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        before: before.to_vec(),
        after: after.to_vec(),
    }
}

fn ints(shape: &[u64], values: &[i64]) -> Tensor {
    Tensor::new(shape, values.to_vec()).unwrap()
}

/// The samples.
pub fn all() -> Vec<Sample> {
    let mut random = Random(1);
    let mut samples = Vec::new();
    let mut add = |op: Op, inputs: Vec<Tensor>| samples.push(Sample { op, inputs });
    let mut x = |shape: &[u64]| random_tensor(&mut random, shape);

    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let a = if trans_a { x(&[2, 6, 5]) } else { x(&[2, 5, 6]) };
        let b = if trans_b { x(&[7, 6]) } else { x(&[6, 7]) };
        add(MatMul { trans_a, trans_b }.into(), vec![a, b]);
    }
    let plain = MatMul { trans_a: false, trans_b: false };
    add(plain.clone().into(), vec![x(&[3, 1, 2, 4]), x(&[1, 5, 4, 3])]);
    add(plain.into(), vec![x(&[3, 2, 4]), x(&[3, 4, 1])]);

    let map = |f| Op::from(Map { f });
    add(map(ScalarFn::Add), vec![x(&[3, 5]), x(&[5])]);
    add(map(ScalarFn::Sub), vec![x(&[3, 1]), x(&[3, 5])]);
    add(map(ScalarFn::Mul), vec![x(&[2, 3, 1]), x(&[4])]);
    add(map(ScalarFn::Div), vec![x(&[7]), x(&[7])]);
    add(map(ScalarFn::Neg), vec![x(&[4, 3])]);
    add(map(ScalarFn::Gelu), vec![x(&[6, 2])]);
    add(map(ScalarFn::Less), vec![x(&[3, 2]), x(&[])]);
    let mask = Tensor::vector(vec![true, false, true, true, false]);
    add(map(ScalarFn::Where), vec![mask, x(&[3, 5]), x(&[1])]);
    add(map(ScalarFn::Clip), vec![x(&[3, 5]), x(&[]), x(&[])]);
    add(map(ScalarFn::Cast(DType::I32)), vec![x(&[5])]);

    add(Fill { dtype: DType::F64, shape: vec![5, 3], value: 0.5 }.into(), vec![]);
    let range = |dtype, start, limit, delta| Range { dtype, start, limit, delta };
    let [start, limit, delta] = [9, -6, -4].map(Scalar::Int);
    add(range(DType::I32, start, limit, delta).into(), vec![]);
    let [start, limit, delta] = [0.5, 2.0, 0.375].map(Scalar::Float);
    add(range(DType::F64, start, limit, delta).into(), vec![]);
    add(Expand { shape: vec![2, 4, 5] }.into(), vec![x(&[4, 1])]);

    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod] {
        for keep in [true, false] {
            add(Reduce { kind, axes: vec![0, 2], keep }.into(), vec![x(&[5, 2, 3])]);
        }
    }
    add(Reduce { kind: ReduceKind::Sum, axes: vec![], keep: true }.into(), vec![x(&[5, 2])]);
    let whole = ints(&[5], &[3, -1, 4, 1, -5]);
    add(Reduce { kind: ReduceKind::Max, axes: vec![0], keep: true }.into(), vec![whole]);

    add(Softmax { axis: 1, log: false }.into(), vec![x(&[2, 5, 3])]);
    add(Softmax { axis: 0, log: true }.into(), vec![x(&[5, 3])]);
    let inner = || vec![3, 4];
    for rms in [false, true] {
        let norm = Normalize { axis: 1, epsilon: 1e-5, rms };
        let mut inputs = vec![x(&[5, 3, 4]), x(&inner())];
        if !rms {
            inputs.push(x(&inner()));
        }
        add(norm.into(), inputs);
    }
    add(Lrn { size: 3, alpha: 0.5, beta: 0.75, bias: 1.0 }.into(), vec![x(&[2, 5, 3])]);

    let w = window(&[2, 1], &[1, 2], &[1, 0], &[0, 2]);
    for groups in [1, 2, 4] {
        let conv = Conv { window: w.clone(), groups };
        let inputs = vec![x(&[3, 4, 5, 6]), x(&[8, 4 / groups, 3, 2])];
        add(conv.into(), inputs);
    }
    let line = window(&[1], &[1], &[1], &[1]);
    add(Conv { window: line, groups: 3 }.into(), vec![x(&[2, 9, 4]), x(&[6, 3, 3])]);
    for kind in [PoolKind::Max, PoolKind::Average, PoolKind::AverageWithPadding] {
        let window = window(&[2, 2], &[1, 1], &[1, 0], &[0, 1]);
        let pool = Pool { kind, extents: vec![3, 2], window, ceil: true };
        add(pool.into(), vec![x(&[2, 5, 5, 4])]);
    }

    for (from, to) in [
        (vec![6, 4], vec![2, 3, 4]),
        (vec![2, 3, 4], vec![6, 4]),
        (vec![2, 3, 8], vec![2, 3, 2, 4]),
        (vec![5, 6], vec![5, 3, 2]),
        (vec![6, 4], vec![4, 6]),
        (vec![1, 7, 1], vec![7]),
        (vec![7, 3], vec![21]),
    ] {
        add(Reshape { shape: to }.into(), vec![x(&from)]);
    }
    add(Transpose { perm: vec![2, 0, 1] }.into(), vec![x(&[5, 2, 3])]);
    add(Concat { axis: 1 }.into(), vec![x(&[5, 2]), x(&[5, 3]), x(&[5, 1])]);
    let cut = |start, step, extent| Some(Cut { start, step, extent });
    let cuts = vec![cut(1, 1, 2), None, cut(4, -2, 3)];
    add(Slice { cuts }.into(), vec![x(&[4, 3, 5])]);
    for mode in [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
        for value in [0.0, 2.5] {
            let pad = Pad { before: vec![1, 0, -1], after: vec![2, 0, 1], mode, value };
            add(pad.into(), vec![x(&[3, 5, 4])]);
        }
    }

    let rows = ints(&[2, 2], &[0, -1, 6, 3]);
    add(Gather { axis: 0 }.into(), vec![x(&[7, 3]), rows]);
    let rows = ints(&[3], &[4, 1, -5]);
    add(Gather { axis: 1 }.into(), vec![x(&[2, 5, 3]), rows]);
    let table = Tensor::vector(vec![true, false, true]);
    add(Gather { axis: 0 }.into(), vec![table, ints(&[5], &[2, 2, 0, 1, -1])]);
    let at = ints(&[2, 3, 1], &[0, 3, -1, 2, 2, 1]);
    add(GatherNd { batch_dims: 1 }.into(), vec![x(&[2, 4, 5]), at]);
    let at = ints(&[5, 2], &[0, 1, 2, -1, 1, 0, 0, 0, -3, 3]);
    add(GatherNd { batch_dims: 0 }.into(), vec![x(&[3, 4, 5]), at]);

    for (exclusive, reverse) in [(false, false), (true, true)] {
        add(CumSum { axis: 1, exclusive, reverse }.into(), vec![x(&[5, 4])]);
    }
    add(Trilu { upper: true, k: 1 }.into(), vec![x(&[5, 3, 4])]);
    add(Trilu { upper: false, k: 0 }.into(), vec![x(&[4, 3])]);
    add(TopK { axis: 1, k: 2, largest: true }.into(), vec![x(&[3, 5, 2])]);
    add(TopK { axis: 0, k: 3, largest: false }.into(), vec![x(&[3, 5])]);
    for keep in [true, false] {
        let arg = ArgReduce { axis: 1, largest: keep, keep, last: false };
        add(arg.into(), vec![x(&[5, 3, 2])]);
    }
    let at = ints(&[5, 2], &[0, 3, -1, 2, 2, 1, 0, 0, 3, -4]);
    add(GatherElements { axis: 1 }.into(), vec![x(&[5, 4]), at.clone()]);
    add(GatherElements { axis: 1 }.into(), vec![x(&[6, 4]), at.clone()]);
    for update in [Update::Set, Update::Add, Update::Mul, Update::Max, Update::Min] {
        let inputs = vec![x(&[5, 4]), at.clone(), x(&[5, 2])];
        add(ScatterElements { axis: 1, update }.into(), inputs);
        let at = ints(&[3, 1], &[1, -1, 1]);
        add(ScatterNd { update }.into(), vec![x(&[3, 5]), at, x(&[3, 5])]);
    }
    for (inputs, output, shapes) in [
        (vec!["bij", "jk"], "kbi", vec![vec![2, 3, 5], vec![5, 4]]),
        (vec!["ab", "ac", "ad"], "bd", vec![vec![5, 2], vec![5, 3], vec![5, 4]]),
        (vec!["bii"], "bi", vec![vec![3, 4, 4]]),
        (vec!["ij", "ij"], "i", vec![vec![3, 5], vec![1, 5]]),
    ] {
        let inputs = inputs.into_iter().map(String::from).collect();
        let op = Einsum { inputs, output: output.to_string() };
        add(op.into(), shapes.iter().map(|s| x(s)).collect());
    }
    samples
}
