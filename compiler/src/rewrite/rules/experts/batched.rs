//! Experts' matrices gathered for each choice of each token.

use super::super::super::pattern::Walk;
use super::super::super::rewriter::Rewriter;
use super::super::Raise;
use super::{
    Between, Layer, Matrices, Projection, between, flat, flat_uncast, rows, source, unrounded,
    weighted,
};
use planc_ir::graph::{ValueId, elements};
use planc_ir::ops::Op;
use planc_ir::sharding::ReduceKind;

/// `Σ_j weight[t, j] · down[e] · f(gate_up[e] · x[t])`, each matrix that `e = indices[t, j]` names gathered, x
/// repeated for each choice, the sum over the second of the dimensions tokens, choices, results.
pub fn batched(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    find(rewriter, root)?.raise(rewriter, root)
}

fn find(rewriter: &Rewriter, root: ValueId) -> Option<Layer> {
    let mut walk = Walk::new(rewriter);
    let sum = flat_uncast(&mut walk, root);
    let (Op::Reduce(reduce), &[terms]) = walk.step(sum)? else { return None };
    let &[tokens, choices, result] = rewriter.shape(terms) else { return None };
    if reduce.kind != ReduceKind::Sum || reduce.axes != [1] || (reduce.keep && sum == root) {
        return None;
    }
    let terms = flat(&mut walk, terms);
    let (y, weights) = weighted(rewriter, &mut walk, terms)?;
    if rows(rewriter, terms)? != tokens.checked_mul(choices)?
        || rewriter.shape(terms).last() != Some(&result)
    {
        return None;
    }
    let y = flat_uncast(&mut walk, y);
    let (second, of_second) = gathered(rewriter, &mut walk, y)?;
    if second.matrices.extents(rewriter)?[2] != result {
        return None;
    }
    let between = between(rewriter, &mut walk, second.of, |walk, v| {
        let (projection, indices) = gathered(rewriter, walk, v)?;
        (indices == of_second).then_some(projection)
    })?;
    let first = between.projections.first()?;
    let [_, width, _] = first.matrices.extents(rewriter)?;
    let x = repeated(rewriter, first.of, [tokens, choices, width])?;
    let projections = between.projections.iter();
    let projections: Option<Vec<Projection>> = projections
        .map(|p| {
            let of = repeated(rewriter, p.of, [tokens, choices, width])?;
            Some(Projection { of, matrices: p.matrices })
        })
        .collect();
    Some(Layer {
        x,
        indices: of_second,
        weights: unrounded(rewriter, weights),
        choices,
        between: Between { projections: projections?, ..between },
        down: second.matrices,
        interior: walk.close(root)?,
    })
}

/// A product of one column (or row) a choice with the matrix of its expert, and the choices' experts.
fn gathered<'a>(
    rewriter: &'a Rewriter,
    walk: &mut Walk<'a>,
    v: ValueId,
) -> Option<(Projection, ValueId)> {
    let (Op::MatMul(product), &[a, b]) = walk.step(v)? else { return None };
    let batch =
        |x: ValueId| rewriter.shape(x).len().checked_sub(2).map(|n| &rewriter.shape(x)[..n]);
    if batch(a)? != batch(v)? || batch(b)? != batch(v)? {
        return None;
    }
    let [.., m, n] = *rewriter.shape(v) else { return None };
    // `matrix · column` or `row · matrix`.
    let columns = walk.attempt(|w| {
        let (value, indices) = lookup(rewriter, w, a).filter(|_| n == 1)?;
        Some((value, indices, !product.trans_a, b))
    });
    let (value, indices, transposed, of) = columns.or_else(|| {
        let (value, indices) = lookup(rewriter, walk, b).filter(|_| m == 1)?;
        Some((value, indices, product.trans_b, a))
    })?;
    let matrices = Matrices { value, transposed }.untransposed(rewriter);
    Some((Projection { of, matrices }, indices))
}

/// The matrices that a value looks up, and by which numbers.
fn lookup(rewriter: &Rewriter, walk: &mut Walk<'_>, v: ValueId) -> Option<(ValueId, ValueId)> {
    let (op, &[table, indices]) = walk.step(v)? else { return None };
    let is_lookup = match op {
        Op::Gather(gather) => gather.axis == 0,
        Op::GatherNd(gather) => {
            gather.batch_dims == 0 && rewriter.shape(indices).last() == Some(&1)
        }
        _ => false,
    };
    let fits = is_lookup && rewriter.shape(table).len() == 3;
    fits.then(|| (table, source(rewriter, indices)))
}

/// The tokens whose elements a value repeats for each of their choices.
fn repeated(
    rewriter: &Rewriter,
    v: ValueId,
    [tokens, choices, width]: [u64; 3],
) -> Option<ValueId> {
    let v = source(rewriter, v);
    let own = |v: ValueId| rewriter.ty(v).elements();
    let one = tokens.checked_mul(width)?;
    let is_repeated = match rewriter.op(v) {
        Some((Op::Expand(_), &[x])) => {
            let (from, to) = (rewriter.shape(x), rewriter.shape(v));
            let wider: Vec<usize> =
                (0..to.len()).filter(|&d| from.len() == to.len() && from[d] != to[d]).collect();
            let (first, last) = (*wider.first()?, *wider.last()?);
            elements(&to[..first]) == tokens
                && elements(&from[first..=last]) == 1
                && elements(&to[first..=last]) == choices
                && elements(&to[last + 1..]) == width
        }
        Some((Op::Gather(gather), &[x, indices])) if gather.axis == 0 => {
            let by = rewriter.graph.constant_of(indices)?;
            let in_turn = (0..by.len()).all(|i| by.int_at(i) == i as i128 / i128::from(choices));
            rewriter.shape(x) == [tokens, width]
                && by.len() as u64 == tokens.checked_mul(choices)?
                && in_turn
        }
        _ => return (choices == 1 && own(v) == one).then_some(v),
    };
    let x = *rewriter.op(v)?.1.first()?;
    is_repeated.then(|| source(rewriter, x))
}
