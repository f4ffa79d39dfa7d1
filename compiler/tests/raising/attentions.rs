//! Attention in the forms that exporters write.

use crate::build::Build;
use planc::rewrite::raise;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::attention::Attention;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::{DType, Tensor, TensorType};

/// Extents: batch, query heads, key heads, queries, keys, depth, width.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    pub b: u64,
    pub h: u64,
    pub kv: u64,
    pub s: u64,
    pub t: u64,
    pub d: u64,
    pub e: u64,
}

pub const ODD: Extents = Extents { b: 2, h: 3, kv: 3, s: 5, t: 7, d: 4, e: 6 };

/// How the keys come to be `[b, h, d, t]`.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    Swapped,
    WithHeads,
    InThreeDimensions,
}

pub fn operands(b: &mut Build, x: Extents) -> [ValueId; 3] {
    [
        b.input(&[x.b, x.h, x.s, x.d]),
        b.input(&[x.b, x.kv, x.t, x.d]),
        b.input(&[x.b, x.kv, x.t, x.e]),
    ]
}

pub fn repeated(b: &mut Build, v: ValueId, group: u64) -> ValueId {
    let [n, kv, t, d] = b.shape(v)[..] else { panic!("four dimensions") };
    let v = b.reshape(v, &[n, kv, 1, t, d]);
    let v = b.expand(v, &[n, kv, group, t, d]);
    b.reshape(v, &[n, kv * group, t, d])
}

pub fn flipped(b: &mut Build, k: ValueId, how: Keys) -> ValueId {
    let [n, h, t, d] = b.shape(k)[..] else { panic!("four dimensions") };
    match how {
        Keys::Swapped | Keys::WithHeads => b.transpose(k, &[0, 1, 3, 2]),
        Keys::InThreeDimensions => {
            let k = b.reshape(k, &[n * h, t, d]);
            let k = b.transpose(k, &[0, 2, 1]);
            b.reshape(k, &[n, h, d, t])
        }
    }
}

/// The weights of `scores`, NaN replaced by 0 as some exporters write it.
pub fn weights(b: &mut Build, scores: ValueId, checked: bool) -> ValueId {
    let weights = b.softmax(scores);
    if !checked {
        return weights;
    }
    let nan = b.map(F::IsNaN, &[weights]);
    let zero = b.number(0.0);
    b.map(F::Where, &[nan, zero, weights])
}

pub fn bools(b: &mut Build, shape: &[u64], f: impl Fn(usize) -> bool) -> ValueId {
    let n: u64 = shape.iter().product();
    b.constant(Tensor::new(shape, (0..n as usize).map(f).collect::<Vec<bool>>()).expect("small"))
}

/// The lower triangle, row `i` holding at `0 ..= i + offset`.
pub fn triangle(b: &mut Build, x: Extents, offset: i64) -> ValueId {
    let t = x.t as usize;
    bools(b, &[1, 1, x.s, x.t], |i| (i % t) as i64 <= (i / t) as i64 + offset)
}

/// The attention of the raised graph.
pub fn op(b: &Build, output: ValueId) -> (Attention, usize) {
    let mut graph = b.graph.clone();
    graph.outputs.push(output);
    let raised = raise(&graph).graph;
    let found: Vec<_> = raised
        .nodes
        .iter()
        .filter_map(|n| match &n.op {
            Op::Attention(a) => Some((a.clone(), n.inputs.len())),
            _ => None,
        })
        .collect();
    assert_eq!(found.len(), 1, "one attention");
    found[0].clone()
}

#[test]
fn one_query_at_a_time() {
    let x = Extents { s: 1, ..ODD };
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, x);
    let k = flipped(&mut b, k, Keys::InThreeDimensions);
    let scores = b.product(q, k);
    let w = weights(&mut b, scores, true);
    let y = b.product(w, v);
    assert_eq!(b.raised(y), ["Attention"]);
}

/// Batch and heads as one dimension.
fn merged(b: &mut Build, v: ValueId) -> ValueId {
    let [n, h, s, d] = b.shape(v)[..] else { panic!("four dimensions") };
    b.reshape(v, &[n * h, s, d])
}

#[test]
fn keys_by_queries() {
    let x = ODD;
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, x);
    let (q, k, v) = (merged(&mut b, q), merged(&mut b, k), merged(&mut b, v));
    let q = b.transpose(q, &[0, 2, 1]);
    let scores = b.product(k, q);
    let scores = b.reshape(scores, &[x.b, x.h, x.t, x.s]);
    let w = b.push(planc_ir::ops::softmax::Softmax { axis: 2, log: false }, &[scores]);
    let w = b.reshape(w, &[x.b, x.h, 1, x.t, x.s]);
    let w = b.transpose(w, &[0, 1, 4, 2, 3]);
    let w = b.reshape(w, &[x.b * x.h, x.s, x.t]);
    let y = b.product(w, v);
    assert_eq!(b.raised(y), ["Attention", "Reshape"]);
}

#[test]
fn scales_wherever_they_stand_and_keys_however_they_are_turned() {
    for how in [Keys::Swapped, Keys::WithHeads, Keys::InThreeDimensions] {
        for place in 0..4 {
            let mut b = Build::new();
            let [mut q, mut k, v] = operands(&mut b, ODD);
            if let Keys::WithHeads = how {
                k = b.input(&[ODD.b, ODD.t, ODD.h, ODD.d]);
            }
            if place == 0 {
                q = b.with(F::Mul, q, 0.5);
            }
            let mut flat = match how {
                Keys::WithHeads => b.transpose(k, &[0, 2, 3, 1]),
                how => flipped(&mut b, k, how),
            };
            if place == 1 {
                q = b.with(F::Mul, q, 0.25f64.sqrt());
                flat = b.with(F::Mul, flat, 1.0);
            }
            let mut scores = b.product(q, flat);
            if place == 2 {
                scores = b.with(F::Div, scores, 2.0);
            }
            let w = weights(&mut b, scores, false);
            let y = b.product(w, v);
            let expected = if place == 3 { 1.0 } else { 0.5 };
            assert_eq!(op(&b, y), (Attention::plain(expected), 3), "{how:?} {place}");
            let nodes = b.raised(y);
            let alone: &[&str] = if let Keys::WithHeads = how {
                &["Transpose", "Attention"]
            } else {
                &["Attention"]
            };
            assert_eq!(nodes, alone, "{how:?} {place}");
        }
    }
}

#[test]
fn grouped_queries() {
    for (h, kv) in [(6, 2), (4, 1), (4, 4)] {
        let x = Extents { h, kv, ..ODD };
        let mut b = Build::new();
        let [q, k, v] = operands(&mut b, x);
        let (k, v) = (repeated(&mut b, k, h / kv), repeated(&mut b, v, h / kv));
        let k = flipped(&mut b, k, Keys::InThreeDimensions);
        let scores = b.product(q, k);
        let w = weights(&mut b, scores, true);
        let y = b.product(w, v);
        assert_eq!(b.raised(y), ["Attention"]);
    }
}

#[test]
fn a_bias_and_a_bound() {
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, ODD);
    let bias = b.input(&[1, ODD.h, ODD.s, ODD.t]);
    let k = flipped(&mut b, k, Keys::Swapped);
    let scores = b.product(q, k);
    let small = b.with(F::Mul, scores, 0.125);
    let bent = b.map(F::Tanh, &[small]);
    let scores = b.with(F::Mul, bent, 2.0);
    let scores = b.map(F::Add, &[scores, bias]);
    let w = weights(&mut b, scores, false);
    let y = b.product(w, v);
    assert_eq!(op(&b, y), (Attention { softcap: Some(2.0), ..Attention::plain(0.25) }, 4));
    assert_eq!(b.raised(y), ["Attention"]);
}

#[test]
fn heads_merged_with_the_batch() {
    let x = ODD;
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, x);
    let (q, k, v) = (merged(&mut b, q), merged(&mut b, k), merged(&mut b, v));
    let k = b.transpose(k, &[0, 2, 1]);
    let scores = b.product(q, k);
    let scores = b.reshape(scores, &[x.b, x.h, x.s, x.t]);
    let mask = b.input(&[x.b, 1, x.s, x.t]);
    let scores = b.map(F::Add, &[scores, mask]);
    let w = weights(&mut b, scores, false);
    let w = b.reshape(w, &[x.b * x.h, x.s, x.t]);
    let y = b.product(w, v);
    assert_eq!(b.raised(y), ["Attention", "Reshape"]);
    // Without heads at all.
    let mut b = Build::new();
    let (q, k, v) = (b.input(&[2, 5, 4]), b.input(&[2, 7, 4]), b.input(&[2, 7, 3]));
    let k = b.transpose(k, &[0, 2, 1]);
    let scores = b.product(q, k);
    let w = weights(&mut b, scores, false);
    let y = b.product(w, v);
    assert!(b.raised(y).contains(&"Attention"));
}

#[test]
fn an_attention_that_came_as_one_op_is_refined() {
    let x = Extents { h: 6, kv: 2, ..ODD };
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, x);
    let (k, v) = (repeated(&mut b, k, 3), repeated(&mut b, v, 3));
    let padding = b.typed(DType::Bool, &[x.b, 1, 1, x.t]);
    let seen = triangle(&mut b, x, 2);
    let mask = b.map(F::And, &[seen, padding]);
    let y = b.push(Attention { zero_unseeing: true, ..Attention::plain(0.5) }, &[q, k, v, mask]);
    let (found, inputs) = op(&b, y);
    assert_eq!((found.causal, inputs), (Some(2), 4));
    assert_eq!(b.raised(y), ["Attention"]);
}

#[test]
fn what_is_read_elsewhere_or_is_something_else_stays() {
    // The weights are an output.
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, ODD);
    let k = flipped(&mut b, k, Keys::Swapped);
    let scores = b.product(q, k);
    let w = weights(&mut b, scores, false);
    let y = b.product(w, v);
    b.graph.outputs.push(w);
    assert!(!b.raised(y).contains(&"Attention"));
    // A factor of the masked scores.
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, ODD);
    let mask = b.input(&[ODD.s, ODD.t]);
    let k = flipped(&mut b, k, Keys::Swapped);
    let scores = b.product(q, k);
    let scores = b.map(F::Add, &[scores, mask]);
    let scores = b.with(F::Mul, scores, 0.5);
    let w = weights(&mut b, scores, false);
    let y = b.product(w, v);
    assert!(!b.raised(y).contains(&"Attention"));
    // A softmax over queries.
    let mut b = Build::new();
    let [q, k, v] = operands(&mut b, ODD);
    let k = flipped(&mut b, k, Keys::Swapped);
    let scores = b.product(q, k);
    let w = b.push(planc_ir::ops::softmax::Softmax { axis: 2, log: false }, &[scores]);
    let y = b.product(w, v);
    assert!(!b.raised(y).contains(&"Attention"));
    // Routing: a softmax of a product, but no product behind it.
    let mut b = Build::new();
    let (x, w) = (b.input(&[4, 6]), b.input(&[6, 3]));
    let logits = b.product(x, w);
    let y = b.softmax(logits);
    assert_eq!(b.raised(y), ["MatMul", "Softmax"]);
}

#[test]
fn half_precision() {
    for dtype in [DType::F16, DType::BF16] {
        let mut b = Build { dtype, ..Build::new() };
        let [q, k, v] = operands(&mut b, ODD);
        let seen = triangle(&mut b, ODD, 0);
        let low = if dtype == DType::F16 { -65504.0 } else { -3.389_531_389_251_535_5e38 };
        let (zero, low) = (b.number(0.0), b.number(low));
        let mask = b.map(F::Where, &[seen, zero, low]);
        let k = flipped(&mut b, k, Keys::Swapped);
        let scores = b.product(q, k);
        let scores = b.with(F::Mul, scores, 0.5);
        let scores = b.map(F::Add, &[scores, mask]);
        let wide = b.map(F::Cast(DType::F32), &[scores]);
        let w = b.softmax(wide);
        let w = b.map(F::Cast(dtype), &[w]);
        let y = b.product(w, v);
        assert_eq!(op(&b, y).0.causal, Some(0));
        assert_eq!(b.raised(y), ["Attention"]);
    }
}

#[test]
fn types_that_do_not_fit_are_left_alone() {
    // Queries are broadcast over the batch: the op has no such form.
    let mut b = Build::new();
    let q = b.input(&[1, 3, 5, 4]);
    let (k, v) = (b.input(&[2, 3, 4, 7]), b.input(&[2, 3, 7, 6]));
    let scores = b.product(q, k);
    let w = weights(&mut b, scores, false);
    let y = b.product(w, v);
    assert_eq!(b.graph.ty(y), &TensorType::new(DType::F64, [2, 3, 5, 6]));
    assert!(!b.raised(y).contains(&"Attention"));
}
