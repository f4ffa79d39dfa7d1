//! Gradients of contractions, windows, normalisations and attention against finite differences in f64.

#![allow(clippy::unwrap_used)] // a test may

mod random;

use planc_ir::interp::evaluate;
use planc_ir::ops::attention::Attention;
use planc_ir::ops::conv::Conv;
use planc_ir::ops::conv_transpose::ConvTranspose;
use planc_ir::ops::dropout::Dropout;
use planc_ir::ops::einsum::Einsum;
use planc_ir::ops::group_norm::GroupNorm;
use planc_ir::ops::normalize::Normalize;
use planc_ir::ops::pool::Pool;
use planc_ir::ops::rotary_embedding::RotaryEmbedding;
use planc_ir::ops::{Op, Vjp};
use planc_ir::program::{PoolKind, Window};
use planc_ir::weights::InMemory;
use planc_ir::{DType, Graph, OpError, Tensor, TensorType};
use random::Random;

/// Distance of the points of a central difference.
const STEP: f64 = 1e-5;

fn numbers(random: &mut Random, shape: &[u64]) -> Tensor {
    Tensor::from_f64(TensorType::new(DType::F64, shape), |_| random.next()).unwrap()
}

/// The gradients of `Σ g · op(inputs)` that the op's rule gives, for the wanted operands.
fn gradients(
    op: &Op,
    inputs: &[Tensor],
    g: &Tensor,
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>, OpError> {
    let mut graph = Graph::new("gradient");
    let given: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| graph.input(format!("x{i}"), t.ty().clone()))
        .collect();
    let outputs = graph.push("op", op.clone(), &given, &[]).unwrap();
    let gradient = graph.input("g", g.ty().clone());
    let results = op.vjp(&mut Vjp {
        graph: &mut graph,
        name: "op",
        inputs: given.clone(),
        outputs,
        gradients: vec![Some(gradient)],
        wanted: wanted.to_vec(),
    })?;
    assert_eq!(results.len(), inputs.len(), "{op:?}");
    for (result, input) in results.iter().zip(&given) {
        if let Some(result) = result {
            assert_eq!(graph.ty(*result), graph.ty(*input), "{op:?}");
        }
    }
    graph.outputs = results.iter().copied().flatten().collect();
    let operands: Vec<Tensor> = inputs.iter().chain([g]).cloned().collect();
    let mut values = evaluate(&graph, &operands, &InMemory).unwrap().into_iter();
    Ok(results.iter().map(|r| r.and_then(|_| values.next())).collect())
}

/// `Σ g · op(inputs)` with one element of an operand moved.
fn moved(op: &Op, inputs: &[Tensor], g: &Tensor, index: usize, at: usize, by: f64) -> f64 {
    let mut inputs = inputs.to_vec();
    let shift = |i: usize| inputs[index].f64_at(i) + if i == at { by } else { 0.0 };
    inputs[index] = Tensor::from_f64(inputs[index].ty().clone(), shift).unwrap();
    let result = op.eval(&inputs.iter().collect::<Vec<_>>()).unwrap().remove(0);
    result.to_f64s().iter().zip(g.to_f64s()).map(|(y, g)| y * g).sum()
}

/// Compares the gradients of the first `count` operands with finite differences.
fn check(random: &mut Random, op: impl Into<Op>, inputs: &[Tensor], count: usize) {
    let op = op.into();
    let result = op.eval(&inputs.iter().collect::<Vec<_>>()).unwrap().remove(0);
    let g = numbers(random, result.shape());
    let wanted: Vec<bool> = (0..inputs.len()).map(|i| i < count).collect();
    let found = gradients(&op, inputs, &g, &wanted).unwrap();
    for (index, found) in found.iter().enumerate().take(count) {
        let found = found.as_ref().unwrap();
        for at in 0..found.len() {
            let ahead = moved(&op, inputs, &g, index, at, STEP);
            let behind = moved(&op, inputs, &g, index, at, -STEP);
            let (want, got) = ((ahead - behind) / (2.0 * STEP), found.f64_at(at));
            assert!(
                (want - got).abs() <= 1e-8 * want.abs().max(1.0),
                "{op:?}: d/dx{index}[{at}] is {got}, by differences {want}"
            );
        }
    }
}

fn check_all(random: &mut Random, op: impl Into<Op>, shapes: &[&[u64]]) {
    let inputs: Vec<Tensor> = shapes.iter().map(|s| numbers(random, s)).collect();
    check(random, op, &inputs, inputs.len());
}

#[test]
fn equations() {
    let mut random = Random(1);
    let mut of = |inputs: &[&str], output: &str, shapes: &[&[u64]]| {
        let inputs = inputs.iter().map(ToString::to_string).collect();
        check_all(&mut random, Einsum { inputs, output: output.to_string() }, shapes);
    };
    of(&["bij", "jk"], "kbi", &[&[2, 3, 5], &[5, 4]]);
    of(&["ij", "jk"], "ik", &[&[2, 3], &[3, 4]]);
    of(&["ab", "ac", "ad"], "bd", &[&[5, 2], &[5, 3], &[5, 4]]);
    // Diagonals, also of a letter that stands nowhere else.
    of(&["bii"], "bi", &[&[3, 4, 4]]);
    of(&["ii"], "", &[&[4, 4]]);
    of(&["iii", "i"], "i", &[&[3, 3, 3], &[3]]);
    of(&["ii"], "i", &[&[1, 4]]);
    // Broadcast extents, and letters that only one operand has.
    of(&["ij", "ij"], "i", &[&[3, 5], &[1, 5]]);
    of(&["ij", "ij"], "i", &[&[3, 1], &[3, 5]]);
    of(&["ij", "k"], "i", &[&[3, 2], &[4]]);
    of(&["ij"], "", &[&[3, 2]]);
    of(&["", "i"], "i", &[&[], &[3]]);
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
    let mut random = Random(2);
    let mut conv = |x: &[u64], w: &[u64], groups, window| {
        check_all(&mut random, Conv { window, groups }, &[x, w]);
    };
    conv(&[2, 2, 7], &[3, 2, 3], 1, window([1], [1], [[1, 1]]));
    conv(&[1, 3, 6, 5], &[2, 3, 3, 2], 1, window([2, 3], [1, 2], [[1, 2], [1, 0]]));
    conv(&[2, 4, 5, 5], &[6, 2, 3, 3], 2, window([2, 1], [1, 1], [[1, 0], [0, 1]]));
    conv(&[2, 3, 4, 4], &[3, 1, 3, 3], 3, window([1, 1], [1, 1], [[1, 1], [1, 1]]));
    conv(&[1, 2, 4, 4], &[3, 2, 1, 1], 1, window([3, 2], [1, 1], [[0, 0], [0, 0]]));
    conv(&[1, 2, 3, 2, 3], &[2, 2, 2, 2, 2], 1, window([1; 3], [1; 3], [[1, 0]; 3]));
    // Padding wider than the input.
    conv(&[1, 1, 2], &[1, 1, 3], 1, window([9], [1], [[4, 5]]));
}

#[test]
fn transposed_convolutions() {
    let mut random = Random(3);
    let mut conv = |x: &[u64], w: &[u64], extra: &[u64], window| {
        let op = ConvTranspose { window, extra: extra.to_vec() };
        check_all(&mut random, op, &[x, w]);
    };
    conv(&[2, 2, 4], &[1, 2, 3, 3], &[0], window([2], [1], [[1, 0]]));
    conv(&[2, 4, 3, 2], &[2, 2, 3, 3, 2], &[1, 0], window([2, 3], [1, 2], [[1, 0], [0, 1]]));
    // More positions behind than a stride.
    conv(&[1, 2, 3], &[1, 2, 2, 2], &[5], window([2], [1], [[0, 1]]));
}

#[test]
fn poolings() {
    let mut random = Random(4);
    for kind in [PoolKind::Max, PoolKind::Average, PoolKind::AverageWithPadding] {
        for ceil in [false, true] {
            let mut pool = |x: &[u64], extents: &[u64], window| {
                let op = Pool { kind, extents: extents.to_vec(), window, ceil };
                check_all(&mut random, op, &[x]);
            };
            pool(&[2, 3, 7], &[3], window([2], [1], [[1, 1]]));
            pool(&[1, 2, 6, 7], &[2, 3], window([2, 2], [1, 1], [[0, 1], [1, 1]]));
            pool(&[1, 2, 9, 5], &[3, 2], window([2, 4], [2, 1], [[0, 0], [0, 0]]));
        }
    }
}

#[test]
fn the_first_of_equal_maxima_gets_the_gradient() {
    let window = window([2], [1], [[0, 0]]);
    let op = Pool { kind: PoolKind::Max, extents: vec![3], window, ceil: false }.into();
    let x = Tensor::new([1, 1, 5], vec![1f64, 1.0, 0.0, f64::NAN, 2.0]).unwrap();
    let g = Tensor::new([1, 1, 2], vec![3f64, 5.0]).unwrap();
    let dx = gradients(&op, &[x], &g, &[true]).unwrap().remove(0).unwrap();
    assert_eq!(dx.to_f64s(), [3.0, 0.0, 0.0, 5.0, 0.0]);
}

#[test]
fn normalisations() {
    let mut random = Random(5);
    for (rms, axis) in [(false, 1), (false, 2), (true, 1), (true, 0)] {
        let shape = [2, 3, 4];
        let norm = Normalize { axis, epsilon: 0.01, rms };
        check_all(&mut random, norm.clone(), &[&shape, &shape[axis..]]);
        if !rms {
            check_all(&mut random, norm, &[&shape, &shape[axis..], &shape[axis..]]);
        }
    }
    for channels in [1, 2, 4] {
        let norm = GroupNorm { channels, epsilon: 0.01 };
        check_all(&mut random, norm, &[&[2, 4, 3, 2], &[4], &[4]]);
    }
}

#[test]
fn rotations() {
    let mut random = Random(6);
    for interleaved in [false, true] {
        for angles in [vec![5, 6], vec![2, 1, 5, 3]] {
            let inputs: Vec<Tensor> = [vec![2, 3, 5, 6], angles.clone(), angles]
                .iter()
                .map(|s| numbers(&mut random, s))
                .collect();
            check(&mut random, RotaryEmbedding { interleaved }, &inputs, 1);
        }
    }
}

/// Queries, keys and values, then a mask if there is one.
fn operands(random: &mut Random, heads: u64, kv_heads: u64, mask: Option<Tensor>) -> Vec<Tensor> {
    [[2, heads, 3, 3], [2, kv_heads, 5, 3], [2, kv_heads, 5, 2]]
        .iter()
        .map(|s| numbers(random, s))
        .chain(mask)
        .collect()
}

#[test]
fn attentions() {
    let mut random = Random(7);
    let plain = Attention::plain(0.5);
    let causal = Attention { causal: Some(1), ..plain.clone() };
    let capped = Attention { softcap: Some(0.5), ..causal.clone() };
    for (op, heads, kv_heads) in [(&plain, 2, 2), (&causal, 4, 2), (&capped, 3, 1)] {
        let inputs = operands(&mut random, heads, kv_heads, None);
        check(&mut random, op.clone(), &inputs, 3);
        for shape in [vec![2, 1, 3, 5], vec![heads, 1, 5], vec![5], vec![]] {
            let mask = numbers(&mut random, &shape);
            let inputs = operands(&mut random, heads, kv_heads, Some(mask));
            check(&mut random, op.clone(), &inputs, 3);
            check(&mut random, op.clone(), &inputs, 4);
        }
    }
}

#[test]
fn hidden_keys_get_no_gradient() {
    let mut random = Random(8);
    // The first query sees nothing.
    let seen: Vec<bool> = (0..15).map(|i| i % 3 > 0 && i > 4).collect();
    let bools = Tensor::new([3, 5], seen.clone()).unwrap();
    let added: Vec<f64> = seen.iter().map(|s| if *s { 0.5 } else { f64::NEG_INFINITY }).collect();
    let floats = Tensor::new([3, 5], added).unwrap();
    for mask in [bools, floats] {
        for (hidden_score, zero_unseeing) in [(-2.0, false), (f64::NEG_INFINITY, true)] {
            if mask.dtype() != DType::Bool && !zero_unseeing {
                continue; // its first query would be NaN
            }
            let op = Attention { hidden_score, zero_unseeing, ..Attention::plain(0.5) };
            let inputs = operands(&mut random, 4, 2, Some(mask.clone()));
            check(&mut random, op, &inputs, 3);
        }
    }
}

#[test]
fn dropout_drops_the_same_elements_of_the_gradient() {
    let mut random = Random(10);
    let x = numbers(&mut random, &[4, 5]);
    for step in [0i64, 1, -3] {
        let inputs = [x.clone(), Tensor::scalar(step)];
        check(&mut random, Dropout { ratio: 0.5, seed: 4 }, &inputs, 1);
    }
}
