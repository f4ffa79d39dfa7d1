//! Layers of experts against their reference semantics.

use super::{FLOATS, assert_close, check, indices, numbers_of, run_on};
use planc_ir::ops::Op;
use planc_ir::ops::mixture_of_experts::MixtureOfExperts;
use planc_ir::ops::mixture_of_experts_grad::MixtureOfExpertsGrad;
use planc_ir::program::Local;
use planc_ir::scalar::{Gate, ScalarFn};
use planc_ir::{DType, Tensor, TensorType};
use planc_runtime::region;

const SILU: ScalarFn = ScalarFn::Gated(Gate::Silu);

fn layer(f: ScalarFn, fused: bool, trans_in: bool, trans_out: bool) -> MixtureOfExperts {
    MixtureOfExperts { experts: 4, f, fused, trans_in, trans_out }
}

/// Operands of four experts: tokens, choices of a token, width, what is between, results.
fn operands(
    op: &MixtureOfExperts,
    dtype: DType,
    choices: Tensor,
    [h, f, o]: [u64; 3],
) -> Vec<Tensor> {
    let mut rng = 0;
    let mut random = |dtype, shape: Vec<u64>| {
        rng += 1;
        // Small, so that nothing large cancels.
        let numbers = numbers_of(TensorType::new(DType::F64, shape.clone()), rng);
        Tensor::from_f64(TensorType::new(dtype, shape), |i| numbers.f64_at(i) * 0.2).unwrap()
    };
    let tokens = choices.shape()[0];
    let matrix = match (op.fused, op.trans_in) {
        (true, true) => vec![4, 2, f, h],
        (true, false) => vec![4, h, 2, f],
        (false, true) => vec![4, f, h],
        (false, false) => vec![4, h, f],
    };
    let x = random(dtype, vec![tokens, h]);
    let weights = random(DType::F32, choices.shape().to_vec());
    let mut inputs = vec![x, choices, weights, random(dtype, matrix.clone())];
    if op.is_gated() && !op.fused {
        inputs.push(random(dtype, matrix));
    }
    inputs.push(random(dtype, if op.trans_out { vec![4, o, f] } else { vec![4, f, o] }));
    inputs
}

/// Checks a layer, and its gradient with and without that of the experts.
fn check_with_gradient(op: &MixtureOfExperts, inputs: &[Tensor]) {
    check(op.clone(), inputs);
    let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
    let ty = Op::from(op.clone()).infer(&types, &[]).unwrap().remove(0);
    let numbers = numbers_of(TensorType::new(DType::F64, ty.shape.clone()), 9);
    let g = Tensor::from_f64(ty, |i| numbers.f64_at(i) * 0.2).unwrap();
    let inputs = [&[g], inputs].concat();
    for experts in [false, true] {
        check(MixtureOfExpertsGrad { layer: op.clone(), experts }, &inputs);
    }
}

#[test]
fn layers_of_all_forms() {
    let choices = || indices(&[5, 2], &[0, 3, 2, 0, -1, 1, 3, 0, 0, 2]);
    for dtype in FLOATS {
        for trans_in in [false, true] {
            for trans_out in [false, true] {
                for op in [
                    layer(SILU, true, trans_in, trans_out),
                    layer(SILU, false, trans_in, trans_out),
                    layer(ScalarFn::Gelu, false, trans_in, trans_out),
                ] {
                    for extents in [[3, 6, 4], [2, 0, 3], [0, 2, 2], [2, 3, 0]] {
                        check_with_gradient(&op, &operands(&op, dtype, choices(), extents));
                    }
                }
            }
        }
    }
}

#[test]
fn tokens_of_any_number_go_anywhere() {
    let op = layer(SILU, true, true, true);
    let to_one = indices(&[300, 1], &[2; 300]);
    let twice_to_one = indices(&[3, 2], &[1; 6]);
    for choices in [
        to_one,
        twice_to_one,
        indices(&[1, 1], &[3]),
        indices(&[0, 2], &[]),
        indices(&[3, 0], &[]),
        indices(&[1, 1], &[4]),
        indices(&[1, 1], &[-5]),
    ] {
        check_with_gradient(&op, &operands(&op, DType::F64, choices, [3, 4, 5]));
    }
}

#[test]
fn experts_elsewhere_give_partial_sums() {
    let op = layer(SILU, false, false, false);
    let inputs = operands(&op, DType::F64, indices(&[3, 2], &[0, 3, -3, 0, 2, 1]), [3, 5, 4]);
    let want = Op::from(op.clone()).eval(&inputs.iter().collect::<Vec<_>>()).unwrap().remove(0);
    let out = region::whole(want.ty());
    let mut sum = vec![0.0; want.len()];
    for (start, end) in [(0, 1), (1, 1), (1, 4)] {
        let part = |t: &Tensor| {
            let (mut shape, inner) = (t.shape().to_vec(), t.len() / 4);
            let local = Local {
                start: [&[start], &vec![0; shape.len() - 1][..]].concat(),
                global: shape.clone(),
                ty: {
                    shape[0] = end - start;
                    TensorType::new(DType::F64, shape.clone())
                },
            };
            (local, t.select(shape, |i| i + start as usize * inner).unwrap())
        };
        let whole = |t: &Tensor| (region::whole(t.ty()), t.clone());
        let parts: Vec<_> =
            inputs[..3].iter().map(whole).chain(inputs[3..].iter().map(part)).collect();
        let got = run_on(&Op::from(op.clone()).lower(), &parts, &out).unwrap();
        sum.iter_mut().zip(got.to_f64s()).for_each(|(s, x)| *s += x);
    }
    let sum = Tensor::from_f64(want.ty().clone(), |i| sum[i]).unwrap();
    assert_close(&sum, &want, "the parts' sum");
}
