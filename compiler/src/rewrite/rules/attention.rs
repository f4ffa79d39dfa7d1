//! Scaled dot-product attention: a softmax between two matrix products.

use super::super::layout::{is_swapped, swapped, ungrouped};
use super::super::pattern::{MAX_STEPS, Walk};
use super::super::rewriter::Rewriter;
use super::Raise;
use super::mask::{Masking, combine, refined as refined_mask};
use planc_ir::DType;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::attention::Attention;
use planc_ir::ops::reshape::Reshape;
use planc_ir::scalar::ScalarFn as F;

/// `softmax(mask(scale · q · kᵀ)) · v`, the scale at the scores or at q and k, casts and dropped-out
/// nothing between, weights of NaN replaced by 0 or not, heads apart or merged with the batch, keys and
/// values repeated for groups of queries or not.
///
/// Sound because the op's definition is the same product, softmax and product; NaN weights arise (of
/// finite scores) exactly where all of a query's masked scores are -∞.
pub fn attention(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    let found = core(rewriter, root)?;
    let left =
        if found.left_is_transposed { swapped(rewriter, root, found.left)? } else { found.left };
    let (q, q_scale) = unscaled(rewriter, left);
    let (k, k_scale) = unscaled(rewriter, found.right);
    let k = if found.right_is_transposed { k } else { swapped(rewriter, root, k)? };
    // A scale may stand before the transpose as well.
    let (k, inner_scale) = unscaled(rewriter, k);
    let scale = found.scale * q_scale * k_scale * inner_scale;
    let mut op = Attention { softcap: found.softcap, ..Attention::plain(scale) };
    op.zero_unseeing = found.zero_unseeing;

    let flat = rewriter.shape(q).len() == 3;
    let (q, mut k, mut v) = if flat {
        let heads = heads(rewriter, [q, k, found.values], found.heads)?;
        let mut apart = |x| apart(rewriter, root, x, heads);
        (apart(q)?, apart(k)?, apart(found.values)?)
    } else {
        (q, k, found.values)
    };
    let (&[batch, _, queries, _], &[_, _, keys, _]) = (rewriter.shape(q), rewriter.shape(k)) else {
        return None;
    };
    if let (Some(single_k), Some(single_v)) = (ungrouped(rewriter, k), ungrouped(rewriter, v))
        && rewriter.shape(single_k)[..3] == rewriter.shape(single_v)[..3]
    {
        (k, v) = (single_k, single_v);
    }
    let mask = combine(rewriter, root, &found.maskings, [queries, keys])?;
    (op.causal, op.hidden_score) = (mask.causal, mask.hidden_score);
    let mut inputs = vec![q, k, v];
    if let Some(mut mask) = mask.operand {
        if let &[n, s, t] = rewriter.shape(mask)
            && n == batch
            && n > 1
            && rewriter.shape(q)[1] == 1
        {
            mask = rewriter.reshape(root, mask, &[n, 1, s, t])?;
        }
        inputs.push(mask);
    }
    if !flat {
        return Some(Raise::new(op, inputs, found.interior));
    }
    let attended = rewriter.push(root, op, &inputs)?;
    let shape = rewriter.shape(root).to_vec();
    Some(Raise::new(Reshape { shape }, [attended], found.interior))
}

/// An attention that came as one op: repeated key heads become groups of queries, and of its mask of bools
/// causality becomes an attribute.
pub fn refined(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let (Op::Attention(attention), inputs) = walk.step(root)? else { return None };
    let (mut op, mut inputs) = (attention.clone(), inputs.to_vec());
    let interior = walk.close(root)?;
    let before = (op.clone(), inputs.clone());
    if let (Some(k), Some(v)) = (ungrouped(rewriter, inputs[1]), ungrouped(rewriter, inputs[2]))
        && rewriter.shape(k)[..3] == rewriter.shape(v)[..3]
    {
        (inputs[1], inputs[2]) = (k, v);
    }
    if let Some(&mask) = inputs.get(3)
        && rewriter.ty(mask).dtype == DType::Bool
    {
        let extents = [rewriter.shape(inputs[0])[2], rewriter.shape(inputs[1])[2]];
        let mask = refined_mask(rewriter, root, mask, op.hidden_score, extents)?;
        if op.causal.is_none() || mask.causal.is_none() {
            op.causal = op.causal.or(mask.causal);
            inputs.truncate(3);
            inputs.extend(mask.operand);
        }
    }
    ((&op, &inputs) != (&before.0, &before.1)).then(|| Raise::new(op, inputs, interior))
}

/// What stands around and between the products.
struct Core {
    left: ValueId,
    right: ValueId,
    left_is_transposed: bool,
    right_is_transposed: bool,
    values: ValueId,
    scale: f64,
    softcap: Option<f64>,
    /// The innermost first.
    maskings: Vec<Masking>,
    zero_unseeing: bool,
    /// Batch and heads, where the scores have them apart while the products do not.
    heads: Option<[u64; 2]>,
    interior: super::Interior,
}

/// Walks from the second product to the first.
fn core(rewriter: &Rewriter, root: ValueId) -> Option<Core> {
    let mut walk = Walk::new(rewriter);
    let (Op::MatMul(product), &[weights, values]) = walk.step(root)? else { return None };
    if product.trans_a || product.trans_b || !matches!(rewriter.shape(root).len(), 3 | 4) {
        return None;
    }
    let mut heads = None;
    let mut at = merged(rewriter, &mut walk, weights, &mut heads);
    let zeroed = walk.attempt(|w| {
        let &[is_nan, zero, weights] = w.map(at, F::Where)? else { return None };
        let checked = w.unary(is_nan, F::IsNaN)?;
        (checked == weights && w.is(zero, 0.0)).then_some(weights)
    });
    at = merged(rewriter, &mut walk, zeroed.unwrap_or(at), &mut heads);
    // Some exporters compute keys by queries, and turn the weights.
    let turned = turned_softmax(rewriter, &mut walk, at);
    at = turned.unwrap_or(at);
    let (Op::Softmax(softmax), &[scores]) = walk.step(at)? else { return None };
    let from_back = if turned.is_some() { 2 } else { 1 };
    if softmax.log || softmax.axis + from_back != rewriter.shape(at).len() {
        return None;
    }
    let mut core = Core {
        left: root,
        right: root,
        left_is_transposed: false,
        right_is_transposed: false,
        values,
        scale: 1.0,
        softcap: None,
        maskings: Vec::new(),
        zero_unseeing: zeroed.is_some(),
        heads: None,
        interior: super::Interior::default(),
    };
    at = scores;
    for _ in 0..MAX_STEPS {
        at = merged(rewriter, &mut walk, at, &mut heads);
        if let Some((x, by)) = walk.scaled(at) {
            (core.scale, at) = (core.scale * by, x);
        } else if let Some(x) = walk.unary(at, F::Tanh) {
            let cap = core.softcap.is_none().then_some(core.scale)?;
            (core.softcap, core.scale, at) = (Some(cap), 1.0, x);
        } else if let Some([a, b]) = walk.attempt(|w| w.binary(at, F::Add)) {
            let (x, mask) = if leads_to_product(rewriter, a) { (a, b) } else { (b, a) };
            unbent(&core)?;
            core.maskings.push(Masking::Add(mask));
            at = x;
        } else if let Some(&[condition, x, y]) = walk.map(at, F::Where) {
            let fill = rewriter.uniform(y)?;
            unbent(&core)?;
            core.maskings.push(Masking::Keep { condition, fill });
            at = x;
        } else {
            break;
        }
    }
    let (Op::MatMul(product), &[left, right]) = walk.step(at)? else { return None };
    if product.trans_a {
        return None;
    }
    if let Some(cap) = core.softcap {
        // What was met behind the bound stands in front of it: the scale over the bound.
        core.scale *= cap;
    }
    core.maskings.reverse();
    if turned.is_none() {
        (core.left, core.right, core.right_is_transposed) = (left, right, product.trans_b);
    } else if core.maskings.is_empty() {
        (core.left, core.right, core.right_is_transposed) = (right, left, true);
        core.left_is_transposed = !product.trans_b;
    } else {
        return None;
    }
    core.heads = heads;
    core.interior = walk.close(root)?;
    Some(core)
}

/// The softmax that weights are a turned view of.
fn turned_softmax(rewriter: &Rewriter, walk: &mut Walk<'_>, weights: ValueId) -> Option<ValueId> {
    walk.attempt(|w| {
        let mut at = weights;
        for _ in 0..MAX_STEPS {
            let Some((Op::Transpose(_) | Op::Reshape(_), &[x])) = rewriter.op(at) else { break };
            w.step(at)?;
            at = x;
        }
        (at != weights && is_swapped(rewriter, weights, at)).then_some(at)
    })
}

/// Masks come behind scaling and bounding.
fn unbent(core: &Core) -> Option<()> {
    (core.softcap.is_none() && core.scale == 1.0).then_some(())
}

/// Whether scores may come this way: a short chain of elementwise ops ends at a matrix product.
fn leads_to_product(rewriter: &Rewriter, mut v: ValueId) -> bool {
    for _ in 0..MAX_STEPS {
        v = match rewriter.op(v) {
            Some((Op::MatMul(_), _)) => return true,
            Some((Op::Map(map), inputs)) => match (map.f, inputs) {
                (F::Where, &[_, x, _]) | (F::Cast(_) | F::Tanh, &[x]) => x,
                (F::Mul | F::Div, &[x, by]) if rewriter.uniform(by).is_some() => x,
                (F::Mul, &[by, x]) if rewriter.uniform(by).is_some() => x,
                (F::Add, &[a, b]) => {
                    if leads_to_product_directly(rewriter, b) {
                        b
                    } else {
                        a
                    }
                }
                _ => return false,
            },
            Some((Op::Reshape(_), &[x])) => x,
            _ => return false,
        };
    }
    false
}

fn leads_to_product_directly(rewriter: &Rewriter, v: ValueId) -> bool {
    matches!(rewriter.op(v), Some((Op::MatMul(_), _)))
}

/// Steps through casts, and reshapes that keep the two last dimensions, noting batch and heads.
fn merged(
    rewriter: &Rewriter,
    walk: &mut Walk<'_>,
    v: ValueId,
    heads: &mut Option<[u64; 2]>,
) -> ValueId {
    let mut at = walk.uncast(v);
    while let Some(x) = walk.attempt(|w| {
        // Several in a row are one.
        let (mut x, after) = (at, rewriter.shape(at));
        for _ in 0..MAX_STEPS {
            let (Op::Reshape(_), &[inner]) = w.step(x)? else { return None };
            x = inner;
            let before = rewriter.shape(x);
            let last = |s: &[u64]| s.len().checked_sub(2).map(|n| s[n..].to_vec());
            if matches!((before.len(), after.len()), (3, 4) | (4, 3)) && last(before) == last(after)
            {
                return Some(x);
            }
        }
        None
    }) {
        for shape in [rewriter.shape(x), rewriter.shape(at)] {
            if let &[batch, of_batch, _, _] = shape {
                *heads = Some([batch, of_batch]);
            }
        }
        at = walk.uncast(x);
    }
    at
}

/// A value without the number that multiplies it.
fn unscaled(rewriter: &Rewriter, v: ValueId) -> (ValueId, f64) {
    let (mut v, mut scale) = (v, 1.0);
    for _ in 0..MAX_STEPS {
        match Walk::new(rewriter).scaled(v) {
            Some((x, by)) if rewriter.shape(x) == rewriter.shape(v) => (v, scale) = (x, scale * by),
            _ => break,
        }
    }
    (v, scale)
}

/// Batch and heads of operands in which they are one dimension: as the scores have them, or a value that
/// an operand is a view of, or each its own batch.
fn heads(rewriter: &Rewriter, operands: [ValueId; 3], known: Option<[u64; 2]>) -> Option<[u64; 2]> {
    let merged = *rewriter.shape(operands[0]).first()?;
    let viewed = operands.iter().find_map(|&v| match rewriter.op(v)? {
        (Op::Reshape(_), &[x]) => match (rewriter.shape(x), rewriter.shape(v)) {
            (&[b, h, s, d], &[_, of_s, of_d]) if s == of_s && d == of_d => Some([b, h]),
            _ => None,
        },
        _ => None,
    });
    known.or(viewed).filter(|[b, h]| b.checked_mul(*h) == Some(merged)).or(Some([merged, 1]))
}

/// An operand with batch and heads apart.
fn apart(
    rewriter: &mut Rewriter,
    root: ValueId,
    v: ValueId,
    [batch, heads]: [u64; 2],
) -> Option<ValueId> {
    let &[_, positions, elements] = rewriter.shape(v) else { return None };
    let shape = [batch, heads, positions, elements];
    let viewed = match rewriter.op(v) {
        Some((Op::Reshape(_), &[x])) if rewriter.shape(x) == shape => Some(x),
        _ => None,
    };
    viewed.or_else(|| rewriter.reshape(root, v, &shape))
}
