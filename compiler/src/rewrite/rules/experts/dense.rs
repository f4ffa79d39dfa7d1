//! All tokens sent through all experts.

use super::super::super::pattern::Walk;
use super::super::super::rewriter::Rewriter;
use super::super::Raise;
use super::{
    Between, Layer, Projection, between, distinct_choices, flat_uncast, is_zero, of_each_expert,
    source, unrounded, weighted,
};
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::scatter::Update;
use planc_ir::sharding::ReduceKind;

/// `Σ_e weight[e, t] · down[e] · f(gate_up[e] · x[t])`, the weights scattered into zeros by the experts that
/// the router chose for each token.
///
/// Sound because the others' weights are 0, and no expert is chosen twice for a token.
pub fn dense(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    find(rewriter, root)?.raise(rewriter, root)
}

fn find(rewriter: &Rewriter, root: ValueId) -> Option<Layer> {
    let mut walk = Walk::new(rewriter);
    let sum = flat_uncast(&mut walk, root);
    let (Op::Reduce(reduce), &[terms]) = walk.step(sum)? else { return None };
    let &[experts, tokens, _] = rewriter.shape(terms) else { return None };
    if reduce.kind != ReduceKind::Sum || reduce.axes != [0] || (reduce.keep && sum == root) {
        return None;
    }
    let (y, weights) = weighted(rewriter, &mut walk, terms)?;
    let weights = flat_uncast(&mut walk, weights);
    let (Op::Transpose(transpose), &[scattered]) = walk.step(weights)? else { return None };
    if transpose.perm != [1, 0] || rewriter.shape(scattered) != [tokens, experts] {
        return None;
    }
    let scattered = walk.uncast(scattered);
    let (Op::ScatterElements(scatter), &[zeros, indices, weights]) = walk.step(scattered)? else {
        return None;
    };
    if scatter.axis != 1 || scatter.update != Update::Set || !is_zero(rewriter, zeros) {
        return None;
    }
    let shape = rewriter.shape(indices);
    let (indices, choices) = distinct_choices(rewriter, indices, experts)?;
    if shape != [tokens, choices] || rewriter.shape(weights) != shape {
        return None;
    }
    let y = walk.uncast(y);
    let second = of_each_expert(rewriter, &mut walk, y)?;
    let between =
        between(rewriter, &mut walk, second.of, |walk, v| of_each_expert(rewriter, walk, v))?;
    let projections = between.projections.iter();
    let projections: Option<Vec<Projection>> = projections
        .map(|p| Some(Projection { of: shared(rewriter, p.of, tokens)?, ..p.clone() }))
        .collect();
    let projections = projections?;
    Some(Layer {
        x: projections.first()?.of,
        indices,
        weights: unrounded(rewriter, weights),
        choices,
        between: Between { projections, ..between },
        down: second.matrices,
        interior: walk.close(root)?,
    })
}

/// The tokens that all experts get.
fn shared(rewriter: &Rewriter, v: ValueId, tokens: u64) -> Option<ValueId> {
    let v = match rewriter.op(v) {
        Some((Op::Expand(_), &[x])) => x,
        _ => v,
    };
    match *rewriter.shape(v) {
        [1, n, _] | [n, _] if n == tokens => Some(source(rewriter, v)),
        _ => None,
    }
}
