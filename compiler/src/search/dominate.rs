//! Candidates that another one beats in all circumstances (dead-end elimination).
//!
//! Candidate `a` of a decision is dominated by `b` if
//! `cost[b] - cost[a] + Σ_edges max over the others (edge with b - edge with a) ≤ 0`: replacing `a` by
//! `b` never makes a choice dearer, so some optimum does without `a`. Candidates are removed one at a
//! time, each because of one that is still there.

use super::reduce::Work;
use super::request::{Edge, End};

/// Removes dominated candidates; says whether there were any.
pub(super) fn remove_dominated(work: &mut Work) -> bool {
    let mut changed = false;
    for d in 0..work.cost.len() {
        if work.done[d] {
            continue;
        }
        let mut tables = work.tables(d);
        for (other, table) in &mut tables {
            table.keep_columns(&work.live(*other));
        }
        let wide: Vec<Wide<'_>> = work
            .wide
            .iter()
            .filter(|e| e.decisions().contains(&d))
            .map(|e| Wide::new(work, e, d))
            .collect();
        let cost = &work.cost[d];
        let beats = |b: usize, a: usize| {
            let own = cost[b] - cost[a];
            let by_table = tables.iter().map(|(_, t)| worst(t.row(a), t.row(b)));
            let by_edge = wide.iter().map(|w| w.worst(a, b));
            own + by_table.sum::<f64>() + by_edge.sum::<f64>() <= 0.0
        };
        let mut live = work.live(d);
        let mut i = 0;
        while i < live.len() {
            if live.iter().any(|&b| b != live[i] && beats(b, live[i])) {
                live.remove(i);
            } else {
                i += 1;
            }
        }
        drop(wide);
        for (c, cost) in work.cost[d].iter_mut().enumerate() {
            if cost.is_finite() && !live.contains(&c) {
                *cost = f64::INFINITY;
                changed = true;
            }
        }
    }
    changed
}

/// The most that `b` can exceed `a` over all circumstances in which `a` is possible.
fn worst(a: &[f64], b: &[f64]) -> f64 {
    let possible = a.iter().zip(b).filter(|(a, _)| a.is_finite());
    possible.map(|(a, b)| b - a).fold(f64::NEG_INFINITY, f64::max)
}

/// An edge of many decisions as one of them sees it.
struct Wide<'a> {
    edge: &'a Edge,
    /// Where the decision meets the edge.
    own: Vec<&'a End>,
    /// Whether it is the maker.
    makes: bool,
    /// Classes that the maker may still take.
    from: Vec<usize>,
    /// Classes that each use of another decision may still take.
    others: Vec<Vec<usize>>,
}

impl<'a> Wide<'a> {
    fn new(work: &Work, edge: &'a Edge, d: usize) -> Self {
        let live = |e: &End| {
            let mut all: Vec<usize> =
                work.live(e.decision).into_iter().map(|c| e.class[c]).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let ends = std::iter::once(&edge.from).chain(&edge.uses);
        Self {
            edge,
            own: ends.filter(|e| e.decision == d).collect(),
            makes: edge.from.decision == d,
            from: live(&edge.from),
            others: edge.uses.iter().filter(|u| u.decision != d).map(live).collect(),
        }
    }

    /// At least the most that `b` can exceed `a`.
    fn worst(&self, a: usize, b: usize) -> f64 {
        if self.own.iter().all(|e| e.class[a] == e.class[b]) {
            return 0.0;
        }
        let [end] = *self.own else { return f64::INFINITY };
        let (of_a, of_b) = (end.class[a], end.class[b]);
        let us = |h: usize, t: usize| self.edge.us[h][t].unwrap_or(f64::INFINITY);
        if self.makes {
            // Every use adds its own class at most once.
            let row = |h: usize, u: &[usize]| u.iter().map(|&t| us(h, t)).collect::<Vec<_>>();
            let by_use: Vec<f64> =
                self.others.iter().map(|u| worst(&row(of_a, u), &row(of_b, u))).collect();
            return if by_use.iter().any(|&x| x > 0.0) {
                by_use.iter().map(|x| x.max(0.0)).sum()
            } else {
                by_use.into_iter().fold(f64::INFINITY, f64::min)
            };
        }
        // Where another use may need class `a` too, giving it up saves nothing.
        let shared = self.others.iter().any(|u| u.contains(&of_a));
        let saved = |x: f64| if shared && x.is_finite() { 0.0 } else { x };
        let with_a: Vec<f64> = self.from.iter().map(|&h| saved(us(h, of_a))).collect();
        let with_b: Vec<f64> = self.from.iter().map(|&h| us(h, of_b)).collect();
        worst(&with_a, &with_b)
    }
}
