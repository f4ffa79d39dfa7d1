//! What the factor rules of many ops share.

use crate::graph::TensorType;
use crate::sharding::{FactorId, FactorKind, RuleBuilder};

/// Ops on tensors of a higher rank are opaque.
pub const MAX_RANK: usize = 8;

/// Names of a tensor's dimensions as factors.
pub const DIMS: [&str; MAX_RANK] = ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"];

/// Names of a second tensor's dimensions.
pub const INDEX_DIMS: [&str; MAX_RANK] = ["i0", "i1", "i2", "i3", "i4", "i5", "i6", "i7"];

/// One parallel factor a dimension, named by [`DIMS`]; whole where `whole` says so.
pub fn dims(rule: &mut RuleBuilder, shape: &[u64], whole: impl Fn(usize) -> bool) -> Vec<FactorId> {
    named(rule, &DIMS, shape, whole)
}

/// The same with other names.
pub fn named(
    rule: &mut RuleBuilder,
    names: &[&'static str],
    shape: &[u64],
    whole: impl Fn(usize) -> bool,
) -> Vec<FactorId> {
    shape
        .iter()
        .zip(names)
        .enumerate()
        .map(|(i, (&n, name))| {
            rule.factor(name, n, if whole(i) { FactorKind::Whole } else { FactorKind::Parallel })
        })
        .collect()
}

/// The dimensions of an operand that broadcasts to the dimensions whose factors and extents are
/// given: those that it is broadcast along have none.
pub fn broadcast(operand: &TensorType, out: &[u64], factors: &[FactorId]) -> Vec<Option<FactorId>> {
    let skip = out.len() - operand.rank();
    let own = operand.shape.iter().enumerate();
    own.map(|(i, &n)| (n == out[i + skip]).then_some(factors[i + skip])).collect()
}

/// An op on operands of one rank that works along some dimensions and lets the others pass: a
/// dimension is parallel if it is not in `along` and all operands have its extent, and whole
/// otherwise.
pub fn along(inputs: &[TensorType], outputs: &[TensorType], along: &[usize]) -> RuleBuilder {
    let mut rule = RuleBuilder::new();
    let operands = || inputs.iter().chain(outputs);
    let rank = operands().map(TensorType::rank).max().unwrap_or(0);
    let factors: Vec<Option<FactorId>> = (0..rank)
        .map(|d| {
            let mut extents = operands().map(|t| t.shape.get(d));
            let first = extents.next().flatten().copied();
            let equal = extents.all(|n| n.copied() == first);
            first.filter(|_| equal).map(|n| {
                let whole = along.contains(&d);
                let kind = if whole { FactorKind::Whole } else { FactorKind::Parallel };
                rule.factor(DIMS[d], n, kind)
            })
        })
        .collect();
    for t in inputs {
        rule.input(factors[..t.rank()].iter().copied());
    }
    for t in outputs {
        rule.output(factors[..t.rank()].iter().copied());
    }
    rule
}
