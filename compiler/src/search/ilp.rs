//! The integer program of a [`Request`], and its answer.
//!
//! Columns: `x[d,c]`, binary: decision `d` takes candidate `c`. For each edge and each of its uses,
//! `e[h,t]`, a fraction: the value comes from class `h` and is used in class `t`. For an edge of
//! several uses, `w[h,t]`: some use has the value brought from `h` to `t`. With `x` integral all others
//! are integral by themselves, so only `x` is branched on.
//!
//! Minimise `Σ cost[d,c]·x[d,c] + Σ us[h,t]·w[h,t]` (`e` in place of `w` where there is one use) under
//!
//! 1. [`one_choice`]: `Σ_c x[d,c] = 1`.
//! 2. [`marginals`]: `Σ_t e[h,t] = Σ_{c of class h} x[from,c]` and
//!    `Σ_h e[h,t] = Σ_{c of class t} x[use,c]`. Classes without a way between them have no column.
//!    Equalities over classes, rather than `≥` over candidate pairs, make the relaxation tight.
//! 3. [`shared_reshards`]: `w[h,t] ≥ e[h,t]` for each use: what several uses need is paid once.
//! 4. [`memory_rows`]: homes weighted by `x` and forms weighted by `w` stay within the limit.
//!
//! [`Ilp::leanest`] asks for the least memory instead: costs are 0 and the limit of 4 is a column.

use super::request::{Choice, Edge, End, MemoryRow, Request};
use super::solver::{Backend, Limits, Mip, Solution, SolverError};
use good_lp::{Expression, Variable, constraint};

/// A request as a mixed-integer program.
pub struct Ilp<'a> {
    request: &'a Request,
    mip: Mip,
    meaning: Vec<Meaning>,
    /// `x[d][c]`.
    choices: Vec<Vec<Variable>>,
    /// By edge.
    flows: Vec<Flows>,
    /// The column that the memory rows stay within, and what it is counted in; without it, the limit.
    peak: Option<(Variable, f64)>,
}

/// What a column stands for.
#[derive(Clone, Copy)]
enum Meaning {
    Choice { decision: usize, candidate: usize },
    Flow { edge: usize, usage: usize, from: usize, to: usize },
    Paid { edge: usize, from: usize, to: usize },
    Peak,
}

/// An edge's columns.
struct Flows {
    /// `e` by use: `(from class, to class, column)`.
    uses: Vec<Vec<(usize, usize, Variable)>>,
    /// `w`, by classes; the only use's `e` where there is one use.
    paid: Vec<(usize, usize, Variable)>,
}

/// What the solver found.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The choice.
    pub choice: Choice,
    /// Objective, bound and how the solve ended.
    pub solution: Solution,
}

impl<'a> Ilp<'a> {
    /// Builds the program.
    pub fn new(request: &'a Request) -> Self {
        Self::build(request, false)
    }

    /// Builds the program that asks for the least memory, whatever it costs.
    pub fn leanest(request: &'a Request) -> Self {
        Self::build(request, true)
    }

    fn build(request: &'a Request, leanest: bool) -> Self {
        let mut ilp = Self {
            request,
            mip: Mip::new(),
            meaning: Vec::new(),
            choices: Vec::new(),
            flows: Vec::new(),
            peak: None,
        };
        ilp.add_columns(if leanest { 0.0 } else { 1.0 });
        if leanest {
            ilp.meaning.push(Meaning::Peak);
            ilp.peak = Some((ilp.mip.fraction(1.0), most_bytes(request)));
        }
        one_choice(&mut ilp);
        marginals(&mut ilp);
        shared_reshards(&mut ilp);
        memory_rows(&mut ilp);
        ilp
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.mip.columns()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.mip.rows()
    }

    /// Solves it, from a start if there is one.
    pub fn solve(
        self,
        backend: Backend,
        limits: &Limits,
        start: Option<&[usize]>,
    ) -> Result<Answer, SolverError> {
        let start: Option<Vec<f64>> = start.map(|choice| self.point(choice));
        let solution = self.mip.solve(backend, limits, start.as_deref())?;
        let mut choice = vec![0; self.request.decisions.len()];
        for (meaning, &value) in self.meaning.iter().zip(&solution.values) {
            if let Meaning::Choice { decision, candidate } = *meaning
                && value > 0.5
            {
                choice[decision] = candidate;
            }
        }
        Ok(Answer { choice, solution })
    }

    /// Adds the columns, their costs multiplied by `scale`.
    fn add_columns(&mut self, scale: f64) {
        for (decision, d) in self.request.decisions.iter().enumerate() {
            let columns = d.cost_us.iter().enumerate().map(|(candidate, &cost)| {
                self.meaning.push(Meaning::Choice { decision, candidate });
                self.mip.binary(cost * scale)
            });
            self.choices.push(columns.collect());
        }
        for (index, edge) in self.request.edges.iter().enumerate() {
            let shared = edge.uses.len() > 1;
            let mut flows = Flows { uses: Vec::new(), paid: Vec::new() };
            for (usage, end) in edge.uses.iter().enumerate() {
                let mut columns = Vec::new();
                for (from, to) in ways(edge, end) {
                    let us = edge.us[from][to].unwrap_or(0.0) * scale;
                    self.meaning.push(Meaning::Flow { edge: index, usage, from, to });
                    columns.push((from, to, self.mip.fraction(if shared { 0.0 } else { us })));
                }
                flows.uses.push(columns);
            }
            if shared {
                let mut pairs: Vec<_> = edge.uses.iter().flat_map(|u| ways(edge, u)).collect();
                pairs.sort_unstable();
                pairs.dedup();
                for (from, to) in pairs {
                    self.meaning.push(Meaning::Paid { edge: index, from, to });
                    let column = self.mip.fraction(edge.us[from][to].unwrap_or(0.0) * scale);
                    flows.paid.push((from, to, column));
                }
            } else if let Some(only) = flows.uses.first() {
                flows.paid.clone_from(only);
            }
            self.flows.push(flows);
        }
    }

    /// All columns under a choice.
    fn point(&self, choice: &[usize]) -> Vec<f64> {
        let class = |end: &End| end.class[choice[end.decision]];
        let value = |meaning: &Meaning| match *meaning {
            Meaning::Choice { decision, candidate } => choice[decision] == candidate,
            Meaning::Flow { edge, usage, from, to } => {
                let edge = &self.request.edges[edge];
                class(&edge.from) == from && class(&edge.uses[usage]) == to
            }
            Meaning::Paid { edge, from, to } => {
                let edge = &self.request.edges[edge];
                class(&edge.from) == from && edge.uses.iter().any(|u| class(u) == to)
            }
            Meaning::Peak => true,
        };
        self.meaning.iter().map(|m| f64::from(u8::from(value(m)))).collect()
    }

    /// `Σ x` over an end's candidates of one class.
    fn of_class(&self, end: &End, class: usize) -> Expression {
        let columns = &self.choices[end.decision];
        end.class.iter().zip(columns).filter(|&(&c, _)| c == class).map(|(_, &x)| x).sum()
    }
}

/// The pairs of classes of an edge's maker and of one use that have a way.
fn ways(edge: &Edge, end: &End) -> Vec<(usize, usize)> {
    let (from, to) = (classes(&edge.from), classes(end));
    let pairs = from.into_iter().flat_map(|h| to.iter().map(move |&t| (h, t)));
    pairs.filter(|&(h, t)| edge.us[h][t].is_some()).collect()
}

/// The classes that occur at an end, ascending.
fn classes(end: &End) -> Vec<usize> {
    let mut all = end.class.clone();
    all.sort_unstable();
    all.dedup();
    all
}

/// 1. Each decision takes one candidate.
fn one_choice(ilp: &mut Ilp<'_>) {
    for columns in &ilp.choices {
        let sum: Expression = columns.iter().sum();
        ilp.mip.constrain(constraint!(sum == 1.0));
    }
}

/// 2. Flows leave the maker's class and reach the user's.
fn marginals(ilp: &mut Ilp<'_>) {
    let request = ilp.request;
    for (edge, flows) in request.edges.iter().zip(0..) {
        for (usage, end) in edge.uses.iter().enumerate() {
            for from in classes(&edge.from) {
                let columns = &ilp.flows[flows].uses[usage];
                let out: Expression = columns.iter().filter(|c| c.0 == from).map(|c| c.2).sum();
                let chosen = ilp.of_class(&edge.from, from);
                ilp.mip.constrain(constraint!(out == chosen));
            }
            for to in classes(end) {
                let columns = &ilp.flows[flows].uses[usage];
                let into: Expression = columns.iter().filter(|c| c.1 == to).map(|c| c.2).sum();
                let chosen = ilp.of_class(end, to);
                ilp.mip.constrain(constraint!(into == chosen));
            }
        }
    }
}

/// 3. What some use needs is paid.
fn shared_reshards(ilp: &mut Ilp<'_>) {
    for flows in ilp.flows.iter().filter(|f| f.uses.len() > 1) {
        for &(from, to, paid) in &flows.paid {
            for used in flows.uses.iter().flatten().filter(|c| (c.0, c.1) == (from, to)) {
                let used = used.2;
                ilp.mip.constrain(constraint!(paid >= used));
            }
        }
    }
}

/// 4. Every point in time stays within the limit. Rows are in units of the limit, so that their
///    coefficients are of the size that the solver's tolerances are made for.
fn memory_rows(ilp: &mut Ilp<'_>) {
    let memory = &ilp.request.memory;
    let unit = ilp.peak.map_or((memory.limit_bytes as f64).max(1.0), |(_, unit)| unit);
    for row in &memory.rows {
        let mut held = Expression::with_capacity(row.homes.len() + row.forms.len());
        for &(home, count) in &row.homes {
            let home = &memory.homes[home];
            for (&column, &bytes) in ilp.choices[home.decision].iter().zip(&home.bytes) {
                held.add_mul(count as f64 * bytes as f64 / unit, column);
            }
        }
        for &(form, count) in &row.forms {
            let form = &memory.forms[form];
            for &(from, to, column) in &ilp.flows[form.edge].paid {
                held.add_mul(count as f64 * form.bytes[from][to] as f64 / unit, column);
            }
        }
        ilp.mip.constrain(match ilp.peak {
            Some((peak, _)) => constraint!(held <= peak),
            None => constraint!(held <= memory.limit_bytes as f64 / unit),
        });
    }
}

/// More than any row can hold.
fn most_bytes(request: &Request) -> f64 {
    let memory = &request.memory;
    let most = |bytes: &[u64]| bytes.iter().copied().max().unwrap_or(0) as f64;
    let row = |row: &MemoryRow| -> f64 {
        let homes = row.homes.iter().map(|&(h, n)| n as f64 * most(&memory.homes[h].bytes));
        let forms = row.forms.iter().map(|&(f, n)| {
            let bytes = &memory.forms[f].bytes;
            n as f64 * bytes.iter().flatten().map(|&b| b as f64).sum::<f64>()
        });
        homes.chain(forms).sum()
    };
    memory.rows.iter().map(row).fold(1.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::request::random::{enumerate, request};
    use super::*;

    fn check(seeds: std::ops::Range<u64>, memory: bool, backend: Backend) {
        let limits = Limits { relative_gap: 0.0, ..Limits::default() };
        let mut infeasible = 0;
        for seed in seeds.clone() {
            let request = request(seed, memory);
            let answer = Ilp::new(&request).solve(backend, &limits, None);
            let Some((_, best)) = enumerate(&request) else {
                assert_eq!(answer.unwrap_err(), SolverError::Infeasible, "seed {seed}");
                infeasible += 1;
                continue;
            };
            let answer = answer.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let price = request.price(&answer.choice).unwrap();
            assert!(request.fits(&answer.choice), "seed {seed}");
            assert!((price - best).abs() <= 1e-6 * best.max(1.0), "seed {seed}: {price} {best}");
            let objective = answer.solution.objective;
            assert!((objective - price).abs() <= 1e-6 * price.max(1.0), "seed {seed}");
            assert!(answer.solution.bound <= best + 1e-6 * best.max(1.0), "seed {seed}");
        }
        assert!(infeasible * 3 < 2 * (seeds.end - seeds.start), "many requests have an answer");
    }

    #[test]
    fn highs_hits_the_enumerated_optimum() {
        check(0..300, false, Backend::Highs);
    }

    #[test]
    fn highs_hits_it_under_memory_limits() {
        check(1000..1300, true, Backend::Highs);
    }

    #[test]
    fn microlp_hits_it_too() {
        check(0..150, false, Backend::Microlp);
        check(1000..1150, true, Backend::Microlp);
    }

    #[test]
    fn the_optimum_is_accepted_as_a_start() {
        for seed in 0..60 {
            let request = request(seed, true);
            let Some((choice, best)) = enumerate(&request) else { continue };
            let answer = Ilp::new(&request)
                .solve(Backend::Highs, &Limits::default(), Some(&choice))
                .unwrap();
            assert!(
                (answer.solution.objective - best).abs() <= 1e-5 * best.max(1.0),
                "seed {seed}"
            );
        }
    }
}
