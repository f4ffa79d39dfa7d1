//! Candidates that another one beats in all circumstances (dead-end elimination).
//!
//! Candidate `a` of a decision is dominated by `b` if
//!
//! 1. `cost[b] - cost[a] + Σ_edges max over the others (edge with b - edge with a) ≤ 0`, and
//! 2. in no memory row, whatever the others choose, `b` holds more than `a` ([`holds_no_more`]).
//!
//! Then replacing `a` by `b` in any choice makes it neither dearer nor larger, so some optimum does
//! without `a`. Candidates are removed one at a time, each by one that is still there.

use super::reduce::{Table, Work};
use super::request::{Edge, End, Memory};
use std::collections::BTreeSet;

/// Removes dominated candidates; says whether there were any.
pub(super) fn remove_dominated(work: &mut Work, memory: &Memory) -> bool {
    let held = Held::new(work, memory);
    let mut changed = false;
    for d in (0..work.cost.len()).filter(|&d| !work.done[d]).collect::<Vec<_>>() {
        let tables: Vec<(Vec<usize>, Table)> = work
            .neighbours(d)
            .into_iter()
            .filter_map(|n| Some((work.live(n), work.table(n, d)?.transposed())))
            .collect();
        let wide: Vec<(usize, Edge)> = (0..)
            .zip(&work.wide)
            .filter(|(_, e)| e.decisions().contains(&d))
            .map(|(i, e)| (i, e.clone()))
            .collect();
        for a in work.live(d) {
            let beaten = work.live(d).into_iter().filter(|&b| b != a).any(|b| {
                let mut margin = work.cost[d][b] - work.cost[d][a];
                for (live, table) in &tables {
                    margin += worst(live.iter().map(|&j| (table.at(a, j), table.at(b, j))));
                }
                for (_, edge) in &wide {
                    margin += worst_wide(work, edge, d, a, b);
                }
                margin <= 0.0 && holds_no_more(work, memory, &held, &wide, d, a, b)
            });
            if beaten {
                work.cost[d][a] = f64::INFINITY;
                changed = true;
            }
        }
    }
    changed
}

/// The most that `b` can exceed `a` over all circumstances in which `a` is possible.
fn worst(costs: impl Iterator<Item = (f64, f64)>) -> f64 {
    costs.filter(|(a, _)| a.is_finite()).map(|(a, b)| b - a).fold(f64::NEG_INFINITY, f64::max)
}

/// The same for an edge of many decisions: at least what candidate `b` of `d` can exceed `a`.
fn worst_wide(work: &Work, edge: &Edge, d: usize, a: usize, b: usize) -> f64 {
    let ends = || std::iter::once(&edge.from).chain(&edge.uses);
    if ends().filter(|e| e.decision == d).all(|e| e.class[a] == e.class[b]) {
        return 0.0;
    }
    if ends().filter(|e| e.decision == d).count() > 1 {
        return f64::INFINITY;
    }
    let cost = |h: usize, t: usize| edge.us[h][t].unwrap_or(f64::INFINITY);
    if edge.from.decision == d {
        let (ha, hb) = (edge.from.class[a], edge.from.class[b]);
        // Every use adds its own class at most once.
        let by_use: Vec<f64> = edge
            .uses
            .iter()
            .map(|u| {
                worst(
                    classes_of(work, std::iter::once(u))
                        .into_iter()
                        .map(|t| (cost(ha, t), cost(hb, t))),
                )
            })
            .collect();
        return if by_use.iter().any(|&x| x > 0.0) {
            by_use.iter().map(|x| x.max(0.0)).sum()
        } else {
            by_use.into_iter().fold(f64::INFINITY, f64::min)
        };
    }
    let Some(own) = edge.uses.iter().find(|u| u.decision == d) else { return 0.0 };
    let (ta, tb) = (own.class[a], own.class[b]);
    let others: BTreeSet<usize> = classes_of(work, edge.uses.iter().filter(|u| u.decision != d));
    // Where another use may need class `a` too, giving it up saves nothing.
    let saved = |x: f64| if others.contains(&ta) && x.is_finite() { 0.0 } else { x };
    worst(
        classes_of(work, std::iter::once(&edge.from))
            .into_iter()
            .map(|h| (saved(cost(h, ta)), cost(h, tb))),
    )
}

/// What occurs in memory rows.
struct Held {
    /// By decision: its homes.
    homes: Vec<Vec<usize>>,
    /// By wide edge: its form.
    forms: Vec<Option<usize>>,
}

impl Held {
    fn new(work: &Work, memory: &Memory) -> Self {
        let mut held =
            Self { homes: vec![Vec::new(); work.cost.len()], forms: vec![None; work.wide.len()] };
        let homes: BTreeSet<usize> =
            memory.rows.iter().flat_map(|r| &r.homes).map(|&(h, _)| h).collect();
        for h in homes {
            held.homes[memory.homes[h].decision].push(h);
        }
        for &(f, _) in memory.rows.iter().flat_map(|r| &r.forms) {
            held.forms[memory.forms[f].edge] = Some(f);
        }
        held
    }
}

/// Whether candidate `b` never holds more than `a`, in any home and any form.
fn holds_no_more(
    work: &Work,
    memory: &Memory,
    held: &Held,
    wide: &[(usize, Edge)],
    d: usize,
    a: usize,
    b: usize,
) -> bool {
    let homes = held.homes[d].iter().all(|&h| memory.homes[h].bytes[b] <= memory.homes[h].bytes[a]);
    homes
        && wide.iter().all(|(i, edge)| {
            let Some(form) = held.forms[*i] else { return true };
            form_holds_no_more(work, edge, &memory.forms[form].bytes, d, a, b)
        })
}

fn form_holds_no_more(
    work: &Work,
    edge: &Edge,
    bytes: &[Vec<u64>],
    d: usize,
    a: usize,
    b: usize,
) -> bool {
    let own: Vec<&End> =
        std::iter::once(&edge.from).chain(&edge.uses).filter(|e| e.decision == d).collect();
    if own.iter().all(|e| e.class[a] == e.class[b]) {
        return true;
    }
    let [end] = *own else { return false };
    let (of_a, of_b) = (end.class[a], end.class[b]);
    let others = classes_of(work, edge.uses.iter().filter(|u| u.decision != d));
    if edge.from.decision == d {
        return others.iter().all(|&t| bytes[of_b][t] <= bytes[of_a][t]);
    }
    // Where another use may need class `a` too, giving it up frees nothing.
    classes_of(work, std::iter::once(&edge.from)).iter().all(|&h| {
        let freed = if others.contains(&of_a) { 0 } else { bytes[h][of_a] };
        bytes[h][of_b] <= freed
    })
}

/// The classes that some of these ends may still take.
fn classes_of<'a>(work: &Work, ends: impl Iterator<Item = &'a End>) -> BTreeSet<usize> {
    ends.flat_map(|e| work.live(e.decision).into_iter().map(|c| e.class[c])).collect()
}
