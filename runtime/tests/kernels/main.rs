//! Every kernel against the reference semantics of the op that lowers to it, over all the element
//! types that the op takes.
#![allow(clippy::unwrap_used)]

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod experts;
mod gradients;
mod slopes;

use common::numbers;
use planc_ir::dtype::ALL;
use planc_ir::ops::Op;
use planc_ir::ops::concat::Concat;
use planc_ir::ops::conv::Conv;
use planc_ir::ops::expand::Expand;
use planc_ir::ops::fill::Fill;
use planc_ir::ops::gather::Gather;
use planc_ir::ops::gather_nd::GatherNd;
use planc_ir::ops::lrn::Lrn;
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::normalize::Normalize;
use planc_ir::ops::pad::Pad;
use planc_ir::ops::pool::Pool;
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::reshape::Reshape;
use planc_ir::ops::slice::{Cut, Slice};
use planc_ir::ops::softmax::Softmax;
use planc_ir::ops::transpose::Transpose;
use planc_ir::program::kernel::PadMode;
use planc_ir::program::{Kernel, Local, PoolKind, Window};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::ReduceKind;
use planc_ir::{DType, Tensor, TensorType};
use planc_runtime::KernelError;
use planc_runtime::device::bytes::AlignedBytes;
use planc_runtime::device::cpu::{In, Out, run};
use planc_runtime::region;

/// Runs a kernel of one result on parts of tensors.
fn run_on(kernel: &Kernel, inputs: &[(Local, Tensor)], out: &Local) -> Result<Tensor, KernelError> {
    run_all_on(kernel, inputs, std::slice::from_ref(out)).map(|mut results| results.remove(0))
}

/// Runs a kernel on parts of tensors.
fn run_all_on(
    kernel: &Kernel,
    inputs: &[(Local, Tensor)],
    outs: &[Local],
) -> Result<Vec<Tensor>, KernelError> {
    let bytes: Vec<AlignedBytes> =
        inputs.iter().map(|(_, t)| AlignedBytes::copy_of(&t.to_bytes()).unwrap()).collect();
    let inputs: Vec<In<'_>> =
        inputs.iter().zip(&bytes).map(|((local, _), bytes)| In { local, bytes }).collect();
    let mut results: Vec<AlignedBytes> =
        outs.iter().map(|out| AlignedBytes::zeroed(out.ty.bytes()).unwrap()).collect();
    for result in &mut results {
        result.fill(0xA5); // what was there before must not matter
    }
    let mut operands: Vec<Out<'_>> =
        outs.iter().zip(&mut results).map(|(local, bytes)| Out { local, bytes }).collect();
    run(kernel, &inputs, &mut operands)?;
    let tensors = outs.iter().zip(&results);
    Ok(tensors.map(|(out, bytes)| Tensor::from_bytes(out.ty.clone(), bytes).unwrap()).collect())
}

/// How far results may lie from the reference, relative to the largest magnitude that took part.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 0.0,
    }
}

fn assert_close(got: &Tensor, want: &Tensor, what: &str) {
    assert_eq!(got.ty(), want.ty(), "{what}");
    if !got.dtype().is_float() {
        assert_eq!(got, want, "{what}");
        return;
    }
    let (got, want, rel) = (got.to_f64s(), want.to_f64s(), tolerance(got.dtype()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let near = w.is_finite() && (g - w).abs() <= rel * w.abs().max(1.0);
        let same = near || g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan());
        assert!(same, "{what}: element {i} is {g}, expected {w}");
    }
}

/// The op and its kernel agree on these inputs: on the results, or on the error.
fn check(op: impl Into<Op>, inputs: &[Tensor]) {
    let op = op.into();
    let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
    let what = format!("{op:?} of {types:?}");
    let consts: Vec<Option<&Tensor>> = inputs.iter().map(Some).collect();
    let outs = op.infer(&types, &consts).unwrap_or_else(|e| panic!("{what}: {e}"));
    let outs: Vec<Local> = outs.iter().map(region::whole).collect();
    let want = op.eval(&inputs.iter().collect::<Vec<_>>());
    let parts: Vec<(Local, Tensor)> =
        inputs.iter().map(|t| (region::whole(t.ty()), t.clone())).collect();
    let got = run_all_on(&op.lower(), &parts, &outs);
    match (got, want) {
        (Ok(got), Ok(want)) => {
            assert_eq!(got.len(), want.len(), "{what}");
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_close(got, want, &format!("{what}: result {i}"));
            }
        }
        (Err(_), Err(_)) => {}
        (got, want) => panic!("{what}: {got:?}, expected {want:?}"),
    }
}

/// The same for every element type that `types` accepts.
fn check_all(op: &Op, dtypes: &[DType], shapes: &[&[u64]]) {
    for &dtype in dtypes {
        let inputs: Vec<Tensor> = shapes
            .iter()
            .enumerate()
            .map(|(i, &s)| numbers_of(TensorType::new(dtype, s), i as u64))
            .collect();
        check(op.clone(), &inputs);
    }
}

/// Irregular numbers: fractions for floats, small integers otherwise.
fn numbers_of(ty: TensorType, seed: u64) -> Tensor {
    if ty.dtype.is_float() {
        let whole = numbers(TensorType::new(DType::F64, ty.shape.clone()), seed);
        Tensor::from_f64(ty, |i| whole.f64_at(i) * 0.375 + (i % 3) as f64 * 0.01).unwrap()
    } else {
        numbers(ty, seed)
    }
}

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

fn numeric() -> Vec<DType> {
    ALL.into_iter().filter(|&d| d != DType::Bool).collect()
}

#[test]
fn scalar_functions() {
    use ScalarFn as F;
    let unary = [
        F::Identity,
        F::Neg,
        F::Abs,
        F::Sign,
        F::Reciprocal,
        F::Sqrt,
        F::Exp,
        F::Log,
        F::Sin,
        F::Cos,
        F::Tan,
        F::Asin,
        F::Acos,
        F::Atan,
        F::Sinh,
        F::Cosh,
        F::Tanh,
        F::Asinh,
        F::Acosh,
        F::Atanh,
        F::Erf,
        F::Floor,
        F::Ceil,
        F::Round,
        F::Not,
        F::IsNaN,
        F::IsInf { positive: true, negative: false },
        F::Relu,
        F::Sigmoid,
        F::HardSigmoid { alpha: 0.2, beta: 0.5 },
        F::HardSwish,
        F::LeakyRelu { alpha: 0.1 },
        F::Elu { alpha: 1.5 },
        F::Celu { alpha: 0.5 },
        F::Selu { alpha: 1.6, gamma: 1.05 },
        F::ThresholdedRelu { alpha: 0.7 },
        F::Softplus,
        F::Softsign,
        F::Mish,
        F::Gelu,
        F::GeluTanh,
        F::Shrink { bias: 0.1, lambd: 0.5 },
        F::BitwiseNot,
    ];
    let binary = [
        F::Add,
        F::Sub,
        F::Mul,
        F::Div,
        F::Pow,
        F::Mod,
        F::Fmod,
        F::Min,
        F::Max,
        F::And,
        F::Or,
        F::Xor,
        F::Equal,
        F::Less,
        F::LessOrEqual,
        F::Greater,
        F::GreaterOrEqual,
        F::PRelu,
        F::BitwiseAnd,
        F::BitwiseOr,
        F::BitwiseXor,
        F::ShiftLeft,
        F::ShiftRight,
    ];
    let shapes: [[&[u64]; 2]; 8] = [
        [&[], &[]],
        [&[7], &[7]],
        [&[3, 5], &[5]],
        [&[3, 5], &[3, 1]],
        [&[2, 1, 4], &[3, 1]],
        [&[600], &[]],
        [&[], &[2, 3]],
        [&[0, 3], &[3]],
    ];
    for f in unary.into_iter().chain(ALL.map(F::Cast)) {
        let dtypes: Vec<DType> = ALL.into_iter().filter(|&d| f.accepts(d)).collect();
        for [a, _] in shapes {
            check_all(&Map { f }.into(), &dtypes, &[a]);
        }
    }
    for f in binary {
        let dtypes: Vec<DType> = ALL.into_iter().filter(|&d| f.accepts(d)).collect();
        for pair in shapes {
            check_all(&Map { f }.into(), &dtypes, &pair);
        }
    }
    for dtype in numeric() {
        let n = |shape: &[u64], seed| numbers_of(TensorType::new(dtype, shape), seed);
        check(Map { f: F::Clip }, &[n(&[4, 3], 1), n(&[], 2), n(&[], 3)]);
    }
    for dtype in ALL {
        let n = |shape: &[u64], seed| numbers_of(TensorType::new(dtype, shape), seed);
        let condition = numbers(TensorType::new(DType::Bool, [4, 1]), 0);
        check(Map { f: F::Where }, &[condition, n(&[3], 2), n(&[2, 1, 3], 3)]);
    }
}

#[test]
fn special_values_of_floats() {
    use ScalarFn as F;
    let special = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 3e38];
    let pairs: Vec<(f32, f32)> =
        special.iter().flat_map(|&a| special.iter().map(move |&b| (a, b))).collect();
    let a = Tensor::vector(pairs.iter().map(|p| p.0).collect());
    let b = Tensor::vector(pairs.iter().map(|p| p.1).collect());
    for f in [F::Add, F::Sub, F::Mul, F::Div, F::Min, F::Max, F::Equal, F::Less, F::Pow] {
        check(Map { f }, &[a.clone(), b.clone()]);
    }
    for f in [F::Relu, F::Sigmoid, F::Tanh, F::Exp, F::Log, F::Sqrt, F::Cast(DType::I32)] {
        check(Map { f }, std::slice::from_ref(&a));
    }
    for kind in [ReduceKind::Max, ReduceKind::Min, ReduceKind::Sum] {
        let rows = a.clone().reshape([9, 9]).unwrap();
        check(Reduce { kind, axes: vec![1], keep: false }, &[rows]);
    }
}

#[test]
fn matrix_products() {
    let shapes: [[&[u64]; 2]; 8] = [
        [&[3, 4], &[4, 5]],
        [&[1, 1], &[1, 1]],
        [&[2, 3, 4], &[4, 5]],
        [&[2, 3, 4], &[2, 4, 5]],
        [&[3, 4], &[2, 4, 5]],
        [&[2, 1, 3, 4], &[3, 4, 5]],
        [&[3, 0], &[0, 5]],
        [&[0, 4], &[4, 5]],
    ];
    let swapped = |s: &[u64], swap: bool| {
        let (mut s, n) = (s.to_vec(), s.len());
        if swap {
            s.swap(n - 1, n - 2);
        }
        s
    };
    for [a, b] in shapes {
        for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let (a, b) = (swapped(a, trans_a), swapped(b, trans_b));
            check_all(&MatMul { trans_a, trans_b }.into(), &numeric(), &[&a, &b]);
        }
    }
}

#[test]
fn layouts() {
    for (from, to) in [(vec![2, 6], vec![3, 4]), (vec![], vec![1]), (vec![0, 3], vec![0])] {
        check_all(&Reshape { shape: to }.into(), &ALL, &[&from]);
    }
    for (shape, perm) in [
        (vec![2, 3, 4], vec![2, 0, 1]),
        (vec![2, 3, 4, 5], vec![0, 2, 1, 3]),
        (vec![3, 2], vec![1, 0]),
        (vec![2, 0, 3], vec![1, 2, 0]),
        (vec![], vec![]),
    ] {
        check_all(&Transpose { perm }.into(), &ALL, &[&shape]);
    }
    let cut = |start, step, extent| Some(Cut { start, step, extent });
    for cuts in [
        vec![cut(1, 1, 2), None],
        vec![None, cut(4, -2, 3)],
        vec![cut(3, -1, 4), cut(0, 3, 2)],
        vec![cut(2, i64::MAX, 1), None],
        vec![cut(0, 1, 0), cut(1, 1, 4)],
    ] {
        check_all(&Slice { cuts }.into(), &ALL, &[&[4, 5]]);
    }
    check_all(&Concat { axis: 1 }.into(), &ALL, &[&[2, 3, 2], &[2, 1, 2], &[2, 0, 2]]);
    check_all(&Concat { axis: 0 }.into(), &ALL, &[&[2], &[3]]);
    for dtype in ALL {
        check(Fill { dtype, shape: vec![2, 3], value: 1.0 }, &[]);
    }
    check_all(&Expand { shape: vec![2, 3, 4] }.into(), &ALL, &[&[3, 1]]);
}

#[test]
fn padding() {
    let modes = [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap];
    for (i, mode) in modes.into_iter().enumerate() {
        for (before, after) in [
            (vec![1, 0], vec![0, 2]),
            (vec![2, 3], vec![2, 3]),
            (vec![-1, 1], vec![1, -2]),
            (vec![0, 0], vec![0, 0]),
        ] {
            check_all(&Pad { before, after, mode, value: i as f64 }.into(), &numeric(), &[&[3, 4]]);
        }
    }
    let (before, after) = (vec![2], vec![1]);
    let mode = PadMode::Constant;
    check_all(&Pad { before, after, mode, value: 0.5 }.into(), &FLOATS, &[&[0]]);
}

#[test]
fn reductions() {
    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod] {
        for keep in [false, true] {
            for axes in [vec![], vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
                let op = Reduce { kind, axes, keep }.into();
                check_all(&op, &numeric(), &[&[2, 3, 4]]);
                check_all(&op, &FLOATS, &[&[1, 3, 1]]);
                check_all(&op, &numeric(), &[&[2, 0, 3]]);
            }
        }
    }
    for kind in [ReduceKind::Max, ReduceKind::Min] {
        check_all(&Reduce { kind, axes: vec![1], keep: false }.into(), &[DType::Bool], &[&[3, 4]]);
    }
}

#[test]
fn normalisations() {
    for log in [false, true] {
        for (axis, shape) in [(0, vec![5]), (1, vec![2, 7, 3]), (2, vec![2, 1, 4]), (1, vec![2, 0])]
        {
            check_all(&Softmax { axis, log }.into(), &FLOATS, &[&shape]);
        }
        let huge = Tensor::vector(vec![1e30f32, -1e30, 0.0, 1e30]);
        check(Softmax { axis: 0, log }, &[huge]);
    }
    for (rms, axis) in [(false, 1), (false, 2), (true, 1), (true, 0)] {
        let op: Op = Normalize { axis, epsilon: 1e-5, rms }.into();
        let shape = [3, 4, 5];
        check_all(&op, &FLOATS, &[&shape, &shape[axis..]]);
        if !rms {
            check_all(&op, &FLOATS, &[&shape, &shape[axis..], &shape[axis..]]);
        }
        check_all(&op, &FLOATS, &[&[0, 4, 5][..], &[0, 4, 5][axis..]]);
    }
    for (size, shape) in
        [(3, vec![2, 5, 3]), (4, vec![1, 6]), (1, vec![1, 2, 2, 2]), (9, vec![1, 3])]
    {
        let op = Lrn { size, alpha: 0.1, beta: 0.75, bias: 1.5 };
        check_all(&op.into(), &FLOATS, &[&shape]);
    }
}

fn window<const N: usize>(strides: [u64; N], dilations: [u64; N], pads: [[u64; 2]; N]) -> Window {
    Window {
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        before: pads.iter().map(|p| p[0]).collect(),
        after: pads.iter().map(|p| p[1]).collect(),
    }
}

#[test]
fn convolutions() {
    let conv = |x: &[u64], w: &[u64], groups, window| {
        check_all(&Conv { window, groups }.into(), &FLOATS, &[x, w]);
    };
    conv(&[2, 3, 7], &[4, 3, 3], 1, window([1], [1], [[1, 1]]));
    conv(&[2, 3, 6, 5], &[4, 3, 3, 2], 1, window([1, 1], [1, 1], [[0, 0], [0, 0]]));
    conv(&[1, 3, 9, 8], &[2, 3, 3, 3], 1, window([2, 3], [1, 2], [[1, 2], [3, 0]]));
    conv(&[2, 3, 4, 4], &[5, 3, 1, 1], 1, window([1, 1], [1, 1], [[0, 0], [0, 0]]));
    conv(&[2, 3, 4, 4], &[5, 3, 1, 1], 1, window([2, 2], [1, 1], [[0, 0], [0, 0]]));
    conv(&[1, 4, 5, 5], &[6, 2, 3, 3], 2, window([1, 1], [1, 1], [[1, 1], [1, 1]]));
    conv(&[2, 3, 5, 6], &[3, 1, 3, 3], 3, window([2, 1], [1, 1], [[1, 1], [1, 1]]));
    conv(&[1, 2, 5], &[4, 1, 2], 2, window([1], [3], [[2, 2]]));
    conv(&[1, 2, 3, 4, 3], &[2, 2, 2, 2, 2], 1, window([1; 3], [1; 3], [[1, 0]; 3]));
    conv(&[0, 2, 4], &[2, 2, 2], 1, window([1], [1], [[0, 0]]));
    // Padding wider than the input; a window that no position fills.
    conv(&[1, 2, 2], &[2, 2, 3], 1, window([1], [1], [[4, 5]]));
}

#[test]
fn a_convolution_of_many_positions_is_computed_in_blocks() {
    // 64 · 3 rows of columns: a block holds 5461 of the 12000 positions.
    let (x, w) = ([1, 64, 12_002], [2, 64, 3]);
    let op = Conv { window: window([1], [1], [[0, 0]]), groups: 1 };
    let ones = |shape: &[u64]| {
        Tensor::from_f64(TensorType::new(DType::F32, shape), |i| (i % 5) as f64 - 2.0).unwrap()
    };
    check(op, &[ones(&x), ones(&w)]);
}

#[test]
fn pools() {
    for kind in [PoolKind::Max, PoolKind::Average, PoolKind::AverageWithPadding] {
        let dtypes = if kind == PoolKind::Max { numeric() } else { FLOATS.to_vec() };
        for ceil in [false, true] {
            let pool = |x: &[u64], extents: &[u64], window| {
                let op = Pool { kind, extents: extents.to_vec(), window, ceil };
                check_all(&op.into(), &dtypes, &[x]);
            };
            pool(&[2, 3, 7], &[3], window([2], [1], [[1, 1]]));
            pool(&[1, 2, 6, 7], &[2, 3], window([2, 2], [1, 1], [[0, 1], [1, 1]]));
            pool(&[1, 2, 9, 9], &[3, 2], window([2, 4], [2, 1], [[0, 0], [0, 0]]));
            pool(&[1, 1, 4, 4, 4], &[2, 2, 2], window([2; 3], [1; 3], [[0, 0]; 3]));
            pool(&[0, 2, 6], &[2], window([2], [1], [[0, 0]]));
        }
    }
}

fn indices(shape: &[u64], values: &[i64]) -> Tensor {
    Tensor::new(shape, values.to_vec()).unwrap()
}

#[test]
fn gathers() {
    for dtype in ALL {
        let table = numbers_of(TensorType::new(dtype, [4, 3, 2]), 5);
        for axis in 0..3 {
            let index = indices(&[2, 2], &[0, -1, 1, -2]);
            check(Gather { axis }, &[table.clone(), index.clone()]);
            check(Gather { axis }, &[table.clone(), index.cast(DType::I32).unwrap()]);
            check(Gather { axis }, &[table.clone(), indices(&[], &[1])]);
            check(Gather { axis }, &[table.clone(), indices(&[0], &[])]);
            check(Gather { axis }, &[table.clone(), indices(&[1], &[4])]);
            check(Gather { axis }, &[table.clone(), indices(&[1], &[i64::MIN])]);
        }
        check(GatherNd { batch_dims: 0 }, &[table.clone(), indices(&[2, 2], &[0, 1, -1, -3])]);
        check(GatherNd { batch_dims: 0 }, &[table.clone(), indices(&[1, 3], &[3, 2, 1])]);
        check(GatherNd { batch_dims: 1 }, &[table.clone(), indices(&[4, 1], &[0, 1, 2, -1])]);
        check(GatherNd { batch_dims: 1 }, &[table.clone(), indices(&[4, 1, 1], &[0, 1, 2, -1])]);
        check(GatherNd { batch_dims: 0 }, &[table, indices(&[1, 1], &[9])]);
    }
}

#[test]
fn parts_of_a_table_give_partial_sums() {
    let table = numbers(TensorType::new(DType::F32, [7, 3]), 1);
    let index = indices(&[4], &[6, -7, 2, -1]);
    let want = Op::from(Gather { axis: 0 }).eval(&[&table, &index]).unwrap().remove(0);
    let mut sum = vec![0.0; want.len()];
    for (start, end) in [(0, 3), (3, 3), (3, 7)] {
        let part = Local {
            ty: TensorType::new(DType::F32, [end - start, 3]),
            start: vec![start, 0],
            global: vec![7, 3],
        };
        let rows = table.select([end - start, 3], |i| i + start as usize * 3).unwrap();
        let inputs = [(part, rows), (region::whole(index.ty()), index.clone())];
        let out = region::whole(want.ty());
        let got = run_on(&Kernel::Gather { axis: 0 }, &inputs, &out).unwrap();
        sum.iter_mut().zip(got.to_f64s()).for_each(|(s, x)| *s += x);
    }
    assert_eq!(sum, want.to_f64s());
}

#[test]
fn reference_evaluation() {
    let x = numbers_of(TensorType::new(DType::F32, [3, 4]), 1);
    let op: Op = Softmax { axis: 1, log: false }.into();
    let want = op.eval(&[&x]).unwrap().remove(0);
    let whole = region::whole(x.ty());
    let kernel = Kernel::Reference { op: Box::new(op) };
    assert_eq!(run_on(&kernel, &[(whole.clone(), x)], &whole).unwrap(), want);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let local = |shape: &[u64]| region::whole(&TensorType::new(DType::F32, shape));
    let x = || (local(&[2, 3]), numbers(TensorType::new(DType::F32, [2, 3]), 0));
    let out = local(&[2, 2]);
    let window = window([1, 1], [1, 1], [[0, 0], [0, 0]]);
    for (kernel, inputs) in [
        (Kernel::Map { f: ScalarFn::Relu }, vec![x()]),
        (Kernel::Map { f: ScalarFn::Add }, vec![x()]),
        (Kernel::MatMul { trans_a: false, trans_b: false }, vec![x(), x()]),
        (Kernel::Copy, vec![x()]),
        (Kernel::Transpose { perm: vec![1, 7] }, vec![x()]),
        (Kernel::Slice { starts: vec![0, 2], steps: vec![1, 1] }, vec![x()]),
        (Kernel::Concat { axis: 1 }, vec![x(), x()]),
        (Kernel::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, vec![x()]),
        (Kernel::Softmax { axis: 1, log: false }, vec![x()]),
        (Kernel::Gather { axis: 0 }, vec![x(), x()]),
        (Kernel::GatherGrad { axis: 0 }, vec![x(), x()]),
        (Kernel::GatherGrad { axis: 2 }, vec![x(), x()]),
        (Kernel::Conv { window, groups: 1 }, vec![x(), x()]),
    ] {
        let result = run_on(&kernel, &inputs, &out);
        assert!(matches!(result, Err(KernelError::Operands { .. } | KernelError::Type { .. })));
    }
}
