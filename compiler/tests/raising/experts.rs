//! Layers of experts in the forms that exporters write.

use crate::build::Build;
use planc_ir::graph::ValueId;
use planc_ir::ops::cumsum::CumSum;
use planc_ir::ops::einsum::Einsum;
use planc_ir::ops::gather::Gather;
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::scatter::Update;
use planc_ir::ops::scatter_elements::ScatterElements;
use planc_ir::ops::top_k::TopK;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::sharding::ReduceKind;
use planc_ir::{DType, Tensor, TensorType};

const TOKENS: u64 = 3;
const EXPERTS: u64 = 5;
const WIDTH: u64 = 4;
const INNER: u64 = 6;
const CHOICES: u64 = 2;

/// The router's choices and their weights; `favourite` has the largest score for all tokens.
fn router(b: &mut Build, tokens: u64, favourite: Option<u64>) -> (ValueId, ValueId) {
    let mut scores = b.input(&[tokens, EXPERTS]);
    if let Some(favourite) = favourite {
        let bias = |i| if i as u64 == favourite { 100.0 } else { 0.0 };
        let bias = Tensor::from_f64(TensorType::new(b.dtype, [EXPERTS]), bias).expect("a bias");
        let bias = b.constant(bias);
        scores = b.map(F::Add, &[scores, bias]);
    }
    let scores = b.softmax(scores);
    let top = TopK { axis: 1, k: CHOICES, largest: true };
    let chosen = b.graph.push("top", top.into(), &[scores], &["weights", "indices"]);
    let chosen = chosen.expect("it fits");
    (chosen[1], chosen[0])
}

fn sum(b: &mut Build, x: ValueId, axis: usize) -> ValueId {
    b.push(Reduce { kind: ReduceKind::Sum, axes: vec![axis], keep: false }, &[x])
}

/// `gate · silu · up` of the halves of the last dimension.
fn gated(b: &mut Build, both: ValueId) -> ValueId {
    let gate = b.cut(both, 0, 1, INNER);
    let up = b.cut(both, INNER as i64, 1, INNER);
    let sigmoid = b.map(F::Sigmoid, &[gate]);
    let active = b.map(F::Mul, &[gate, sigmoid]);
    b.map(F::Mul, &[active, up])
}

/// Matrices gathered for each choice.
fn batched(b: &mut Build, indices: ValueId, weights: ValueId, tokens: u64) -> ValueId {
    let rows = tokens * CHOICES;
    let x = b.input(&[tokens, WIDTH]);
    let first = b.input(&[EXPERTS, 2 * INNER, WIDTH]);
    let second = b.input(&[EXPERTS, WIDTH, INNER]);
    let x = b.reshape(x, &[tokens, 1, WIDTH]);
    let x = b.expand(x, &[tokens, CHOICES, WIDTH]);
    let x = b.reshape(x, &[rows, WIDTH, 1]);
    let indices = b.reshape(indices, &[rows]);
    let first = b.push(Gather { axis: 0 }, &[first, indices]);
    let second = b.push(Gather { axis: 0 }, &[second, indices]);
    let both = b.product(first, x);
    let both = b.reshape(both, &[rows, 2 * INNER]);
    let hidden = gated(b, both);
    let hidden = b.reshape(hidden, &[rows, INNER, 1]);
    let y = b.product(second, hidden);
    let y = b.reshape(y, &[rows, WIDTH]);
    let weights = b.reshape(weights, &[rows, 1]);
    let y = b.map(F::Mul, &[y, weights]);
    let y = b.reshape(y, &[tokens, CHOICES, WIDTH]);
    sum(b, y, 1)
}

#[test]
fn gathered_matrices() {
    for tokens in [1, TOKENS, 9] {
        for favourite in [None, Some(3)] {
            let mut b = Build::new();
            let (indices, weights) = router(&mut b, tokens, favourite);
            let y = batched(&mut b, indices, weights, tokens);
            let ops = b.raised(y);
            assert!(ops.contains(&"MixtureOfExperts") && !ops.contains(&"Gather"), "{ops:?}");
        }
    }
}

#[test]
fn gathered_matrices_read_elsewhere_too_stay() {
    let mut b = Build::new();
    let (indices, weights) = router(&mut b, TOKENS, None);
    let y = batched(&mut b, indices, weights, TOKENS);
    let gathered = b.graph.nodes.iter().find(|n| n.op.name() == "Gather").expect("one").outputs[0];
    b.graph.outputs.extend([gathered, y]);
    assert!(!b.raised_with_outputs(1).contains(&"MixtureOfExperts"));
}

/// All tokens through all experts; the weights of the others are 0.
fn dense(b: &mut Build, indices: ValueId, weights: ValueId, fill: f64) -> ValueId {
    let x = b.input(&[TOKENS, WIDTH]);
    let first = b.input(&[EXPERTS, WIDTH, 2 * INNER]);
    let second = b.input(&[EXPERTS, INNER, WIDTH]);
    let none = TensorType::new(b.dtype, [TOKENS, EXPERTS]);
    let none = b.constant(Tensor::from_f64(none, |_| fill).expect("zeros"));
    let scatter = ScatterElements { axis: 1, update: Update::Set };
    let weights = b.push(scatter, &[none, indices, weights]);
    let weights = b.transpose(weights, &[1, 0]);
    let weights = b.reshape(weights, &[EXPERTS, TOKENS, 1]);
    let x = b.reshape(x, &[1, TOKENS, WIDTH]);
    let both = b.product(x, first);
    let hidden = gated(b, both);
    let y = b.product(hidden, second);
    let y = b.map(F::Mul, &[y, weights]);
    sum(b, y, 0)
}

#[test]
fn all_tokens_through_all_experts() {
    for favourite in [None, Some(0)] {
        let mut b = Build::new();
        let (indices, weights) = router(&mut b, TOKENS, favourite);
        let y = dense(&mut b, indices, weights, 0.0);
        let ops = b.raised(y);
        assert!(ops.contains(&"MixtureOfExperts") && !ops.contains(&"MatMul"), "{ops:?}");
    }
}

#[test]
fn weights_that_are_not_zero_elsewhere_or_may_be_written_twice_stay() {
    let mut b = Build::new();
    let (indices, weights) = router(&mut b, TOKENS, None);
    let y = dense(&mut b, indices, weights, 0.5);
    assert!(!b.raised(y).contains(&"MixtureOfExperts"));

    let mut b = Build::new();
    let weights = b.input(&[TOKENS, CHOICES]);
    let twice = Tensor::new([TOKENS, CHOICES], vec![1i64, 1, 2, 0, 4, 4]).expect("indices");
    let twice = b.constant(twice);
    let y = dense(&mut b, twice, weights, 0.0);
    assert!(!b.raised(y).contains(&"MixtureOfExperts"));
}

/// One-hot dispatch to `places` of each expert.
fn dispatched(b: &mut Build, places: u64, first_place: i64) -> ValueId {
    let (indices, weights) = router(b, TOKENS, Some(2));
    let x = b.input(&[TOKENS, WIDTH]);
    let first = b.input(&[EXPERTS, 2 * INNER, WIDTH]);
    let second = b.input(&[EXPERTS, WIDTH, INNER]);
    let dtype = b.dtype;
    let numbers = |b: &mut Build, ty: TensorType, first: i64| {
        let numbers = Tensor::from_int(ty, |i| i as i128 + i128::from(first)).expect("numbers");
        b.constant(numbers)
    };
    let experts = numbers(b, TensorType::new(DType::I64, [EXPERTS]), 0);
    let indices = b.reshape(indices, &[TOKENS, CHOICES, 1]);
    let hot = b.map(F::Equal, &[indices, experts]);
    let hot = b.map(F::Cast(dtype), &[hot]);
    let mask = sum(b, hot, 1);
    let count = b.push(CumSum { axis: 0, exclusive: false, reverse: false }, &[mask]);
    let place = b.with(F::Sub, count, 1.0);
    let place = b.map(F::Mul, &[place, mask]);
    let place = b.reshape(place, &[TOKENS, EXPERTS, 1]);
    let all = numbers(b, TensorType::new(dtype, [places]), first_place);
    let at = b.map(F::Equal, &[place, all]);
    let at = b.map(F::Cast(dtype), &[at]);
    let mask = b.reshape(mask, &[TOKENS, EXPERTS, 1]);
    let dispatch = b.map(F::Mul, &[at, mask]);
    let weights = b.reshape(weights, &[TOKENS, CHOICES, 1]);
    let weights = b.map(F::Mul, &[hot, weights]);
    let weights = sum(b, weights, 1);
    let weights = b.reshape(weights, &[TOKENS, EXPERTS, 1]);
    let combine = b.map(F::Mul, &[dispatch, weights]);
    let einsum = |inputs: [&str; 2], output: &str| Einsum {
        inputs: inputs.map(String::from).to_vec(),
        output: output.into(),
    };
    let sent = b.push(einsum(["abc", "ad"], "bcd"), &[dispatch, x]);
    let first = b.transpose(first, &[0, 2, 1]);
    let both = b.product(sent, first);
    let hidden = gated(b, both);
    let second = b.transpose(second, &[0, 2, 1]);
    let y = b.product(hidden, second);
    b.push(einsum(["sec", "ech"], "sh"), &[combine, y])
}

#[test]
fn one_hot_dispatch_is_raised_only_if_no_token_is_dropped() {
    for (places, first_place, raised) in
        [(TOKENS, 0, true), (TOKENS + 2, 0, true), (TOKENS - 1, 0, false), (TOKENS, 1, false)]
    {
        let mut b = Build::new();
        let y = dispatched(&mut b, places, first_place);
        let ops = b.raised(y);
        assert_eq!(ops.contains(&"MixtureOfExperts"), raised, "{places} {first_place}: {ops:?}");
        assert_eq!(ops.contains(&"Einsum"), !raised, "{places} {first_place}: {ops:?}");
    }
}
