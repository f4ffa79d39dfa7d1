//! Answers a request without a solver, where its structure allows it.
//!
//! Decisions are eliminated one after the other: all tables that a decision `d` occurs in are joined and
//! minimised over its candidates, which leaves one table over its neighbours (dynamic programming over an
//! elimination order, min-plus algebra). Networks are long and narrow, so the tables stay small in a good
//! order; the order here always takes the decision whose join is the smallest. The answer is an optimum,
//! not an estimate, so it is its own bound.
//!
//! Requests with memory rows, and those whose joins would exceed [`MOST_COMBINATIONS`], are left to the
//! integer program.

use super::request::{Choice, Edge, Request};
use std::collections::BTreeSet;

/// The most combinations that all joins together may go through.
pub const MOST_COMBINATIONS: usize = 1 << 25;

/// Cost over the candidates of some decisions; impossible combinations cost infinity, the zero of
/// min-plus algebra.
struct Table {
    /// Ascending.
    scope: Vec<usize>,
    /// Row-major over the scope.
    us: Vec<f64>,
}

/// A decision's best candidate for each combination of others.
struct Eliminated {
    decision: usize,
    scope: Vec<usize>,
    best: Vec<u32>,
}

/// What elimination comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Elimination {
    /// An optimum and its price.
    Optimum(Choice, f64),
    /// No choice is possible.
    Impossible,
    /// The joins would be too large, or memory is limited.
    TooLarge,
}

/// Eliminates all decisions, if that takes at most `most` combinations.
pub fn eliminate(request: &Request, most: usize) -> Elimination {
    let sizes: Vec<usize> = request.decisions.iter().map(|d| d.cost_us.len()).collect();
    let scopes: Vec<Vec<usize>> = request.edges.iter().map(Edge::decisions).collect();
    if sizes.contains(&0) {
        return Elimination::Impossible;
    }
    let order = if request.memory.rows.is_empty() { order(&sizes, &scopes, most) } else { None };
    let Some(order) = order else { return Elimination::TooLarge };

    let mut tables: Vec<Table> = request.edges.iter().map(|e| edge_table(e, &sizes)).collect();
    for (d, decision) in request.decisions.iter().enumerate() {
        tables.push(Table { scope: vec![d], us: decision.cost_us.clone() });
    }
    let mut steps = Vec::with_capacity(order.len());
    for d in order {
        let (joined, rest) = tables.into_iter().partition(|t| t.scope.contains(&d));
        tables = rest;
        let (table, step) = minimised(&joined, d, &sizes);
        tables.push(table);
        steps.push(step);
    }
    // What is left has no scope: the optimum's price, in parts.
    let price: f64 = tables.iter().flat_map(|t| &t.us).sum();
    if price.is_infinite() {
        return Elimination::Impossible;
    }
    let mut choice = vec![0; sizes.len()];
    for step in steps.iter().rev() {
        let at = step.scope.iter().fold(0, |at, &n| at * sizes[n] + choice[n]);
        choice[step.decision] = step.best[at] as usize;
    }
    Elimination::Optimum(choice, price)
}

/// The order in which each decision's join is the smallest at its turn; `None` if they are too large.
fn order(sizes: &[usize], scopes: &[Vec<usize>], most: usize) -> Option<Vec<usize>> {
    let combinations =
        |scope: &BTreeSet<usize>| scope.iter().fold(1usize, |n, &d| n.saturating_mul(sizes[d]));
    let mut scopes: Vec<BTreeSet<usize>> =
        scopes.iter().map(|s| s.iter().copied().collect()).collect();
    let mut total = scopes.iter().map(&combinations).fold(0, usize::saturating_add);
    let mut left: BTreeSet<usize> = (0..sizes.len()).collect();
    let mut order = Vec::with_capacity(sizes.len());
    while total <= most {
        let join = |d: usize| -> BTreeSet<usize> {
            scopes.iter().filter(|s| s.contains(&d)).flatten().copied().chain([d]).collect()
        };
        let smallest = left.iter().map(|&d| (d, join(d))).min_by_key(|(_, s)| combinations(s));
        let Some((d, mut joined)) = smallest else { return Some(order) };
        total = total.saturating_add(combinations(&joined));
        joined.remove(&d);
        left.remove(&d);
        scopes.retain(|s| !s.contains(&d));
        scopes.push(joined);
        order.push(d);
    }
    None
}

/// An edge's price for all combinations of the decisions that it touches.
fn edge_table(edge: &Edge, sizes: &[usize]) -> Table {
    let scope = edge.decisions();
    let mut at = Odometer::new(&scope, sizes);
    let position = |d: usize| scope.partition_point(|&x| x < d);
    let from = position(edge.from.decision);
    let uses: Vec<usize> = edge.uses.iter().map(|u| position(u.decision)).collect();
    let mut used = Vec::with_capacity(uses.len());
    let mut us = Vec::with_capacity(at.combinations());
    loop {
        let row = &edge.us[edge.from.class[at.coordinates[from]]];
        used.clear();
        used.extend(edge.uses.iter().zip(&uses).map(|(u, &p)| u.class[at.coordinates[p]]));
        used.sort_unstable();
        used.dedup();
        us.push(used.iter().map(|&t| row[t].unwrap_or(f64::INFINITY)).sum());
        if !at.advance() {
            return Table { scope, us };
        }
    }
}

/// Joins tables and minimises the sum over one decision.
fn minimised(tables: &[Table], d: usize, sizes: &[usize]) -> (Table, Eliminated) {
    let all: BTreeSet<usize> = tables.iter().flat_map(|t| t.scope.iter().copied()).collect();
    let scope: Vec<usize> = all.into_iter().filter(|&n| n != d).collect();
    // How far an index into each table moves with each coordinate of the joint scope, and with `d`.
    let strides: Vec<(Vec<usize>, usize)> = tables
        .iter()
        .map(|t| (scope.iter().map(|&n| stride(t, n, sizes)).collect(), stride(t, d, sizes)))
        .collect();
    let mut at = Odometer::new(&scope, sizes);
    let mut us = Vec::with_capacity(at.combinations());
    let mut best = Vec::with_capacity(at.combinations());
    let mut starts = vec![0; tables.len()];
    loop {
        for (start, (by, _)) in starts.iter_mut().zip(&strides) {
            *start = at.coordinates.iter().zip(by).map(|(c, s)| c * s).sum();
        }
        let (mut least, mut argument) = (f64::INFINITY, 0);
        for c in 0..sizes[d] {
            let parts = tables.iter().zip(&starts).zip(&strides);
            let sum: f64 = parts.map(|((t, start), (_, by))| t.us[start + c * by]).sum();
            if sum < least {
                (least, argument) = (sum, c as u32);
            }
        }
        us.push(least);
        best.push(argument);
        if !at.advance() {
            let table = Table { scope: scope.clone(), us };
            return (table, Eliminated { decision: d, scope, best });
        }
    }
}

/// How far an index into a table moves when a decision takes its next candidate; 0 if it is not there.
fn stride(table: &Table, d: usize, sizes: &[usize]) -> usize {
    match table.scope.iter().position(|&n| n == d) {
        Some(p) => table.scope[p + 1..].iter().map(|&n| sizes[n]).product(),
        None => 0,
    }
}

/// Walks all combinations of candidates, the last decision fastest.
struct Odometer {
    coordinates: Vec<usize>,
    sizes: Vec<usize>,
}

impl Odometer {
    fn new(scope: &[usize], sizes: &[usize]) -> Self {
        Self { coordinates: vec![0; scope.len()], sizes: scope.iter().map(|&d| sizes[d]).collect() }
    }

    fn combinations(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The next combination; false after the last.
    fn advance(&mut self) -> bool {
        for (c, &size) in self.coordinates.iter_mut().zip(&self.sizes).rev() {
            *c += 1;
            if *c < size {
                return true;
            }
            *c = 0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::random::{enumerate, request};
    use super::*;

    #[test]
    fn elimination_finds_the_enumerated_optimum() {
        let mut impossible = 0;
        for seed in 0..1500 {
            let request = request(seed, false);
            match (eliminate(&request, MOST_COMBINATIONS), enumerate(&request)) {
                (Elimination::Optimum(choice, price), Some((_, best))) => {
                    assert!((price - best).abs() <= 1e-9 * best.max(1.0), "seed {seed}");
                    let again = request.price(&choice).unwrap();
                    assert!((again - best).abs() <= 1e-9 * best.max(1.0), "seed {seed}");
                }
                (Elimination::Impossible, None) => impossible += 1,
                (found, best) => panic!("seed {seed}: {found:?} against {best:?}"),
            }
        }
        assert!(impossible > 50);
    }

    #[test]
    fn what_is_too_large_is_left_alone() {
        let (free, limited) = (request(1, false), request(1, true));
        assert_eq!(eliminate(&free, 3), Elimination::TooLarge);
        assert_eq!(eliminate(&limited, MOST_COMBINATIONS), Elimination::TooLarge);
    }
}
