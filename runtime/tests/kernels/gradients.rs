//! Kernels that differentiation needs against their reference semantics.

use super::attention::{self, causal};
use super::{FLOATS, assert_close, check, check_all, numbers_of, run_on, window};
use planc_ir::ops::Op;
use planc_ir::ops::attention::Attention;
use planc_ir::ops::attention_grad::AttentionGrad;
use planc_ir::ops::conv_transpose::ConvTranspose;
use planc_ir::ops::conv_weight_grad::ConvWeightGrad;
use planc_ir::ops::dropout::Dropout;
use planc_ir::ops::matmul_grad::MatMulGrad;
use planc_ir::ops::normalize::Normalize;
use planc_ir::ops::normalize_grad::NormalizeGrad;
use planc_ir::ops::pool::Pool;
use planc_ir::ops::pool_grad::PoolGrad;
use planc_ir::program::{Local, PoolKind};
use planc_ir::{DType, Tensor, TensorType};
use planc_runtime::region;

/// A gradient, queries, keys and values: batch, query heads, key heads, queries, keys, depth, width.
fn operands(dtype: DType, extents: [u64; 7]) -> Vec<Tensor> {
    let [b, h, _, s, _, _, e] = extents;
    let mut operands = vec![numbers_of(TensorType::new(dtype, [b, h, s, e]), 3)];
    operands.extend(attention::operands(dtype, extents));
    operands
}

#[test]
fn attentions_of_all_extents() {
    for dtype in FLOATS {
        for extents in [
            [2, 3, 3, 5, 7, 4, 6],
            [1, 6, 2, 70, 9, 3, 2],
            [2, 4, 1, 1, 8, 4, 4],
            [0, 2, 2, 3, 3, 2, 2],
            [2, 0, 0, 3, 3, 2, 2],
            [1, 2, 2, 0, 3, 2, 2],
            [1, 2, 2, 3, 0, 2, 2],
            [1, 2, 1, 3, 4, 2, 0],
            [1, 2, 1, 3, 4, 0, 2],
        ] {
            for attention in [Attention::plain(0.25), causal(-1)] {
                check(AttentionGrad { attention, mask: false }, &operands(dtype, extents));
            }
        }
        let attention = Attention { softcap: Some(0.75), ..causal(1) };
        check(AttentionGrad { attention, mask: false }, &operands(dtype, [1, 2, 2, 66, 5, 4, 4]));
    }
}

#[test]
fn masks_of_attentions() {
    for dtype in FLOATS {
        for shape in [vec![2, 4, 5, 7], vec![2, 1, 5, 7], vec![4, 1, 7], vec![5, 1], vec![]] {
            let n = shape.iter().product::<u64>() as usize;
            let sees = |i: usize| !i.is_multiple_of(3) && i >= n / 3;
            let bools = Tensor::new(shape.clone(), (0..n).map(sees).collect()).unwrap();
            let added = |i: usize| if sees(i) { 0.5 } else { f64::NEG_INFINITY };
            let floats = [dtype, DType::F32]
                .map(|dtype| TensorType::new(dtype, shape.clone()))
                .map(|ty| Tensor::from_f64(ty, added).unwrap());
            for mask in floats.iter().chain([&bools]) {
                for (hidden_score, zero_unseeing) in
                    [(-2.0, false), (f64::NEG_INFINITY, false), (f64::NEG_INFINITY, true)]
                {
                    let attention = Attention { hidden_score, zero_unseeing, ..causal(2) };
                    let mut inputs = operands(dtype, [2, 4, 2, 5, 7, 3, 2]);
                    inputs.push(mask.clone());
                    let of_mask = mask.dtype() == dtype;
                    check(AttentionGrad { attention, mask: of_mask }, &inputs);
                }
            }
        }
    }
}

#[test]
fn normalisations() {
    for (rms, axis) in [(false, 1), (false, 2), (true, 1), (true, 0)] {
        for shape in [[3, 4, 5], [0, 4, 5], [3, 0, 5]] {
            for bias in [false, true].into_iter().filter(|bias| !(*bias && rms)) {
                let norm = Normalize { axis, epsilon: 0.01, rms };
                let op = NormalizeGrad { norm, bias }.into();
                check_all(&op, &FLOATS, &[&shape, &shape, &shape[axis..]]);
            }
        }
    }
}

#[test]
fn weights_of_convolutions() {
    let grad = |g: &[u64], x: &[u64], extents: &[u64], groups, window| {
        let op = ConvWeightGrad { window, extents: extents.to_vec(), groups };
        check_all(&op.into(), &FLOATS, &[g, x]);
    };
    grad(&[2, 4, 7], &[2, 3, 7], &[3], 1, window([1], [1], [[1, 1]]));
    grad(&[2, 4, 4, 4], &[2, 3, 6, 5], &[3, 2], 1, window([1, 1], [1, 1], [[0, 0], [0, 0]]));
    grad(&[1, 2, 5, 3], &[1, 3, 9, 8], &[3, 3], 1, window([2, 3], [1, 2], [[1, 2], [3, 0]]));
    grad(&[2, 5, 4, 4], &[2, 3, 4, 4], &[1, 1], 1, window([1, 1], [1, 1], [[0, 0], [0, 0]]));
    grad(&[1, 6, 5, 5], &[1, 4, 5, 5], &[3, 3], 2, window([1, 1], [1, 1], [[1, 1], [1, 1]]));
    grad(&[2, 3, 3, 6], &[2, 3, 5, 6], &[3, 3], 3, window([2, 1], [1, 1], [[1, 1], [1, 1]]));
    grad(&[0, 2, 3], &[0, 2, 4], &[2], 1, window([1], [1], [[0, 0]]));
    // Fewer positions than the window has.
    grad(&[1, 2, 3], &[1, 2, 9], &[2], 1, window([2], [1], [[0, 0]]));
}

#[test]
fn transposed_convolutions() {
    let conv = |x: &[u64], w: &[u64], extra: &[u64], window| {
        check_all(&ConvTranspose { window, extra: extra.to_vec() }.into(), &FLOATS, &[x, w]);
    };
    conv(&[2, 2, 4], &[1, 2, 3, 3], &[0], window([2], [1], [[1, 0]]));
    conv(&[2, 4, 3, 2], &[2, 2, 3, 3, 2], &[1, 0], window([2, 3], [1, 2], [[1, 0], [0, 1]]));
    conv(&[2, 3, 4, 4], &[3, 1, 1, 3, 3], &[0, 0], window([1, 1], [1, 1], [[1, 1], [1, 1]]));
    conv(&[1, 2, 3], &[1, 2, 2, 2], &[5], window([2], [1], [[0, 1]]));
    conv(&[1, 2, 2, 3, 2], &[1, 2, 2, 2, 1, 2], &[0; 3], window([2; 3], [1; 3], [[0, 1]; 3]));
    conv(&[1, 0, 3], &[1, 0, 2, 2], &[0], window([1], [1], [[0, 0]]));
}

#[test]
fn convolutions_of_many_positions_are_computed_in_blocks() {
    let ones = |shape: &[u64]| {
        Tensor::from_f64(TensorType::new(DType::F32, shape), |i| (i % 5) as f64 - 2.0).unwrap()
    };
    // 64 · 3 rows of columns: a block holds far less than 12000 positions.
    let line = || window([1], [1], [[0, 0]]);
    let op = ConvWeightGrad { window: line(), extents: vec![3], groups: 1 };
    check(op, &[ones(&[1, 2, 12_000]), ones(&[1, 64, 12_002])]);
    let op = ConvTranspose { window: line(), extra: vec![0] };
    check(op, &[ones(&[1, 2, 12_000]), ones(&[1, 2, 64, 3])]);
}

#[test]
fn pools() {
    for kind in [PoolKind::Max, PoolKind::Average, PoolKind::AverageWithPadding] {
        for ceil in [false, true] {
            let pool = |x: &[u64], extents: &[u64], window| {
                let pool = Pool { kind, extents: extents.to_vec(), window, ceil };
                let g = Op::from(pool.clone())
                    .infer(&[TensorType::new(DType::F32, x)], &[None])
                    .unwrap()
                    .remove(0);
                let op = PoolGrad { pool, spatial: x[2..].to_vec() }.into();
                let of_max = (kind == PoolKind::Max).then_some(x);
                let shapes: Vec<&[u64]> = [&g.shape[..]].into_iter().chain(of_max).collect();
                check_all(&op, &FLOATS, &shapes);
            };
            pool(&[2, 3, 7], &[3], window([2], [1], [[1, 1]]));
            pool(&[1, 2, 6, 7], &[2, 3], window([2, 2], [1, 1], [[0, 1], [1, 1]]));
            pool(&[1, 2, 9, 9], &[3, 2], window([2, 4], [2, 1], [[0, 0], [0, 0]]));
            pool(&[1, 1, 4, 4, 4], &[2, 2, 2], window([2; 3], [1; 3], [[0, 0]; 3]));
            pool(&[0, 2, 6], &[2], window([2], [1], [[0, 0]]));
        }
    }
    // Equal elements and NaN.
    let window = window([1], [1], [[0, 0]]);
    let pool = Pool { kind: PoolKind::Max, extents: vec![3], window, ceil: false };
    let x = vec![1f32, 1.0, 0.0, f32::NAN, 2.0, f32::NAN, f32::NEG_INFINITY];
    let g = Tensor::new([1, 1, 5], vec![1f32, 2.0, 4.0, 8.0, 16.0]).unwrap();
    check(PoolGrad { pool, spatial: vec![7] }, &[g, Tensor::new([1, 1, 7], x).unwrap()]);
}

#[test]
fn parts_drop_the_elements_that_the_whole_drops() {
    let op = Op::from(Dropout { ratio: 0.5, seed: 9 });
    for step in [Tensor::scalar(3i64), Tensor::scalar(3i32), Tensor::scalar(3u32)] {
        for dtype in FLOATS {
            for shape in [vec![5, 7, 6], vec![3], vec![], vec![2, 0]] {
                check(op.clone(), &[numbers_of(TensorType::new(dtype, shape), 1), step.clone()]);
            }
        }
    }
    let (x, step) = (numbers_of(TensorType::new(DType::F32, [5, 7, 6]), 1), Tensor::scalar(3i64));
    let whole = op.eval(&[&x, &step]).unwrap().remove(0);
    for start in [[0, 0, 0], [2, 3, 1], [4, 0, 5]] {
        for shape in [[1, 2, 1], [1, 4, 0]] {
            let local = Local {
                ty: TensorType::new(DType::F32, shape),
                start: start.to_vec(),
                global: x.shape().to_vec(),
            };
            let part = |t: &Tensor| {
                let at = |i: usize| {
                    let i = i as u64;
                    let (a, b, c) =
                        (i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]);
                    (((a + start[0]) * 7 + b + start[1]) * 6 + c + start[2]) as usize
                };
                t.select(shape, at).unwrap()
            };
            let inputs = [(local.clone(), part(&x)), (region::whole(step.ty()), step.clone())];
            let got = run_on(&op.lower(), &inputs, &local).unwrap();
            assert_close(&got, &part(&whole), &format!("{shape:?} at {start:?}"));
        }
    }
}

#[test]
fn sums_of_products_of_rows() {
    for (rows, m, n) in
        [(vec![2, 3], 5, 4), (vec![7], 1, 9), (vec![0, 3], 2, 2), (vec![2, 1, 3], 4, 1)]
    {
        let shape = |last: u64| [&rows[..], &[last]].concat();
        check_all(&MatMulGrad {}.into(), &FLOATS, &[&shape(m), &shape(n)]);
    }
}
