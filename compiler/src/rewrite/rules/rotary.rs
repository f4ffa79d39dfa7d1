//! Rotary position embedding in pieces: `x · cos + turned(x) · sin`.

use super::super::pattern::Walk;
use super::super::rewriter::Rewriter;
use super::Raise;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::rotary_embedding::RotaryEmbedding;
use planc_ir::ops::slice::Cut;
use planc_ir::scalar::ScalarFn as F;

/// `turned(x) = (-x₂, x₁)` of the halves of the last dimension: the definition, written for the whole.
pub fn halves(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    find(rewriter, root, false, |rewriter, walk, turned| {
        let (Op::Concat(concat), &[second, first]) = walk.step(turned)? else { return None };
        let second = walk.unary(second, F::Neg)?;
        let n = *rewriter.shape(turned).last()?;
        let last = concat.axis + 1 == rewriter.shape(turned).len();
        let x = cut(walk, second, n / 2, 1, n / 2)?;
        (last && cut(walk, first, 0, 1, n / 2)? == x).then_some(x)
    })
}

/// `turned(x) = (-x₂, x₁, -x₄, x₃, ..)`: the halves of each pair are stacked and flattened.
pub fn neighbours(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    find(rewriter, root, true, |rewriter, walk, turned| {
        let (Op::Reshape(_), &[stacked]) = walk.step(turned)? else { return None };
        let (Op::Concat(concat), &[second, first]) = walk.step(stacked)? else { return None };
        let shape = rewriter.shape(turned);
        let n = *shape.last()?;
        let mut pairs = shape[..shape.len() - 1].to_vec();
        pairs.extend([n / 2, 2]);
        let mut single = |v| {
            let (Op::Reshape(_), &[x]) = walk.step(v)? else { return None };
            Some(x)
        };
        let (second, first) = (single(second)?, single(first)?);
        let second = walk.unary(second, F::Neg)?;
        let x = cut(walk, second, 1, 2, n / 2)?;
        let fits = concat.axis + 1 == pairs.len() && rewriter.shape(stacked) == pairs;
        (fits && cut(walk, first, 0, 2, n / 2)? == x).then_some(x)
    })
}

/// What a slice of the last dimension alone is of.
fn cut(walk: &mut Walk<'_>, v: ValueId, start: u64, step: i64, extent: u64) -> Option<ValueId> {
    let (Op::Slice(slice), &[x]) = walk.step(v)? else { return None };
    let (last, others) = slice.cuts.split_last()?;
    let wanted = Cut { start: i64::try_from(start).ok()?, step, extent };
    (*last == Some(wanted) && others.iter().all(Option::is_none)).then_some(x)
}

fn find(
    rewriter: &mut Rewriter,
    root: ValueId,
    interleaved: bool,
    source: impl Fn(&Rewriter, &mut Walk<'_>, ValueId) -> Option<ValueId>,
) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let [a, b] = walk.binary(root, F::Add)?;
    let (straight, across) = (walk.binary(a, F::Mul)?, walk.binary(b, F::Mul)?);
    let orders = [(straight, across), (across, straight)];
    let orders = orders
        .into_iter()
        .flat_map(|(straight, across)| [(straight, across), (straight, [across[1], across[0]])]);
    let (x, cos, sin) = orders.into_iter().find_map(|(straight, [turned, sin])| {
        let x = walk.attempt(|w| source(rewriter, w, turned))?;
        match straight {
            [y, cos] | [cos, y] if y == x => Some((x, cos, sin)),
            _ => None,
        }
    })?;
    let interior = walk.close(root)?;
    // Angles stand for each element; one for all would be a scale.
    let n = rewriter.shape(x).last()?;
    if [cos, sin].iter().any(|&v| rewriter.shape(v).last() != Some(n)) {
        return None;
    }
    Some(Raise::new(RotaryEmbedding { interleaved }, [x, cos, sin], interior))
}
