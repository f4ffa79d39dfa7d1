//! Tokens sent to places of their experts by products with one-hot matrices.

use super::super::super::pattern::Walk;
use super::super::super::rewriter::Rewriter;
use super::super::Raise;
use super::{
    Between, Layer, Projection, between, chosen, counts_along_last, distinct_choices, exact_up_to,
    flat_uncast, of_each_expert, source, unconverted, unrounded, weighted,
};
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::einsum::Einsum;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::sharding::ReduceKind;

/// `out[t] = Σ_e,c combine[t, e, c] · y[e, c]` with `y[e] = down[e] · f(gate_up[e] · x[e])` and `x[e, c] = Σ_t
/// dispatch[t, e, c] · x[t]`: an expert's tokens get places in the order in which they come, as many as it
/// has.
///
/// Sound if each expert has a place for each token, so that none is dropped: then `dispatch` is a permutation
/// of an expert's tokens, which `combine` undoes. Places are counted in numbers that their types hold.
pub fn dispatched(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    find(rewriter, root)?.raise(rewriter, root)
}

fn find(rewriter: &Rewriter, root: ValueId) -> Option<Layer> {
    let mut walk = Walk::new(rewriter);
    let (Op::Einsum(einsum), &[combine, y]) = walk.step(root)? else { return None };
    if !is_equation(einsum, ["tec", "ech"], "th") {
        return None;
    }
    let &[tokens, experts, places] = rewriter.shape(combine) else { return None };
    if places < tokens {
        return None;
    }
    let combine = walk.uncast(combine);
    let (dispatch, per_expert) = weighted(rewriter, &mut walk, combine)?;
    let dispatch = walk.uncast(dispatch);
    let routing = Routing { rewriter, tokens, experts };
    let mask = routing.places(&mut walk, dispatch)?;
    let (one_hot, choices) = routing.mask(&mut walk, mask)?;
    let per_expert = flat_uncast(&mut walk, per_expert);
    let weights = routing.weights(&mut walk, per_expert, one_hot)?;
    let indices = chosen(rewriter, &mut walk, one_hot, experts)?;
    let (indices, k) = distinct_choices(rewriter, indices, experts)?;
    if k != choices {
        return None;
    }

    let y = walk.uncast(y);
    let second = of_each_expert(rewriter, &mut walk, y)?;
    let between =
        between(rewriter, &mut walk, second.of, |walk, v| of_each_expert(rewriter, walk, v))?;
    let projections = between.projections.iter();
    let projections: Option<Vec<Projection>> = projections
        .map(|p| {
            let at = walk.uncast(p.of);
            let (Op::Einsum(einsum), &[by, x]) = walk.step(at)? else { return None };
            let sent = is_equation(einsum, ["tec", "th"], "ech") && walk.uncast(by) == dispatch;
            sent.then(|| Projection { of: source(rewriter, x), ..p.clone() })
        })
        .collect();
    let projections = projections?;
    Some(Layer {
        x: projections.first()?.of,
        indices,
        weights,
        choices,
        between: Between { projections, ..between },
        down: second.matrices,
        interior: walk.close(root)?,
    })
}

/// Whether an equation is this one under other names.
fn is_equation(einsum: &Einsum, inputs: [&str; 2], output: &str) -> bool {
    let theirs = einsum.inputs.iter().chain([&einsum.output]);
    let ours = inputs.into_iter().chain([output]);
    let mut names: Vec<(char, char)> = Vec::new();
    einsum.inputs.len() == 2
        && theirs.zip(ours).all(|(theirs, ours)| {
            theirs.chars().count() == ours.len()
                && theirs.chars().zip(ours.chars()).all(|(a, b)| {
                    let known = names.iter().find(|(x, y)| *x == a || *y == b).copied();
                    known.map_or_else(
                        || {
                            names.push((a, b));
                            true
                        },
                        |known| known == (a, b),
                    )
                })
        })
}

/// Which token goes to which expert, and where.
struct Routing<'a> {
    rewriter: &'a Rewriter,
    tokens: u64,
    experts: u64,
}

impl<'a> Routing<'a> {
    /// Steps from `dispatch`, 1 where a token goes to a place of an expert, to the mask `[tokens, experts]`, 1
    /// where it goes to the expert at all: `(place = (cumsum(mask) - 1) · mask) · mask`.
    fn places(&self, walk: &mut Walk<'a>, dispatch: ValueId) -> Option<ValueId> {
        let (at_place, mask) = weighted(self.rewriter, walk, dispatch)?;
        let at_place = unconverted(self.rewriter, walk, at_place);
        let [a, b] = walk.binary(at_place, F::Equal)?;
        let &[_, _, places] = self.rewriter.shape(at_place) else { return None };
        let place = match [a, b].map(|v| counts_along_last(self.rewriter, v, places)) {
            [_, true] => a,
            [true, false] => b,
            [false, false] => return None,
        };
        if self.rewriter.shape(place) != [self.tokens, self.experts, 1] {
            return None;
        }
        let mask = self.count(walk, mask)?;
        let place = self.count(walk, place)?;
        let [a, b] = walk.binary(place, F::Mul)?;
        let masked = |w: &mut Walk<'a>, by| (self.count(w, by)? == mask).then_some(());
        let before = match walk.attempt(|w| masked(w, b)) {
            Some(()) => a,
            None => walk.attempt(|w| masked(w, a)).map(|()| b)?,
        };
        let before = self.count(walk, before)?;
        let [count, one] = walk.binary(before, F::Sub)?;
        let count = self.count(walk, count)?;
        let (Op::CumSum(sum), operands) = walk.step(count)? else { return None };
        let counted = self.count(walk, *operands.first()?)?;
        let fits = walk.is(one, 1.0)
            && counted == mask
            && (sum.axis, sum.exclusive, sum.reverse) == (0, false, false)
            && self.rewriter.shape(count) == [self.tokens, self.experts];
        fits.then_some(mask)
    }

    /// Numbers of tokens behind reshapes and conversions to other types, all of which hold them.
    fn count(&self, walk: &mut Walk<'a>, mut v: ValueId) -> Option<ValueId> {
        loop {
            if self.tokens > exact_up_to(self.rewriter.ty(v).dtype) {
                return None;
            }
            let before = walk.attempt(|w| match w.step(v)? {
                (Op::Reshape(_), &[x]) => Some(x),
                (Op::Map(map), &[x]) => matches!(map.f, F::Cast(_)).then_some(x),
                _ => None,
            });
            match before {
                Some(x) => v = x,
                None => return Some(v),
            }
        }
    }

    /// The sum of the one-hot rows of a token's choices, and how many there are.
    fn mask(&self, walk: &mut Walk<'a>, v: ValueId) -> Option<(ValueId, u64)> {
        let one_hot = self.sum_of_choices(walk, v)?;
        let &[_, choices, _] = self.rewriter.shape(one_hot) else { return None };
        Some((unconverted(self.rewriter, walk, one_hot), choices))
    }

    /// What is summed over a token's choices, `[tokens, choices, experts]`.
    fn sum_of_choices(&self, walk: &mut Walk<'a>, v: ValueId) -> Option<ValueId> {
        let (Op::Reduce(reduce), &[terms]) = walk.step(v)? else { return None };
        let &[tokens, _, experts] = self.rewriter.shape(terms) else { return None };
        let fits = reduce.kind == ReduceKind::Sum
            && reduce.axes == [1]
            && [tokens, experts] == [self.tokens, self.experts];
        fits.then_some(terms)
    }

    /// The choices' weights, each in the column of its expert and summed over the choices.
    fn weights(&self, walk: &mut Walk<'a>, v: ValueId, one_hot: ValueId) -> Option<ValueId> {
        let terms = self.sum_of_choices(walk, v)?;
        let (hot, weights) = weighted(self.rewriter, walk, terms)?;
        (unconverted(self.rewriter, walk, hot) == one_hot)
            .then(|| unrounded(self.rewriter, weights))
    }
}
