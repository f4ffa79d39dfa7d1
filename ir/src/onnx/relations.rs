//! Relations between symbolic dimensions that a file does not state: `total_seq` is `past_seq + 1`.
//!
//! Extents are numbers everywhere in the IR, so relations are found by trying. A name without a value
//! gets a number that nothing else has; where shapes then contradict each other, the contradiction says
//! which number it should have been: its extents are taken to be affine in the name, and a second number
//! gives the slope. Known indices that lie outside of what they pick from are a contradiction too; the
//! name is then as small as it can be. What is found is kept only if the import gets past the
//! contradiction with it. The expression in the other names comes from varying each of them twice: what
//! does not move alike both times is not affine, and not kept.

use super::error::ImportError;
use crate::OpError;
use crate::graph::{Extents, Graph};
use crate::ops::Op;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Values of symbolic dimensions.
pub(super) type Bindings = BTreeMap<String, u64>;

/// Numbers to try for names without a value: small, since a file may cut off what is too long
/// rather than contradict itself.
const PROBES: [u64; 8] = [2, 3, 5, 7, 4, 6, 11, 13];

/// Given values below this are not used.
const LEAST_USEFUL: u64 = 8;

/// Numbers that stand in for given values that are of no use: not too large for tables of positions.
const STAND_INS: [u64; 8] = [29, 23, 31, 37, 41, 43, 47, 53];

/// More names than this are not solved for.
const MAX_NAMES: usize = 6;

/// What one symbolic dimension is in terms of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Its value under the bindings.
    pub value: u64,
    /// The same as an expression: `past_seq + 1`.
    pub expression: String,
}

/// Imports under bindings, for its errors.
type Attempt<'a> = dyn Fn(&Bindings) -> Result<(), ImportError> + 'a;

/// Whether all known indices lie inside of what they pick from.
pub(super) fn reach(graph: &Graph) -> Result<(), ImportError> {
    for node in &graph.nodes {
        let [data, indices] = node.inputs[..] else { continue };
        let (Some(indices), Extents::Static) =
            (graph.constant_of(indices), graph.value(data).extents)
        else {
            continue;
        };
        let shape = &graph.ty(data).shape;
        // Which dimensions the numbers of an index pick along.
        let picked = match &node.op {
            Op::Gather(gather) => &shape[gather.axis..=gather.axis],
            Op::GatherNd(gather) if gather.batch_dims == 0 => {
                let width = indices.shape().last().map_or(0, |&n| n as usize);
                &shape[..width.min(shape.len())]
            }
            _ => continue,
        };
        for (i, &extent) in picked.iter().enumerate() {
            let numbers = (i..indices.len()).step_by(picked.len());
            let most = numbers.map(|at| indices.int_at(at)).max().unwrap_or(-1);
            let needed = u64::try_from(most + 1).unwrap_or(0);
            if needed > extent {
                let why = "an index lies outside";
                let source = OpError::ShapeMismatch { lhs: vec![needed], rhs: vec![extent], why };
                let (node, op_type) = (node.name.clone(), node.op.name().to_string());
                return Err(ImportError::Op { node, op_type, source });
            }
        }
    }
    Ok(())
}

/// What follows for `names` from the values in `bind`. Names that nothing follows for are left out.
pub(super) fn solve(
    names: &[String],
    bind: &Bindings,
    attempt: &Attempt<'_>,
) -> BTreeMap<String, Relation> {
    if names.len() > MAX_NAMES || bind.len() > MAX_NAMES {
        return BTreeMap::new();
    }
    let base = distinct(bind);
    let Some(at_base) = values(names, &base, attempt) else { return BTreeMap::new() };
    // How the values move with each bound name.
    let mut slopes: BTreeMap<&String, Vec<(&String, i128)>> = BTreeMap::new();
    for (name, &value) in &base {
        let larger = (1..=base.len() as u64 + 1).filter_map(|by| value.checked_add(by));
        let mut others = larger.filter(|n| base.values().all(|v| v != n));
        let (Some(near), Some(far)) = (others.next(), others.next()) else {
            return BTreeMap::new();
        };
        let moved = |to: u64| {
            let mut moved = base.clone();
            moved.insert(name.clone(), to);
            values(names, &moved, attempt)
        };
        let (Some(at_near), Some(at_far)) = (moved(near), moved(far)) else {
            return BTreeMap::new();
        };
        for (solved, &before) in &at_base {
            let slope = |at: &Bindings, to: u64| {
                let (rise, run) = (difference(*at.get(solved)?, before), difference(to, value));
                (rise % run == 0).then_some(rise / run)
            };
            match (slope(&at_near, near), slope(&at_far, far)) {
                (Some(a), Some(b)) if a == b => {
                    slopes.entry(solved).or_default().extend((a != 0).then_some((name, a)));
                }
                _ => return BTreeMap::new(),
            }
        }
    }
    let relation = |(solved, &before): (&String, &u64)| {
        let terms = slopes.get(solved).map_or(&[][..], Vec::as_slice);
        let at = |values: &Bindings| -> i128 {
            terms.iter().map(|(name, slope)| slope * i128::from(values[*name])).sum()
        };
        let constant = i128::from(before) - at(&base);
        let value = u64::try_from(at(bind) + constant).ok()?;
        Some((solved.clone(), Relation { value, expression: expression(terms, constant) }))
    };
    at_base.iter().filter_map(relation).collect()
}

/// The bindings with every value changed that is of no use: 1 broadcasts, small ones may be what is
/// tried, and equal ones say nothing.
fn distinct(bind: &Bindings) -> Bindings {
    let mut base = Bindings::new();
    for (name, &value) in bind {
        let is_taken = |n: u64| base.values().any(|&v| v == n);
        let usable = (LEAST_USEFUL..u64::MAX).contains(&value) && !is_taken(value);
        let given = |n: u64| bind.values().any(|&v| v == n);
        let stand_in = STAND_INS.iter().find(|&&n| !is_taken(n) && !given(n));
        let value = if usable { value } else { stand_in.copied().unwrap_or(value) };
        base.insert(name.clone(), value);
    }
    base
}

/// A number to try that is no name's value, and not `other`.
fn fresh(bind: &Bindings, other: u64) -> u64 {
    let free = |p: &&u64| **p != other && bind.values().all(|v| v != *p);
    PROBES.iter().find(free).copied().unwrap_or(other.saturating_add(1))
}

/// The values that `names` must have under `bind`; `None` if the import fails for another reason.
fn values(names: &[String], bind: &Bindings, attempt: &Attempt<'_>) -> Option<Bindings> {
    let mut trial = bind.clone();
    for name in names {
        let probe = fresh(&trial, 0);
        trial.insert(name.clone(), probe);
    }
    let mut solved = Bindings::new();
    loop {
        let contradiction = match attempt(&trial) {
            Ok(()) => return Some(solved),
            Err(e) => Contradiction::of(e)?,
        };
        let mut open = names.iter().filter(|name| !solved.contains_key(*name));
        let (name, value) = open.find_map(|n| resolve(n, &contradiction, &trial, attempt))?;
        trial.insert(name.clone(), value);
        solved.insert(name.clone(), value);
    }
}

/// Two shapes that a node cannot reconcile.
struct Contradiction {
    node: String,
    lhs: Vec<u64>,
    rhs: Vec<u64>,
}

impl Contradiction {
    fn of(error: ImportError) -> Option<Self> {
        match error {
            ImportError::Op { node, source: OpError::ShapeMismatch { lhs, rhs, .. }, .. } => {
                Some(Self { node, lhs, rhs })
            }
            _ => None,
        }
    }

    /// Pairs of extents that may have to be equal, those at the same distance from the end first.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let (l, r) = (self.lhs.len(), self.rhs.len());
        let mut pairs: Vec<(usize, usize)> =
            (0..l).flat_map(|i| (0..r).map(move |j| (i, j))).collect();
        pairs.sort_by_key(|&(i, j)| (l - i).abs_diff(r - j));
        pairs
    }
}

/// The value of `name` under which a contradiction goes away.
fn resolve<'a>(
    name: &'a String,
    contradiction: &Contradiction,
    trial: &Bindings,
    attempt: &Attempt<'_>,
) -> Option<(&'a String, u64)> {
    let probe = trial[name];
    let other = fresh(trial, probe);
    let with = |value: u64| {
        let mut bind = trial.clone();
        bind.insert(name.clone(), value);
        bind
    };
    let moved = Contradiction::of(attempt(&with(other)).err()?)?;
    let shapes = |c: &Contradiction| (c.lhs.len(), c.rhs.len());
    if moved.node != contradiction.node || shapes(&moved) != shapes(contradiction) {
        return None;
    }
    let run = difference(other, probe);
    let candidates = contradiction.pairs().into_iter().filter_map(|(i, j)| {
        let (x, y) = (contradiction.lhs[i], contradiction.rhs[j]);
        let (dx, dy) = (difference(moved.lhs[i], x), difference(moved.rhs[j], y));
        // x + dx/run · (value - probe) = y + dy/run · (value - probe)
        let (rise, gap) = (dx - dy, difference(y, x) * run);
        let whole = rise != 0 && gap != 0 && gap % rise == 0;
        let value = if whole { i128::from(probe) + gap / rise } else { 0 };
        let aligned = contradiction.lhs.len() - i == contradiction.rhs.len() - j;
        u64::try_from(value).ok().filter(|&v| v > 0).map(|v| (v, aligned))
    });
    // Another dimension of the node may still be wrong where extents are compared one by one.
    let helps = |&(value, aligned): &(u64, bool)| match attempt(&with(value)) {
        Ok(()) => true,
        Err(e) => Contradiction::of(e).is_some_and(|c| aligned || c.node != contradiction.node),
    };
    candidates.take(4).find(helps).map(|(value, _)| (name, value))
}

fn difference(a: u64, b: u64) -> i128 {
    i128::from(a) - i128::from(b)
}

/// `2*batch + past_seq + 1`.
fn expression(terms: &[(&String, i128)], constant: i128) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    for &(name, slope) in terms {
        let _ = match (slope, out.is_empty()) {
            (1, true) => write!(out, "{name}"),
            (1, false) => write!(out, " + {name}"),
            (-1, true) => write!(out, "-{name}"),
            (-1, false) => write!(out, " - {name}"),
            (n, true) => write!(out, "{n}*{name}"),
            (n, false) if n < 0 => write!(out, " - {}*{name}", -n),
            (n, false) => write!(out, " + {n}*{name}"),
        };
    }
    let _ = match constant {
        n if out.is_empty() => write!(out, "{n}"),
        0 => Ok(()),
        n if n < 0 => write!(out, " - {}", -n),
        n => write!(out, " + {n}"),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(pairs: &[(&str, u64)]) -> Bindings {
        pairs.iter().map(|(n, v)| ((*n).to_string(), *v)).collect()
    }

    /// A model whose node `n` needs these shapes to be equal.
    fn model(
        sides: impl Fn(&Bindings) -> (Vec<u64>, Vec<u64>),
    ) -> impl Fn(&Bindings) -> Result<(), ImportError> {
        move |b| {
            let (lhs, rhs) = sides(b);
            if lhs == rhs {
                return Ok(());
            }
            let source = OpError::ShapeMismatch { lhs, rhs, why: "they differ" };
            Err(ImportError::Op { node: "n".into(), op_type: "Add".into(), source })
        }
    }

    fn solved(
        names: &[&str],
        bound: &Bindings,
        attempt: &Attempt<'_>,
    ) -> Vec<(String, u64, String)> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let relations = solve(&names, bound, attempt);
        relations.into_iter().map(|(n, r)| (n, r.value, r.expression)).collect()
    }

    #[test]
    fn affine_relations_are_found() {
        let attempt = model(|b| (vec![b["batch"], b["total"]], vec![b["batch"], b["past"] + 1]));
        for past in [1, 2, 8, 100] {
            let bound = bind(&[("batch", 1), ("past", past)]);
            let expected = [("total".to_string(), past + 1, "past + 1".to_string())];
            assert_eq!(solved(&["total"], &bound, &attempt), expected);
        }
        let bound = bind(&[("batch", 2), ("total", 9)]);
        let expected = [("past".to_string(), 8, "total - 1".to_string())];
        assert_eq!(solved(&["past"], &bound, &attempt), expected);
    }

    #[test]
    fn products_and_several_names() {
        let attempt = model(|b| (vec![3 * b["x"], b["y"]], vec![6 * b["z"] + 9, b["z"]]));
        let expected =
            [("x".to_string(), 13, "2*z + 3".to_string()), ("y".to_string(), 5, "z".to_string())];
        assert_eq!(solved(&["x", "y"], &bind(&[("z", 5)]), &attempt), expected);
    }

    #[test]
    fn what_is_free_stays_free() {
        let attempt = model(|b| (vec![b["x"]], vec![b["x"]]));
        assert_eq!(solved(&["y"], &bind(&[("x", 5)]), &attempt), []);
    }

    #[test]
    fn what_is_not_affine_is_not_kept() {
        let attempt = model(|b| (vec![b["x"] * b["x"]], vec![b["y"]]));
        for x in [5, 40] {
            assert_eq!(solved(&["y"], &bind(&[("x", x)]), &attempt), []);
        }
    }
}
