//! The tokens of one expert after the other picked out by a mask, and their results added to a sum.
//!
//! How many tokens an expert gets is only known at run time, so most of the nodes are deferred: they are
//! matched as the operators that the file names.

use super::super::super::pattern::Walk;
use super::super::super::rewriter::Rewriter;
use super::super::Raise;
use super::at_run_time::{deferred, gated, int_attribute, uncast};
use super::{
    Between, Layer, Matrices, Projection, chosen, distinct_choices, is_zero, source, unconverted,
    unrounded,
};
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::concat::Concat;
use planc_ir::ops::decode::Attribute;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::{DType, Tensor};

/// Experts that a layer may have to be looked at.
const MAX_EXPERTS: usize = 1024;

/// For each expert: where the router's choices, one-hot, name it, a NonZero; the tokens there, through both
/// layers of the expert, times the weights there, scattered to the tokens' rows of zeros; the sum of all.
///
/// Sound because a token names an expert at most once, so that no row of a scatter is written twice.
pub fn masked(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    let (mut layer, experts) = find(rewriter, root)?;
    let mut stacked = |of: fn(&Expert) -> ValueId| {
        let matrices: Option<Vec<ValueId>> = experts
            .iter()
            .map(|expert| {
                let matrix = of(expert);
                let shape = [&[1], rewriter.shape(matrix)].concat();
                rewriter.reshape(root, matrix, &shape)
            })
            .collect();
        rewriter.push(root, Concat { axis: 0 }, &matrices?)
    };
    let (gate, up, down) = (stacked(|e| e.gate)?, stacked(|e| e.up)?, stacked(|e| e.down)?);
    let matrices = |value| Matrices { value, transposed: false };
    layer.between.projections =
        [gate, up].map(|value| Projection { of: layer.x, matrices: matrices(value) }).to_vec();
    layer.down = matrices(down);
    layer.raise(rewriter, root)
}

/// One expert: what it works on, and its matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Expert {
    number: usize,
    f: F,
    x: ValueId,
    one_hot: ValueId,
    weights: ValueId,
    gate: ValueId,
    up: ValueId,
    down: ValueId,
}

/// The layer, its matrices still to be stacked, and the experts in order.
fn find(rewriter: &Rewriter, root: ValueId) -> Option<(Layer, Vec<Expert>)> {
    let mut walk = Walk::new(rewriter);
    let (mut parts, mut sum) = (Vec::new(), root);
    while let Some((part, rest)) = walk.attempt(|w| {
        let [a, b] = w.binary(sum, F::Add)?;
        [(b, a), (a, b)]
            .into_iter()
            .find_map(|(part, rest)| Some((deferred(w, part, "ScatterElements")?, rest)))
    }) {
        parts.push(part);
        sum = rest;
        if parts.len() > MAX_EXPERTS {
            return None;
        }
    }
    if parts.is_empty() || !is_zero(rewriter, sum) {
        return None;
    }
    let experts: Option<Vec<Expert>> = parts
        .into_iter()
        .map(|(scatter, inputs)| {
            let &[into, rows, values] = inputs else { return None };
            let sets = int_attribute(scatter, "axis", 0) == 0
                && !scatter.attributes.contains_key("reduction")
                && is_zero(rewriter, into);
            let expert = expert(rewriter, &mut walk, rows, values)?;
            sets.then_some(expert)
        })
        .collect();
    let mut experts = experts?;
    experts.sort_by_key(|e| e.number);
    let first = *experts.first()?;
    let alike = |(i, e): (usize, &Expert)| {
        e.number == i
            && (e.f, e.x, e.one_hot, e.weights) == (first.f, first.x, first.one_hot, first.weights)
    };
    let &[_, choices, columns] = rewriter.shape(first.one_hot) else { return None };
    if !experts.iter().enumerate().all(alike) || experts.len() as u64 != columns {
        return None;
    }
    let one_hot = unconverted(rewriter, &mut walk, first.one_hot);
    let indices = chosen(rewriter, &mut walk, one_hot, columns)?;
    let (indices, k) = distinct_choices(rewriter, indices, columns)?;
    if k != choices {
        return None;
    }
    let unset = Matrices { value: first.down, transposed: false };
    let layer = Layer {
        x: first.x,
        indices,
        weights: first.weights,
        choices,
        between: Between { f: first.f, fused: false, projections: Vec::new() },
        down: unset,
        interior: walk.close(root)?,
    };
    Some((layer, experts))
}

/// An expert's contribution, `values` scattered to `rows`.
fn expert(
    rewriter: &Rewriter,
    walk: &mut Walk<'_>,
    rows: ValueId,
    values: ValueId,
) -> Option<Expert> {
    // The rows' numbers stand in all columns.
    let (_, &[token_column, shape]) = deferred(walk, rows, "Expand")? else { return None };
    let (_, &[of]) = deferred(walk, shape, "Shape")? else { return None };
    let (_, &[token, axis]) = deferred(walk, token_column, "Unsqueeze")? else { return None };
    if of != values || ints(rewriter, axis)? != [1] {
        return None;
    }
    let (product, shape) = match deferred(walk, values, "Expand") {
        Some((_, &[product, shape])) => (product, Some(ints(rewriter, shape)?)),
        _ => (values, None),
    };
    let product = uncast(walk, product);
    let (_, &[y, weights]) = deferred(walk, product, "Mul")? else { return None };
    let y = uncast(walk, y);
    let (between, down) = product_with(rewriter, walk, y)?;
    let result = i64::try_from(*rewriter.shape(down).last()?).ok()?;
    if shape.is_some_and(|shape| shape != [1, result]) {
        return None;
    }
    let (f, gate, up) = gated(walk, between)?;
    let ((of_gate, gate), (of_up, up)) =
        (product_with(rewriter, walk, gate)?, product_with(rewriter, walk, up)?);
    let x = rows_of(rewriter, walk, of_gate, token).filter(|_| of_gate == of_up)?;
    let (weights, choice) = weights_of(rewriter, walk, weights, token)?;
    let (number, one_hot) = hits(rewriter, walk, choice, token)?;
    Some(Expert { number, f, x, one_hot, weights, gate, up, down })
}

/// The integers of a constant.
fn ints(rewriter: &Rewriter, v: ValueId) -> Option<Vec<i64>> {
    rewriter.graph.constant_of(v).map(Tensor::to_i64s)
}

/// A product of rows with one matrix.
fn product_with(
    rewriter: &Rewriter,
    walk: &mut Walk<'_>,
    v: ValueId,
) -> Option<(ValueId, ValueId)> {
    let (_, &[rows, matrix]) = deferred(walk, v, "MatMul")? else { return None };
    let is_matrix = rewriter.is_static(matrix) && rewriter.shape(matrix).len() == 2;
    is_matrix.then_some((rows, matrix))
}

/// The tokens of which rows are taken by these numbers: the elements of a value, `[tokens, h]`.
fn rows_of(
    rewriter: &Rewriter,
    walk: &mut Walk<'_>,
    v: ValueId,
    token: ValueId,
) -> Option<ValueId> {
    let (_, &[taken, shape]) = deferred(walk, v, "Reshape")? else { return None };
    let (gather, &[x, by]) = deferred(walk, taken, "Gather")? else { return None };
    let &[1, _, width] = rewriter.shape(x) else { return None };
    let rows = ints(rewriter, shape)? == [-1, i64::try_from(width).ok()?];
    let fits = rows && width > 0 && by == token && int_attribute(gather, "axis", 0) == 1;
    fits.then(|| source(rewriter, x))
}

/// The weights, `[tokens, choices]`, of which a column takes one a row, and by which of each token's choices:
/// `weights.flatten()[token · choices + choice]`.
fn weights_of(
    rewriter: &Rewriter,
    walk: &mut Walk<'_>,
    mut v: ValueId,
    token: ValueId,
) -> Option<(ValueId, ValueId)> {
    let mut shapes = Vec::new();
    while let Some((_, &[x, shape])) = deferred(walk, v, "Reshape") {
        shapes.push(shape);
        v = x;
    }
    let (gather, &[flat, index]) = deferred(walk, v, "Gather")? else { return None };
    let weights = unrounded(rewriter, flat);
    let &[_, choices] = rewriter.shape(weights) else { return None };
    let column = |walk: &mut Walk<'_>, shape: ValueId| {
        if let Some(known) = ints(rewriter, shape) {
            return known == [-1, 1];
        }
        let of_index = walk.attempt(|w| {
            let (_, &[rows, one]) = deferred(w, shape, "Concat")? else { return None };
            let (_, &[of]) = deferred(w, rows, "Shape")? else { return None };
            (of == index && ints(rewriter, one)? == [1]).then_some(())
        });
        of_index.is_some()
    };
    let columns = shapes.into_iter().all(|shape| column(walk, shape));
    let flat_column = matches!(rewriter.shape(flat), &[_, 1]);
    if !columns || !flat_column || int_attribute(gather, "axis", 0) != 0 {
        return None;
    }
    let (_, &[a, b]) = deferred(walk, index, "Add")? else { return None };
    let choice = [(a, b), (b, a)].into_iter().find_map(|(choice, row)| {
        walk.attempt(|w| {
            let (_, &[of, by]) = deferred(w, row, "Mul")? else { return None };
            let fits = of == token && rewriter.uniform(by) == Some(choices as f64);
            (fits && rewriter.ty(by).elements() == 1).then_some(choice)
        })
    })?;
    Some((weights, choice))
}

/// The expert whose hits these are, and the one-hot rows `[tokens, choices, experts]` in which they were
/// found: `choice, token = nonzero(one_hot[:, :, expert]ᵀ)`.
fn hits(
    rewriter: &Rewriter,
    walk: &mut Walk<'_>,
    choice: ValueId,
    token: ValueId,
) -> Option<(usize, ValueId)> {
    let mut column = |v: ValueId| {
        let (_, &[column, axis]) = deferred(walk, v, "Squeeze")? else { return None };
        (ints(rewriter, axis)? == [1]).then_some(column)
    };
    let columns = [column(choice)?, column(token)?];
    let (split, &[pairs, parts], outputs) = walk.step_of_many(columns[0])? else { return None };
    let Op::Deferred(split) = split else { return None };
    let in_columns = split.domain.is_empty()
        && split.op_type == "Split"
        && int_attribute(split, "axis", 0) == 1
        && ints(rewriter, parts)? == [1, 1]
        && outputs == columns;
    let (transpose, &[found]) = deferred(walk, pairs, "Transpose")? else { return None };
    let swaps = match transpose.attributes.get("perm") {
        Some(Attribute::Ints(perm)) => *perm == [1, 0],
        _ => true,
    };
    let (_, &[mask]) = deferred(walk, found, "NonZero")? else { return None };
    let mask =
        walk.map(mask, F::Cast(DType::Bool)).and_then(|x| x.first().copied()).unwrap_or(mask);
    let (Op::Gather(gather), &[of_experts, number]) = walk.step(mask)? else { return None };
    let expert = rewriter.uniform(number).filter(|&n| n >= 0.0)?;
    let (Op::Transpose(transpose), &[one_hot]) = walk.step(of_experts)? else { return None };
    let fits = in_columns
        && swaps
        && gather.axis == 0
        && rewriter.shape(number).is_empty()
        && transpose.perm == [2, 1, 0];
    fits.then_some((expert as usize, one_hot))
}
