//! Tokens sorted by expert, and a product of each expert with its range of them.
//!
//! How many tokens an expert gets is only known at run time, so its nodes are deferred: they are matched as
//! the operators that the file names.

use super::super::super::pattern::Walk;
use super::super::super::rewriter::Rewriter;
use super::super::Raise;
use super::at_run_time::{deferred, int_attribute};
use super::{
    Between, Layer, Matrices, Projection, between, distinct_choices, flat, flat_uncast, source,
    unrounded, weighted,
};
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::map::Map;
use planc_ir::ops::scatter::Update;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::sharding::ReduceKind;
use planc_ir::{Tensor, TensorType};
use std::collections::BTreeMap;

/// Choices up to which index arithmetic is checked, number by number.
const MAX_CHECKED: u64 = 1 << 20;

/// Nodes of index arithmetic that are followed.
const MAX_NODES: usize = 32;

/// All choices of all tokens are sorted by expert, and x and the weights taken in that order. Counts by
/// expert, added up, say where each expert's range ends; its rows are multiplied with its matrix, and the
/// results joined, once for each layer. The inverse of the sort puts them back in place.
///
/// Sound because the ranges are those of the sorted experts: each row is multiplied with the matrix of its own
/// expert, whatever the counts are.
pub fn grouped(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    find(rewriter, root)?.raise(rewriter, root)
}

fn find(rewriter: &Rewriter, root: ValueId) -> Option<Layer> {
    let mut walk = Walk::new(rewriter);
    let sum = flat_uncast(&mut walk, root);
    let (Op::Reduce(reduce), &[terms]) = walk.step(sum)? else { return None };
    let &[_, choices, result] = rewriter.shape(terms) else { return None };
    if reduce.kind != ReduceKind::Sum || reduce.axes != [1] || (reduce.keep && sum == root) {
        return None;
    }
    let in_place = flat(&mut walk, terms);
    let (sorted, inverse) = taken(rewriter, in_place)?;
    let order = inverted(rewriter, inverse)?;
    walk.step(in_place)?;
    let (y, weights) = weighted(rewriter, &mut walk, sorted)?;
    let (weights, by) = taken(rewriter, source(rewriter, weights))?;
    if source(rewriter, by) != order.positions || rewriter.shape(weights) != [order.rows] {
        return None;
    }
    let y = walk.uncast(y);
    let (second, ends) = products(rewriter, &mut walk, y)?;
    let between = between(rewriter, &mut walk, second.of, |walk, v| {
        let (projection, others) = products(rewriter, walk, v)?;
        (others == ends).then_some(projection)
    })?;
    let [experts, _, of_each] = second.matrices.extents(rewriter)?;
    let (indices, k) = distinct_choices(rewriter, order.keys, experts)?;
    let counted = k == choices
        && of_each == result
        && ends.len() as u64 == experts
        && are_ends(rewriter, &ends, &order);
    if !counted {
        return None;
    }
    let first = between.projections.first()?;
    let (x, by) = taken(rewriter, first.of)?;
    let &[tokens, _] = rewriter.shape(x) else { return None };
    let of_token = |i: usize| i as i128 / i128::from(choices);
    if tokens.checked_mul(choices)? != order.rows
        || !is_function(rewriter, by, order.positions, order.rows, of_token)
    {
        return None;
    }
    let x = source(rewriter, x);
    let projections = between.projections.iter();
    let projections: Option<Vec<Projection>> = projections
        .map(|p| (p.of == first.of).then(|| Projection { of: x, ..p.clone() }))
        .collect();
    Some(Layer {
        x,
        indices,
        weights: unrounded(rewriter, weights),
        choices,
        between: Between { projections: projections?, ..between },
        down: second.matrices,
        interior: walk.close(root)?,
    })
}

/// A sort of all of a vector's elements.
struct Sort {
    /// What is sorted.
    keys: ValueId,
    /// The elements in ascending order.
    sorted: ValueId,
    /// Where each of them was.
    positions: ValueId,
    /// How many there are.
    rows: u64,
}

/// The sort whose positions `v`, one a row, inverts.
fn inverted(rewriter: &Rewriter, v: ValueId) -> Option<Sort> {
    let &[rows, 1] = rewriter.shape(v) else { return None };
    let (Op::ScatterNd(scatter), &[into, positions, numbers]) = rewriter.op(source(rewriter, v))?
    else {
        return None;
    };
    let in_order = rewriter.graph.constant_of(numbers).is_some_and(|t| super::counts_to(t, rows));
    let fits = scatter.update == Update::Set
        && in_order
        && rewriter.shape(into) == [rows]
        && rewriter.shape(positions) == [rows, 1];
    let positions = source(rewriter, positions);
    let node = rewriter.graph.node(rewriter.node(positions)?);
    let (Op::TopK(top), &[sorted, at], &[keys]) = (&node.op, &node.outputs[..], &node.inputs[..])
    else {
        return None;
    };
    let whole = !top.largest && top.k == rows && rewriter.shape(keys) == [rows] && at == positions;
    (fits && whole).then_some(Sort { keys, sorted, positions, rows })
}

/// The rows of what are taken, and by which numbers.
fn taken(rewriter: &Rewriter, v: ValueId) -> Option<(ValueId, ValueId)> {
    let (op, &[table, indices]) = rewriter.op(v)? else { return None };
    let by_rows = match op {
        Op::Gather(gather) => gather.axis == 0 && rewriter.shape(indices).len() == 1,
        Op::GatherNd(gather) => {
            gather.batch_dims == 0 && matches!(rewriter.shape(indices), &[_, 1])
        }
        _ => false,
    };
    by_rows.then_some((table, indices))
}

/// Joined products of ranges of rows with one matrix each, and where the ranges end. Each begins where the
/// one before it ends, the first at 0.
fn products(
    rewriter: &Rewriter,
    walk: &mut Walk<'_>,
    v: ValueId,
) -> Option<(Projection, Vec<ValueId>)> {
    let (concat, parts) = deferred(walk, v, "Concat")?;
    if int_attribute(concat, "axis", 1) != 0 {
        return None;
    }
    let (mut found, mut ends): (Option<Projection>, Vec<ValueId>) = (None, Vec::new());
    for (expert, &part) in parts.iter().enumerate() {
        let (_, &[rows, matrix]) = deferred(walk, part, "MatMul")? else { return None };
        let (gather, &[of, range]) = deferred(walk, rows, "Gather")? else { return None };
        let (_, &[start, end, step]) = deferred(walk, range, "Range")? else { return None };
        let from_last = match ends.last() {
            Some(&last) => start == last,
            None => rewriter.uniform(start) == Some(0.0),
        };
        if !from_last
            || rewriter.uniform(step) != Some(1.0)
            || int_attribute(gather, "axis", 0) != 0
        {
            return None;
        }
        let value = numbered(rewriter, matrix, expert)?;
        let matrices = Matrices { value, transposed: false }.untransposed(rewriter);
        let projection = Projection { of, matrices };
        if found.as_ref().is_some_and(|found| *found != projection) {
            return None;
        }
        found = Some(projection);
        ends.push(end);
    }
    Some((found?, ends))
}

/// The value whose part number `n` along its first dimension this is.
fn numbered(rewriter: &Rewriter, v: ValueId, n: usize) -> Option<ValueId> {
    match rewriter.op(source(rewriter, v))? {
        (Op::Slice(slice), &[x]) => {
            let (first, others) = slice.cuts.split_first()?;
            let cut = first.as_ref()?;
            let fits = cut.start == i64::try_from(n).ok()?
                && cut.step == 1
                && cut.extent == 1
                && others.iter().all(Option::is_none);
            fits.then_some(x)
        }
        (Op::Gather(gather), &[x, index]) => {
            let fits = gather.axis == 0
                && rewriter.ty(index).elements() == 1
                && rewriter.uniform(index) == Some(n as f64);
            fits.then_some(x)
        }
        _ => None,
    }
}

/// Whether these are the ends of the ranges of equal keys: how many keys are at most 0, at most 1 …
fn are_ends(rewriter: &Rewriter, ends: &[ValueId], order: &Sort) -> bool {
    let experts = ends.len() as u64;
    let mut sums = ends.iter().enumerate().map(|(i, &end)| numbered(rewriter, end, i));
    let Some(Some(sum)) = sums.next() else { return false };
    sums.all(|other| other == Some(sum)) && counted(rewriter, sum, experts, order).is_some()
}

/// Checks that a value is the running sum of how often the sort's keys are 0, 1 … up to `experts`.
fn counted(rewriter: &Rewriter, sum: ValueId, experts: u64, order: &Sort) -> Option<()> {
    let exact = |v: ValueId| order.rows <= super::exact_up_to(rewriter.ty(v).dtype);
    // A vector behind its conversions, all of which hold such counts.
    let unconverted = |mut v: ValueId| {
        for _ in 0..MAX_NODES {
            match rewriter.op(v) {
                Some((Op::Map(Map { f: F::Cast(_) }), &[x])) if exact(v) => v = x,
                _ => break,
            }
        }
        exact(v).then_some(v)
    };
    let (Op::CumSum(cumsum), operands) = rewriter.op(unconverted(sum)?)? else { return None };
    let plain = (cumsum.axis, cumsum.exclusive, cumsum.reverse) == (0, false, false);
    let (Op::ScatterElements(scatter), &[zeros, keys, ones]) =
        rewriter.op(unconverted(*operands.first()?)?)?
    else {
        return None;
    };
    let fits = plain
        && scatter.axis == 0
        && scatter.update == Update::Add
        && rewriter.shape(zeros) == [experts]
        && rewriter.uniform(zeros) == Some(0.0)
        && rewriter.shape(keys) == [order.rows]
        && rewriter.uniform(ones) == Some(1.0);
    // The key as it is, or as a histogram's bins number it.
    let same = |i: usize| i as i128;
    let same_keys = || {
        is_function(rewriter, keys, order.sorted, experts, same)
            || is_function(rewriter, keys, order.keys, experts, same)
    };
    (fits && same_keys()).then_some(())
}

/// Whether a vector has, for each number below `n` that stands in the vector `of`, this function of it.
fn is_function(
    rewriter: &Rewriter,
    v: ValueId,
    of: ValueId,
    n: u64,
    f: impl Fn(usize) -> i128,
) -> bool {
    if n > MAX_CHECKED {
        return false;
    }
    let Some(image) = (Images { rewriter, of, n, left: MAX_NODES, found: BTreeMap::new() }).of(v)
    else {
        return false;
    };
    image.len() as u64 == n
        && image.dtype().is_int()
        && (0..image.len()).all(|i| image.int_at(i) == f(i))
}

/// What elementwise ops make of the numbers below `n`, if they stood in `of`.
struct Images<'a> {
    rewriter: &'a Rewriter,
    of: ValueId,
    n: u64,
    /// Values that may still be looked at.
    left: usize,
    found: BTreeMap<ValueId, Tensor>,
}

impl Images<'_> {
    fn of(&mut self, v: ValueId) -> Option<Tensor> {
        if let Some(found) = self.found.get(&v) {
            return Some(found.clone());
        }
        self.left = self.left.checked_sub(1)?;
        let ty = self.rewriter.ty(v);
        let image = if v == self.of {
            Tensor::from_int(TensorType::new(ty.dtype, [self.n]), |i| i as i128).ok()?
        } else if let Some(number) = self.rewriter.uniform(v) {
            Tensor::from_f64(TensorType::new(ty.dtype, []), |_| number).ok()?
        } else {
            // Element by element: nothing is broadcast but numbers.
            let same_extent = ty.elements() == self.rewriter.ty(self.of).elements();
            let (op, inputs) = self.rewriter.op(v).filter(|_| same_extent)?;
            let images: Option<Vec<Tensor>> = inputs.iter().map(|&x| self.of(x)).collect();
            let images = images?;
            match op {
                Op::Reshape(_) => images.into_iter().next()?,
                Op::Map(map) => {
                    let op = Op::from(map.clone());
                    op.eval(&images.iter().collect::<Vec<_>>()).ok()?.pop()?
                }
                _ => return None,
            }
        };
        self.found.insert(v, image.clone());
        Some(image)
    }
}
