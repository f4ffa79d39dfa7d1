//! What hides keys from queries: masks as exporters build them.

use super::super::pattern::{MAX_STEPS, Walk};
use super::super::rewriter::{Rewriter, Triangle};
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::map::Map;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::{DType, Tensor, TensorType};

/// One thing that is done to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Masking {
    /// A value is added.
    Add(ValueId),
    /// Scores stay where the condition holds, and become a number elsewhere.
    Keep {
        /// The condition.
        condition: ValueId,
        /// The number.
        fill: f64,
    },
}

/// A mask as the op takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    /// Causality, as the op counts it.
    pub causal: Option<i64>,
    /// The score of hidden keys.
    pub hidden_score: f64,
    /// The mask operand.
    pub operand: Option<ValueId>,
}

/// All maskings as one, the innermost first; `[queries, keys]` are the extents of the scores.
///
/// A number low enough absorbs any score that it is added to, so adding it is replacing by it.
pub fn combine(
    rewriter: &mut Rewriter,
    root: ValueId,
    maskings: &[Masking],
    extents: [u64; 2],
) -> Option<Mask> {
    let dtype = rewriter.ty(root).dtype;
    let matters = |m: &Masking| match *m {
        Masking::Add(mask) => rewriter.uniform(mask) != Some(0.0),
        Masking::Keep { condition, .. } => rewriter.uniform(condition) != Some(1.0),
    };
    let maskings: Vec<Masking> = maskings.iter().copied().filter(matters).collect();
    let none = Mask { causal: None, hidden_score: f64::NEG_INFINITY, operand: None };
    match maskings[..] {
        [] => return Some(none),
        [Masking::Add(mask)] => {
            if let Some(Triangle { offset, inside, outside }) = triangle(rewriter, mask, extents)
                && inside == 0.0
                && hides(outside, rewriter.ty(mask).dtype)
            {
                return Some(Mask { causal: Some(offset), hidden_score: outside, ..none });
            }
            let Some((condition, fill)) = condition(rewriter, root, mask) else {
                return Some(Mask { operand: Some(mask), ..none });
            };
            return seen(rewriter, root, vec![condition], fill, extents);
        }
        [Masking::Keep { fill, .. }, ..] if hides(fill, dtype) => {
            let conditions: Option<Vec<ValueId>> = maskings
                .iter()
                .map(|m| match *m {
                    Masking::Keep { condition, fill: also } if also == fill => Some(condition),
                    _ => None,
                })
                .collect();
            if let Some(conditions) = conditions {
                return seen(rewriter, root, conditions, fill, extents);
            }
        }
        _ => {}
    }
    // Several of different kinds: one that is added.
    let mut sum: Option<ValueId> = None;
    for masking in maskings {
        sum = Some(match (masking, sum) {
            (Masking::Add(mask), None) => mask,
            (Masking::Add(mask), Some(sum)) => {
                let mask = rewriter.cast(root, mask, rewriter.ty(sum).dtype)?;
                rewriter.map(root, F::Add, &[sum, mask])?
            }
            (Masking::Keep { condition, fill }, sum) => {
                let dtype = sum.map_or(dtype, |sum| rewriter.ty(sum).dtype);
                if !hides(fill, dtype) {
                    return None;
                }
                let scalar = TensorType::new(dtype, []);
                let hidden = rewriter.filled(root, scalar.clone(), fill)?;
                let seen = sum.or_else(|| rewriter.filled(root, scalar, 0.0))?;
                rewriter.map(root, F::Where, &[condition, seen, hidden])?
            }
        });
    }
    Some(Mask { operand: sum, ..none })
}

/// A mask of bools as the op takes it, with what it can say better.
pub fn refined(
    rewriter: &mut Rewriter,
    root: ValueId,
    condition: ValueId,
    fill: f64,
    extents: [u64; 2],
) -> Option<Mask> {
    seen(rewriter, root, vec![condition], fill, extents)
}

/// Whether a number is low enough to absorb scores of this type.
fn hides(fill: f64, dtype: DType) -> bool {
    fill <= if dtype == DType::F16 { -6e4 } else { -1e30 }
}

/// The condition under which an added mask is 0, and the number that it is elsewhere.
fn condition(rewriter: &mut Rewriter, root: ValueId, mask: ValueId) -> Option<(ValueId, f64)> {
    let dtype = rewriter.ty(mask).dtype;
    let is_bool = |rewriter: &Rewriter, v| rewriter.ty(v).dtype == DType::Bool;
    let number = |rewriter: &Rewriter, v| rewriter.uniform(v);
    let mut walk = Walk::new(rewriter);
    let (condition, fill, negated) = if let Some(&[condition, x, y]) = walk.map(mask, F::Where) {
        match (number(rewriter, x)?, number(rewriter, y)?) {
            (0.0, fill) => (condition, fill, false),
            (fill, 0.0) => (condition, fill, true),
            _ => return None,
        }
    } else {
        let (hidden, fill) = walk.with_number(mask, F::Mul)?;
        let one_less = walk.attempt(|w| {
            let [one, seen] = w.binary(hidden, F::Sub)?;
            (number(rewriter, one)? == 1.0).then_some(seen)
        });
        let (flag, negated) = one_less.map_or((hidden, true), |seen| (seen, false));
        let flag = walk.unary(flag, F::Cast(dtype)).filter(|&flag| is_bool(rewriter, flag))?;
        let inner = walk.unary(flag, F::Not).filter(|_| negated);
        inner.map_or((flag, fill, negated), |seen| (seen, fill, false))
    };
    if !hides(fill, dtype) {
        return None;
    }
    let seen = if negated { rewriter.map(root, F::Not, &[condition])? } else { condition };
    Some((seen, fill))
}

/// A mask of conditions, causality recognised among them and what is always true left out.
fn seen(
    rewriter: &mut Rewriter,
    root: ValueId,
    conditions: Vec<ValueId>,
    fill: f64,
    extents: [u64; 2],
) -> Option<Mask> {
    let (mut causal, mut others, mut open) = (None, Vec::new(), conditions.clone());
    let mut kept_all = true;
    while let Some(v) = open.pop() {
        if open.len() + others.len() > MAX_STEPS {
            (causal, kept_all) = (None, true);
            break;
        }
        if let Some((Op::Map(Map { f: F::And }), inputs)) = rewriter.op(v) {
            open.extend(inputs);
        } else if rewriter.uniform(v) == Some(1.0) {
            kept_all = false;
        } else if let Some(offset) =
            causal_offset(rewriter, v, extents).filter(|_| causal.is_none())
        {
            (causal, kept_all) = (Some(offset), false);
        } else {
            others.push(v);
        }
    }
    others.reverse();
    if kept_all {
        others = conditions;
    }
    let mut operand = None;
    for v in others {
        operand = Some(match operand {
            None => v,
            Some(all) => rewriter.map(root, F::And, &[all, v])?,
        });
    }
    Some(Mask { causal, hidden_score: fill, operand })
}

/// The offset of causality that a condition is, a constant triangle or a comparison of positions.
fn causal_offset(rewriter: &mut Rewriter, v: ValueId, [queries, keys]: [u64; 2]) -> Option<i64> {
    if let Some(found) = triangle(rewriter, v, [queries, keys]) {
        return (found.inside == 1.0).then_some(found.offset);
    }
    let (Op::Map(map), &[a, b]) = rewriter.op(v)? else { return None };
    let (key, query, strict) = match map.f {
        F::LessOrEqual => (a, b, 0),
        F::Less => (a, b, 1),
        F::GreaterOrEqual => (b, a, 0),
        F::Greater => (b, a, 1),
        _ => return None,
    };
    let first_key = first_of_range(rewriter, key, keys, 0)?;
    let first_query = first_of_range(rewriter, query, queries, 1)?;
    first_query.checked_sub(first_key)?.checked_sub(strict)
}

/// The first of the integers that count up by one along the dimension `from_back`, the only one that a
/// constant has.
fn first_of_range(rewriter: &Rewriter, v: ValueId, n: u64, from_back: usize) -> Option<i64> {
    let tensor = rewriter.graph.constant_of(v)?;
    let at = tensor.shape().len().checked_sub(from_back + 1)?;
    let alone = tensor.shape().iter().enumerate().all(|(i, &m)| m == if i == at { n } else { 1 });
    if !alone || !tensor.dtype().is_int() || tensor.is_empty() {
        return None;
    }
    let first = tensor.int_at(0);
    let counts = (0..tensor.len()).all(|i| tensor.int_at(i) == first + i as i128);
    i64::try_from(first).ok().filter(|_| counts)
}

/// The lower triangle that a constant of these extents is.
fn triangle(rewriter: &mut Rewriter, v: ValueId, [queries, keys]: [u64; 2]) -> Option<Triangle> {
    let (outer, matrix) =
        rewriter.shape(v).split_at_checked(rewriter.shape(v).len().checked_sub(2)?)?;
    if matrix != [queries, keys] || outer.iter().any(|&n| n != 1) {
        return None;
    }
    if let Some(&known) = rewriter.triangles.get(&v) {
        return known;
    }
    let found = look_at(rewriter.graph.constant_of(v)?, queries as usize, keys as usize);
    rewriter.triangles.insert(v, found);
    found
}

fn look_at(tensor: &Tensor, rows: usize, columns: usize) -> Option<Triangle> {
    if tensor.is_empty() {
        return None;
    }
    let (inside, outside) = (tensor.f64_at(0), tensor.f64_at(columns - 1));
    let (inside, offset) = if inside == outside {
        // Either all of the first row is inside, or none: the first row that differs tells.
        let row =
            (0..rows).find(|&i| tensor.f64_at(i * columns) != tensor.f64_at((i + 1) * columns - 1));
        let row = row?;
        let inside = tensor.f64_at(row * columns);
        let count = count_of(tensor, row, columns, inside);
        (inside, count - 1 - row as i64)
    } else {
        (inside, count_of(tensor, 0, columns, inside) - 1)
    };
    let outside = (0..tensor.len()).map(|i| tensor.f64_at(i)).find(|&x| x != inside)?;
    let fits = |i: usize| {
        let (row, column) = ((i / columns) as i64, (i % columns) as i64);
        tensor.f64_at(i) == if column <= row + offset { inside } else { outside }
    };
    (0..tensor.len()).all(fits).then_some(Triangle { offset, inside, outside })
}

/// How many elements a row begins with that are this number.
fn count_of(tensor: &Tensor, row: usize, columns: usize, number: f64) -> i64 {
    (0..columns).take_while(|&j| tensor.f64_at(row * columns + j) == number).count() as i64
}
