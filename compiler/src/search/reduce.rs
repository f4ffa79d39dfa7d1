//! Makes a [`Request`] smaller without changing its optimum.
//!
//! For requests without memory rows; others stay as they are. Applied until nothing changes, the first
//! that applies first:
//!
//! 1. [`fold_edges`]: an edge that touches two decisions is a table over their candidates, one that
//!    touches a single decision is part of its cost; a use that has one class left is paid by the
//!    maker.
//! 2. [`contract`]: a decision tied to at most two others is replaced by what its best answer costs
//!    them: `table[i][j] = min_c (cost[c] + to_i[c][i] + to_j[c][j])` (min-plus contraction).
//! 3. [`remove_dominated`]: candidate `a` goes if some `b` of the same decision is no dearer *whatever
//!    all others choose*.
//!
//! Chains of elementwise and layout ops, weights and constants disappear in this way; what is left is
//! the core that the solver must decide. [`Reduced::restore`] undoes the steps for an answer.
//!
//! Inside this module an impossible combination costs infinity: that is the zero of min-plus algebra,
//! and no infinity leaves it.

use super::dominate::remove_dominated;
use super::request::{Choice, Decision, Edge, End, Request};
use std::collections::{BTreeMap, BTreeSet};

/// A smaller request with the same optimum.
pub struct Reduced {
    /// What is left to decide.
    pub request: Request,
    /// What the optimum of `request` lacks to that of the original.
    pub constant_us: f64,
    /// For each decision of `request`, the original decision and its remaining candidates.
    kept: Vec<(usize, Vec<usize>)>,
    steps: Vec<Contraction>,
    decisions: usize,
}

/// A decision that was answered in advance, for each combination of its neighbours' candidates.
struct Contraction {
    decision: usize,
    neighbours: Vec<usize>,
    /// Row-major over the neighbours' candidates.
    best: Vec<usize>,
    /// Candidates of the last neighbour.
    columns: usize,
}

/// Cost over the candidates of two decisions.
#[derive(Clone)]
pub(super) struct Table {
    columns: usize,
    us: Vec<f64>,
}

impl Table {
    fn at(&self, row: usize, column: usize) -> f64 {
        self.us[row * self.columns + column]
    }

    pub(super) fn row(&self, row: usize) -> &[f64] {
        &self.us[row * self.columns..(row + 1) * self.columns]
    }

    /// Drops all other columns.
    pub(super) fn keep_columns(&mut self, columns: &[usize]) {
        let rows = self.us.len() / self.columns.max(1);
        self.us = (0..rows)
            .flat_map(|i| columns.iter().map(move |&j| (i, j)))
            .map(|(i, j)| self.at(i, j))
            .collect();
        self.columns = columns.len();
    }

    fn transposed(&self) -> Self {
        let rows = self.us.len() / self.columns.max(1);
        let us = (0..self.columns).flat_map(|j| (0..rows).map(move |i| self.at(i, j))).collect();
        Self { columns: rows, us }
    }
}

/// The request while it is taken apart. Candidates keep their numbers; removed ones cost infinity.
pub(super) struct Work {
    pub(super) cost: Vec<Vec<f64>>,
    pub(super) done: Vec<bool>,
    /// Keys in ascending order; rows belong to the first.
    pairs: BTreeMap<(usize, usize), Table>,
    /// For each decision, those that it has a table with.
    links: Vec<BTreeSet<usize>>,
    /// Edges that touch three decisions or more.
    pub(super) wide: Vec<Edge>,
    steps: Vec<Contraction>,
    constant_us: f64,
}

impl Reduced {
    /// Reduces a request; `None` if no choice is possible at all.
    pub fn new(request: &Request) -> Option<Self> {
        let decisions = request.decisions.len();
        let mut work = Work {
            cost: request.decisions.iter().map(|d| d.cost_us.clone()).collect(),
            done: vec![false; decisions],
            pairs: BTreeMap::new(),
            links: vec![BTreeSet::new(); decisions],
            wide: request.edges.clone(),
            steps: Vec::new(),
            constant_us: 0.0,
        };
        if request.memory.rows.is_empty() {
            while fold_edges(&mut work) || contract(&mut work)? || remove_dominated(&mut work) {}
        }
        let possible = |d: usize| work.done[d] || !work.live(d).is_empty();
        (0..decisions).all(possible).then(|| work.finish(request))
    }

    /// Leaves a request as it is.
    pub fn unchanged(request: &Request) -> Self {
        let candidates = |d: &Decision| (0..d.cost_us.len()).collect();
        Self {
            request: request.clone(),
            constant_us: 0.0,
            kept: request.decisions.iter().map(candidates).enumerate().collect(),
            steps: Vec::new(),
            decisions: request.decisions.len(),
        }
    }

    /// The original's choice that belongs to a choice of the smaller request.
    pub fn restore(&self, choice: &[usize]) -> Choice {
        let mut full = vec![0; self.decisions];
        for ((decision, candidates), &c) in self.kept.iter().zip(choice) {
            full[*decision] = candidates[c];
        }
        for step in self.steps.iter().rev() {
            full[step.decision] = match *step.neighbours {
                [] => step.best[0],
                [i] => step.best[full[i]],
                [i, j, ..] => step.best[full[i] * step.columns + full[j]],
            };
        }
        full
    }

    /// What is left to choose of a choice of the original; `None` if it takes a removed candidate.
    pub fn project(&self, full: &[usize]) -> Option<Choice> {
        let position =
            |(d, candidates): &(usize, Vec<usize>)| candidates.iter().position(|&c| c == full[*d]);
        self.kept.iter().map(position).collect()
    }
}

impl Work {
    pub(super) fn live(&self, decision: usize) -> Vec<usize> {
        let cost = &self.cost[decision];
        (0..cost.len()).filter(|&c| cost[c].is_finite()).collect()
    }

    /// The tables that a decision is part of, with rows for its candidates, and the other decisions.
    pub(super) fn tables(&self, decision: usize) -> Vec<(usize, Table)> {
        let table = |&other: &usize| {
            let table = if decision < other {
                self.pairs.get(&(decision, other))?.clone()
            } else {
                self.pairs.get(&(other, decision))?.transposed()
            };
            Some((other, table))
        };
        self.links[decision].iter().filter_map(table).collect()
    }

    fn add_pair(&mut self, row: usize, column: usize, table: Table) {
        let (key, table) =
            if row < column { ((row, column), table) } else { ((column, row), table.transposed()) };
        if let Some(sum) = self.pairs.get_mut(&key) {
            sum.us.iter_mut().zip(&table.us).for_each(|(a, b)| *a += b);
        } else {
            self.pairs.insert(key, table);
            self.links[row].insert(column);
            self.links[column].insert(row);
        }
    }

    fn remove_pair(&mut self, a: usize, b: usize) {
        self.pairs.remove(&(a.min(b), a.max(b)));
        self.links[a].remove(&b);
        self.links[b].remove(&a);
    }

    fn finish(self, request: &Request) -> Reduced {
        let mut kept = Vec::new();
        let mut number = vec![0; self.cost.len()];
        let mut decisions = Vec::new();
        for d in (0..self.cost.len()).filter(|&d| !self.done[d]) {
            let live = self.live(d);
            number[d] = kept.len();
            decisions.push(Decision {
                name: request.decisions[d].name.clone(),
                cost_us: live.iter().map(|&c| self.cost[d][c]).collect(),
            });
            kept.push((d, live));
        }
        let end = |e: &End| End {
            decision: number[e.decision],
            class: kept[number[e.decision]].1.iter().map(|&c| e.class[c]).collect(),
        };
        let wide = self.wide.iter().map(|e| Edge {
            from: end(&e.from),
            uses: e.uses.iter().map(end).collect(),
            us: e.us.clone(),
        });
        let pairs = self.pairs.iter().map(|(&(a, b), table)| {
            let (a, b) = (number[a], number[b]);
            pair_edge(a, &kept[a].1, b, &kept[b].1, table)
        });
        let edges = wide.chain(pairs).collect();
        Reduced {
            request: Request { decisions, edges, memory: request.memory.clone() },
            constant_us: self.constant_us,
            kept,
            steps: self.steps,
            decisions: self.cost.len(),
        }
    }
}

/// A table as an edge: equal rows are one class, and so are equal columns.
fn pair_edge(a: usize, a_live: &[usize], b: usize, b_live: &[usize], table: &Table) -> Edge {
    let rows: Vec<Vec<u64>> = a_live
        .iter()
        .map(|&i| b_live.iter().map(|&j| table.at(i, j).to_bits()).collect())
        .collect();
    let columns: Vec<Vec<u64>> =
        (0..b_live.len()).map(|j| rows.iter().map(|r| r[j]).collect()).collect();
    let (a_class, a_first) = classes(&rows);
    let (b_class, b_first) = classes(&columns);
    let price = |i: usize, j: usize| table.at(a_live[i], b_live[j]);
    let us = a_first
        .iter()
        .map(|&i| b_first.iter().map(|&j| Some(price(i, j)).filter(|x| x.is_finite())).collect())
        .collect();
    let from = End { decision: a, class: a_class };
    Edge { from, uses: vec![End { decision: b, class: b_class }], us }
}

/// Numbers equal items alike; returns each item's class and each class's first item.
fn classes(items: &[Vec<u64>]) -> (Vec<usize>, Vec<usize>) {
    let mut numbers = BTreeMap::new();
    let mut first = Vec::new();
    let class = items.iter().enumerate().map(|(i, item)| {
        *numbers.entry(item).or_insert_with(|| {
            first.push(i);
            first.len() - 1
        })
    });
    (class.collect(), first)
}

/// 1. Turns edges that touch one or two decisions into costs and tables.
fn fold_edges(work: &mut Work) -> bool {
    let before = work.wide.len();
    for mut edge in std::mem::take(&mut work.wide) {
        drop_settled_uses(work, &mut edge);
        match *edge.decisions() {
            [d] => {
                for c in 0..work.cost[d].len() {
                    work.cost[d][c] += price(&edge, &[(d, c)]);
                }
            }
            [a, b] => {
                let columns = work.cost[b].len();
                let us = (0..work.cost[a].len())
                    .flat_map(|i| (0..columns).map(move |j| (i, j)))
                    .map(|(i, j)| price(&edge, &[(a, i), (b, j)]))
                    .collect();
                work.add_pair(a, b, Table { columns, us });
            }
            _ => work.wide.push(edge),
        }
    }
    work.wide.len() != before
}

/// A use whose decision has one class left costs the maker alone, and then comes free for the rest.
fn drop_settled_uses(work: &mut Work, edge: &mut Edge) {
    let mut uses: Vec<End> = Vec::new();
    for end in std::mem::take(&mut edge.uses) {
        let mut left = work.live(end.decision).into_iter().map(|c| end.class[c]);
        let first = left.next();
        match first {
            Some(t) if left.all(|other| other == t) => {
                for (cost, &h) in work.cost[edge.from.decision].iter_mut().zip(&edge.from.class) {
                    *cost += edge.us[h][t].unwrap_or(f64::INFINITY);
                }
                for row in &mut edge.us {
                    row[t] = row[t].map(|_| 0.0);
                }
            }
            _ if uses.contains(&end) => {}
            _ => uses.push(end),
        }
    }
    edge.uses = uses;
}

/// An edge's price when the decisions that it touches are set.
fn price(edge: &Edge, set: &[(usize, usize)]) -> f64 {
    let class =
        |e: &End| set.iter().find(|(d, _)| *d == e.decision).map_or(0, |&(_, c)| e.class[c]);
    let row = &edge.us[class(&edge.from)];
    let used: BTreeSet<usize> = edge.uses.iter().map(class).collect();
    used.into_iter().map(|t| row[t].unwrap_or(f64::INFINITY)).sum()
}

/// 2. Answers decisions with at most two neighbours in advance. `None` if one has no candidate.
fn contract(work: &mut Work) -> Option<bool> {
    let mut wide = vec![false; work.cost.len()];
    for d in work.wide.iter().flat_map(Edge::decisions) {
        wide[d] = true;
    }
    let mut changed = false;
    loop {
        let before = work.steps.len();
        for (d, &wide) in wide.iter().enumerate() {
            if !work.done[d] && !wide && work.links[d].len() <= 2 {
                contract_one(work, d)?;
            }
        }
        if work.steps.len() == before {
            return Some(changed);
        }
        changed = true;
    }
}

fn contract_one(work: &mut Work, d: usize) -> Option<()> {
    let live = work.live(d);
    live.first()?;
    let tables = work.tables(d);
    let neighbours: Vec<usize> = tables.iter().map(|(n, _)| *n).collect();
    let columns = neighbours.last().map_or(1, |&n| work.cost[n].len());
    let combinations: usize = neighbours.iter().map(|&n| work.cost[n].len()).product();
    let (mut best, mut us) = (Vec::new(), Vec::new());
    for combination in 0..combinations {
        let at = match tables.len() {
            2 => [combination / columns, combination % columns],
            _ => [combination, 0],
        };
        let (mut choice, mut least) = (live[0], f64::INFINITY);
        for &c in &live {
            let edges: f64 = tables.iter().zip(at).map(|((_, t), i)| t.at(c, i)).sum();
            let total = work.cost[d][c] + edges;
            if total < least {
                (choice, least) = (c, total);
            }
        }
        best.push(choice);
        us.push(least);
    }
    for &n in &neighbours {
        work.remove_pair(n, d);
    }
    match *neighbours {
        [] if us[0].is_infinite() => return None,
        [] => work.constant_us += us[0],
        [n] => work.cost[n].iter_mut().zip(&us).for_each(|(cost, x)| *cost += x),
        [i, j, ..] => work.add_pair(i, j, Table { columns, us }),
    }
    work.done[d] = true;
    work.steps.push(Contraction { decision: d, neighbours, best, columns });
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::ilp::Ilp;
    use super::super::request::random::{enumerate, request};
    use super::super::solver::{Backend, Limits};
    use super::*;

    #[test]
    fn the_optimum_survives_reduction() {
        let (mut solved, mut left) = (0, 0);
        for seed in 0..2000 {
            let request = request(seed, seed % 4 == 0);
            let best = enumerate(&request);
            let reduced = Reduced::new(&request).filter(|r| enumerate(&r.request).is_some());
            assert_eq!(best.is_some(), reduced.is_some(), "seed {seed}");
            let (Some((_, best)), Some(reduced)) = (best, reduced) else { continue };
            let (choice, rest) = enumerate(&reduced.request).unwrap();
            assert!(
                (rest + reduced.constant_us - best).abs() < 1e-9 * best.max(1.0),
                "seed {seed}"
            );
            let full = reduced.restore(&choice);
            let price = request.price(&full).unwrap();
            assert!((price - best).abs() < 1e-9 * best.max(1.0), "seed {seed}: {price} {best}");
            solved += usize::from(reduced.request.decisions.is_empty());
            left += usize::from(!reduced.request.decisions.is_empty());
        }
        assert!(solved > 100 && left > 100, "{solved} solved outright, {left} left a core");
    }

    #[test]
    fn the_solver_finishes_what_reduction_leaves() {
        let limits = Limits { relative_gap: 0.0, ..Limits::default() };
        for seed in 0..300 {
            let request = request(seed, false);
            let Some((_, best)) = enumerate(&request) else { continue };
            let reduced = Reduced::new(&request).unwrap();
            let answer = Ilp::new(&reduced.request).solve(Backend::Highs, &limits, None).unwrap();
            let price = request.price(&reduced.restore(&answer.choice)).unwrap();
            assert!((price - best).abs() < 1e-6 * best.max(1.0), "seed {seed}");
        }
    }
}
