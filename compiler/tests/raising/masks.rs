//! Masks in the forms that exporters write.

use crate::attentions::{Keys, ODD, bools, flipped, op, operands, triangle, weights};
use crate::build::Build;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::{DType, Tensor};

#[test]
fn masks_of_bools() {
    for fill in [f64::NEG_INFINITY, f64::from(f32::MIN)] {
        for checked in [false, true] {
            for form in 0..4 {
                let mut b = Build::new();
                let [q, k, v] = operands(&mut b, ODD);
                // Random, so that some rows hide everything: the mask is one a query.
                let seen =
                    b.typed(DType::Bool, &[ODD.b, 1, ODD.s, if form == 0 { 1 } else { ODD.t }]);
                let k = flipped(&mut b, k, Keys::Swapped);
                let mut scores = b.product(q, k);
                let (zero, low) = (b.number(0.0), b.number(fill));
                scores = match form {
                    0 | 1 => {
                        let mask = b.map(F::Where, &[seen, zero, low]);
                        b.map(F::Add, &[mask, scores])
                    }
                    2 => {
                        let hidden = b.map(F::Not, &[seen]);
                        let mask = b.map(F::Where, &[hidden, low, zero]);
                        b.map(F::Add, &[scores, mask])
                    }
                    _ => b.map(F::Where, &[seen, scores, low]),
                };
                let w = weights(&mut b, scores, checked);
                let y = b.product(w, v);
                let (op, inputs) = op(&b, y);
                assert_eq!((op.hidden_score, op.zero_unseeing, inputs), (fill, checked, 4));
                assert!(b.raised(y).contains(&"Attention"));
            }
        }
    }
}

#[test]
fn masks_by_arithmetic() {
    for form in 0..3 {
        let mut b = Build::new();
        let [q, k, v] = operands(&mut b, ODD);
        let seen = b.typed(DType::Bool, &[ODD.b, 1, 1, ODD.t]);
        let flag = if form == 0 {
            let hidden = b.map(F::Not, &[seen]);
            b.map(F::Cast(DType::F64), &[hidden])
        } else {
            let flag = b.map(F::Cast(DType::F64), &[seen]);
            let one = b.number(1.0);
            b.map(F::Sub, &[one, flag])
        };
        // A finite number that is too small to absorb scores is an added mask.
        let fill = if form == 2 { -100.0 } else { f64::from(f32::MIN) };
        let mask = b.with(F::Mul, flag, fill);
        let k = flipped(&mut b, k, Keys::Swapped);
        let scores = b.product(q, k);
        let scores = b.map(F::Add, &[scores, mask]);
        let w = weights(&mut b, scores, false);
        let y = b.product(w, v);
        let (op, inputs) = op(&b, y);
        assert_eq!(inputs, 4);
        let expected = if form == 2 { f64::NEG_INFINITY } else { fill };
        assert_eq!(op.hidden_score, expected, "form {form}");
        assert!(b.raised(y).contains(&"Attention"));
    }
}

#[test]
fn causality() {
    for (offset, padded) in [(0, false), (2, false), (-1, false), (0, true)] {
        for compared in [false, true] {
            let mut b = Build::new();
            let [q, k, v] = operands(&mut b, ODD);
            let mut seen = if compared {
                let count =
                    |n: u64, first: i64| (0..n as i64).map(|i| i + first).collect::<Vec<i64>>();
                let keys = b.constant(Tensor::new([1, ODD.t], count(ODD.t, 3)).expect("small"));
                // Not known when imported, as if it were too large to fold.
                let rows = Tensor::new([ODD.s, 1], count(ODD.s, 3 + offset)).expect("small");
                let rows = b.constant(rows);
                b.map(F::LessOrEqual, &[keys, rows])
            } else {
                triangle(&mut b, ODD, offset)
            };
            if padded {
                let padding = b.typed(DType::Bool, &[ODD.b, 1, 1, ODD.t]);
                seen = b.map(F::And, &[seen, padding]);
            }
            let (zero, low) = (b.number(0.0), b.number(f64::from(f32::MIN)));
            let mask = b.map(F::Where, &[seen, zero, low]);
            let k = flipped(&mut b, k, Keys::Swapped);
            let scores = b.product(q, k);
            let scores = b.map(F::Add, &[scores, mask]);
            let w = weights(&mut b, scores, false);
            let y = b.product(w, v);
            let (op, inputs) = op(&b, y);
            assert_eq!((op.causal, inputs), (Some(offset), 3 + usize::from(padded)));
            assert_eq!(b.raised(y), ["Attention"]);
        }
    }
}

#[test]
fn a_triangle_with_a_hole_is_a_mask() {
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, ODD);
    let t = ODD.t as usize;
    let seen = bools(&mut b, &[ODD.s, ODD.t], |i| i % t <= i / t && i != 2 * t + 1);
    let (zero, low) = (b.number(0.0), b.number(f64::NEG_INFINITY));
    let mask = b.map(F::Where, &[seen, zero, low]);
    let k = flipped(&mut b, k, Keys::Swapped);
    let scores = b.product(q, k);
    let scores = b.map(F::Add, &[scores, mask]);
    let w = weights(&mut b, scores, false);
    let y = b.product(w, v);
    assert_eq!(op(&b, y).0.causal, None);
    assert!(b.raised(y).contains(&"Attention"));
}

/// The oldest form: a triangle selects scores, then a mask of floats is added; rows in which both hide
/// keys tell which is which.
#[test]
fn a_selection_and_a_sum() {
    for outer in [false, true] {
        let mut b = Build::new();
        let [q, k, v] = operands(&mut b, ODD);
        let seen = triangle(&mut b, ODD, 0);
        let given = b.typed(DType::Bool, &[ODD.b, 1, 1, ODD.t]);
        let flag = b.map(F::Cast(DType::F64), &[given]);
        let mask = b.with(F::Mul, flag, f64::from(f32::MIN));
        let low = b.number(f64::from(f32::MIN));
        let k = flipped(&mut b, k, Keys::Swapped);
        let mut scores = b.product(q, k);
        if outer {
            scores = b.map(F::Add, &[scores, mask]);
            scores = b.map(F::Where, &[seen, scores, low]);
        } else {
            scores = b.map(F::Where, &[seen, scores, low]);
            scores = b.map(F::Add, &[scores, mask]);
        }
        let w = weights(&mut b, scores, false);
        let y = b.product(w, v);
        assert!(b.raised(y).contains(&"Attention"), "outer {outer}");
    }
}

#[test]
fn equal_helpers_are_shared_between_layers() {
    let mut b = Build::new();
    let padding = b.typed(DType::Bool, &[ODD.b, 1, 1, ODD.t]);
    let (zero, low) = (b.number(0.0), b.number(f64::NEG_INFINITY));
    let mask = b.map(F::Where, &[padding, low, zero]);
    let mut last = mask;
    for _ in 0..2 {
        let [q, k, v] = operands(&mut b, ODD);
        let k = flipped(&mut b, k, Keys::Swapped);
        let scores = b.product(q, k);
        let scores = b.map(F::Add, &[scores, mask]);
        let w = weights(&mut b, scores, false);
        last = b.product(w, v);
        b.graph.outputs.push(last);
    }
    b.graph.outputs.pop();
    assert_eq!(b.raised(last), ["Map", "Attention", "Attention"]);
}
