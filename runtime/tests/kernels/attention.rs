//! Attention and rotary embedding against their reference semantics.

use super::{FLOATS, assert_close, check, check_all, numbers_of, run_on};
use planc_ir::ops::Op;
use planc_ir::ops::attention::Attention;
use planc_ir::ops::rotary_embedding::RotaryEmbedding;
use planc_ir::program::Local;
use planc_ir::{DType, Tensor, TensorType};
use planc_runtime::region;

/// Queries, keys and values: batch, query heads, key heads, queries, keys, depth, width.
pub fn operands(dtype: DType, [b, h, kv, s, t, d, e]: [u64; 7]) -> Vec<Tensor> {
    [[b, h, s, d], [b, kv, t, d], [b, kv, t, e]]
        .iter()
        .enumerate()
        .map(|(i, shape)| numbers_of(TensorType::new(dtype, *shape), i as u64))
        .collect()
}

pub fn causal(offset: i64) -> Attention {
    Attention { causal: Some(offset), ..Attention::plain(0.25) }
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
            [1, 2, 1, 3, 4, 2, 0],
        ] {
            check(Attention::plain(0.25), &operands(dtype, extents));
            check(causal(3), &operands(dtype, extents));
        }
        let bent = Attention { softcap: Some(0.75), ..Attention::plain(0.5) };
        check(bent, &operands(dtype, [1, 2, 2, 5, 5, 4, 4]));
    }
}

#[test]
fn masks_of_all_kinds() {
    let low = |dtype| match dtype {
        DType::F16 => -65504.0,
        DType::BF16 => -3.389_531_389_251_535_5e38,
        _ => f64::from(f32::MIN),
    };
    for dtype in FLOATS {
        for shape in
            [vec![2, 4, 5, 7], vec![2, 1, 5, 7], vec![4, 1, 7], vec![7], vec![5, 1], vec![]]
        {
            let n: u64 = shape.iter().product();
            let sees = |i: usize| !i.is_multiple_of(3) && i >= n as usize / 3;
            let bools = Tensor::new(shape.clone(), (0..n as usize).map(sees).collect()).unwrap();
            for hidden_score in [f64::NEG_INFINITY, low(dtype)] {
                for zero_unseeing in [false, true] {
                    for causal in [None, Some(0)] {
                        let op = Attention { causal, hidden_score, zero_unseeing, ..causal_free() };
                        let mut inputs = operands(dtype, [2, 4, 2, 5, 7, 3, 2]);
                        inputs.push(bools.clone());
                        check(op.clone(), &inputs);
                        for added in [dtype, DType::F32] {
                            let fill =
                                if hidden_score.is_finite() { low(added) } else { hidden_score };
                            let ty = TensorType::new(added, shape.clone());
                            let floats =
                                Tensor::from_f64(ty, |i| if sees(i) { 0.5 } else { fill }).unwrap();
                            inputs[3] = floats;
                            check(op.clone(), &inputs);
                        }
                    }
                }
            }
        }
    }
}

fn causal_free() -> Attention {
    Attention::plain(0.5)
}

#[test]
fn causality_counts_from_the_first_query_of_the_part() {
    let inputs = operands(DType::F32, [1, 2, 2, 7, 7, 4, 3]);
    let op = Op::from(causal(0));
    let whole = op.eval(&inputs.iter().collect::<Vec<_>>()).unwrap().remove(0);
    let rows = |t: &Tensor, start: u64, end: u64| {
        let (n, last) = (end - start, t.shape()[3]);
        let at = |i: usize| {
            let (i, per_head) = (i as u64, n * last);
            let (head, rest) = (i / per_head, i % per_head);
            (head * 7 * last + start * last + rest) as usize
        };
        let part = t.select([1, 2, n, last], at).unwrap();
        let local = Local {
            ty: part.ty().clone(),
            start: vec![0, 0, start, 0],
            global: t.shape().to_vec(),
        };
        (local, part)
    };
    for (start, end) in [(0, 3), (3, 3), (3, 7)] {
        let mut parts = vec![rows(&inputs[0], start, end)];
        parts.extend(inputs[1..].iter().map(|t| (region::whole(t.ty()), t.clone())));
        let (local, want) = rows(&whole, start, end);
        let got = run_on(&op.lower(), &parts, &local).unwrap();
        assert_close(&got, &want, &format!("queries {start}..{end}"));
    }
}

#[test]
fn rotary_embeddings() {
    for interleaved in [false, true] {
        let op = RotaryEmbedding { interleaved }.into();
        for angles in [vec![5, 6], vec![2, 1, 5, 3], vec![3], vec![1, 6]] {
            check_all(&op, &FLOATS, &[&[2, 3, 5, 6], &angles, &angles]);
        }
        check_all(&op, &FLOATS, &[&[6], &[3], &[6]]);
        check_all(&op, &FLOATS, &[&[2, 0], &[0], &[2, 0]]);
    }
}
