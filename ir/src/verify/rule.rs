//! Checks a factor rule against the types of the op's operands and results.

use crate::graph::TensorType;
use crate::sharding::{FactorId, FactorKind, FactorRule};
use thiserror::Error;

/// Why a factor rule does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum RuleFault {
    #[error("describes {described} inputs and outputs, the node has {actual}")]
    OperandCount { described: String, actual: String },
    #[error("{operand} has rank {rank}, the rule describes {described} dimensions")]
    DimCount { operand: String, rank: usize, described: usize },
    #[error("{operand}, dimension {dim}: factor {} does not exist", factor.0)]
    FactorRange { operand: String, dim: usize, factor: FactorId },
    #[error("{operand}: factor `{factor}` stands more than once, so one axis would split it twice")]
    FactorTwice { operand: String, factor: &'static str },
    #[error(
        "{operand}, dimension {dim}: extent {extent}, but its factors have the product {product}"
    )]
    Product { operand: String, dim: usize, extent: u64, product: u64 },
    #[error(
        "factor `{factor}` can be split in parallel, but {operand} does not have it: every rank's result would be another"
    )]
    ParallelMissing { operand: String, factor: &'static str },
    #[error("factor `{factor}` is reduced, but every output has it")]
    ReducedKept { factor: &'static str },
    #[error("no input has factor `{factor}`")]
    FactorUnused { factor: &'static str },
    #[error("more than 256 factors")]
    TooManyFactors,
    #[error("linear set {set} is empty or names an input that does not exist")]
    LinearRange { set: usize },
    #[error("is opaque without a reason, or opaque and yet splittable")]
    Opaque,
}

/// Everything in which a rule does not fit the op's input and output types.
///
/// A dimension without factors is whole. A factor stands at most once in an operand; the product of a
/// dimension's factors is its extent. A parallel factor stands in every output; a reduced one in some
/// input, and not in all outputs. A linear set names inputs. An opaque rule says why and offers no split.
pub fn check_rule(
    rule: &FactorRule,
    inputs: &[TensorType],
    outputs: &[TensorType],
) -> Vec<RuleFault> {
    let counts = |ins: usize, outs: usize| format!("{ins} and {outs}");
    if rule.inputs.len() != inputs.len() || rule.outputs.len() != outputs.len() {
        return vec![RuleFault::OperandCount {
            described: counts(rule.inputs.len(), rule.outputs.len()),
            actual: counts(inputs.len(), outputs.len()),
        }];
    }
    if rule.factors.len() > 256 {
        return vec![RuleFault::TooManyFactors];
    }
    let mut faults = Vec::new();
    for (i, (dims, ty)) in rule.inputs.iter().zip(inputs).enumerate() {
        check_operand(rule, &format!("input {i}"), dims, ty, &mut faults);
    }
    for (i, (dims, ty)) in rule.outputs.iter().zip(outputs).enumerate() {
        let operand = format!("output {i}");
        check_operand(rule, &operand, dims, ty, &mut faults);
        for (f, factor) in factors(rule).filter(|(_, f)| f.size > 1) {
            let kept = dims.iter().flatten().any(|&g| g == f);
            let (operand, name) = (operand.clone(), factor.name);
            if factor.kind == FactorKind::Parallel && !kept {
                faults.push(RuleFault::ParallelMissing { operand, factor: name });
            }
        }
    }
    for (f, factor) in factors(rule) {
        let used = rule.inputs.iter().flatten().flatten().any(|&g| g == f);
        let reduced = matches!(factor.kind, FactorKind::Reduce(_));
        if reduced && !used {
            faults.push(RuleFault::FactorUnused { factor: factor.name });
        }
        let has = |dims: &Vec<Vec<FactorId>>| dims.iter().flatten().any(|&g| g == f);
        if reduced && factor.size > 1 && rule.outputs.iter().all(has) {
            faults.push(RuleFault::ReducedKept { factor: factor.name });
        }
    }
    for (set, members) in rule.linear.iter().enumerate() {
        if members.is_empty() || members.iter().any(|&i| i >= inputs.len()) {
            faults.push(RuleFault::LinearRange { set });
        }
    }
    if let Some(why) = &rule.opaque
        && (why.is_empty() || rule.axis_uses().len() > 1)
    {
        faults.push(RuleFault::Opaque);
    }
    faults
}

fn factors(rule: &FactorRule) -> impl Iterator<Item = (FactorId, &crate::sharding::Factor)> {
    (0..=u8::MAX).map(FactorId).zip(&rule.factors)
}

fn check_operand(
    rule: &FactorRule,
    operand: &str,
    dims: &[Vec<FactorId>],
    ty: &TensorType,
    faults: &mut Vec<RuleFault>,
) {
    let operand = operand.to_string();
    if dims.len() != ty.rank() {
        faults.push(RuleFault::DimCount { operand, rank: ty.rank(), described: dims.len() });
        return;
    }
    let mut seen = vec![false; rule.factors.len()];
    for (dim, (ids, &extent)) in dims.iter().zip(&ty.shape).enumerate() {
        let mut product = 1u64;
        let operand = operand.clone();
        for &factor in ids {
            let Some(f) = rule.factors.get(factor.index()) else {
                faults.push(RuleFault::FactorRange { operand, dim, factor });
                return;
            };
            product = product.saturating_mul(f.size);
            // What no axis splits may stand anywhere.
            if f.kind != FactorKind::Whole && std::mem::replace(&mut seen[factor.index()], true) {
                faults.push(RuleFault::FactorTwice { operand: operand.clone(), factor: f.name });
            }
        }
        if !ids.is_empty() && product != extent {
            faults.push(RuleFault::Product { operand, dim, extent, product });
        }
    }
}
