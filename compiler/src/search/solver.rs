//! The one wrapper over mixed-integer solvers.
//!
//! A problem is built with good_lp and solved on HiGHS, or on microlp (pure Rust: the fallback and the
//! cross-check). good_lp hands back values only, so the HiGHS problem is taken out of it and driven
//! directly: only then can the proven bound and the node count be read, and options and a start be
//! set.
//!
//! A solve is repeatable: one thread, a fixed seed, limits on gap and nodes. A wall-clock limit makes
//! it depend on the machine; it is the caller's choice and never the default.

use good_lp::solvers::highs::highs;
use good_lp::solvers::microlp::microlp;
use good_lp::{
    Constraint, Expression, ProblemVariables, ResolutionError, Solution as _, SolverModel,
    Variable, WithInitialSolution, WithMipGap, WithTimeLimit, variable,
};
use highs::{HighsModelStatus, HighsSolutionStatus};
use thiserror::Error;

/// Which solver runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// HiGHS: branch and cut, C++.
    #[default]
    Highs,
    /// microlp: branch and bound, pure Rust; for small problems.
    Microlp,
}

impl Backend {
    /// The name as a certificate says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Highs => "HiGHS",
            Self::Microlp => "microlp",
        }
    }
}

/// When a solve may stop short of a proof.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Relative distance between objective and bound at which a solution is good enough.
    pub relative_gap: f64,
    /// Branch-and-bound nodes (HiGHS only).
    pub max_nodes: u32,
    /// Wall-clock seconds. Results then depend on the machine.
    pub time_limit_s: Option<f64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { relative_gap: 1e-4, max_nodes: 20_000, time_limit_s: None }
    }
}

/// How a solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The bound meets the objective.
    Optimal,
    /// The gap is within the limit.
    GapLimit,
    /// The node limit was reached.
    NodeLimit,
    /// The time limit was reached.
    TimeLimit,
}

impl Status {
    /// The name as a certificate says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::GapLimit => "gap limit",
            Self::NodeLimit => "node limit",
            Self::TimeLimit => "time limit",
        }
    }
}

/// A feasible point and what is proven about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// One value a column, in the order of creation.
    pub values: Vec<f64>,
    /// Its objective.
    pub objective: f64,
    /// No feasible point has a smaller objective.
    pub bound: f64,
    /// `(objective - bound) / |objective|`, 0 where both are 0.
    pub gap: f64,
    /// How the solve ended.
    pub status: Status,
    /// Branch-and-bound nodes.
    pub nodes: u64,
    /// Which solver ran.
    pub solver: Backend,
}

/// Why there is no solution.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum SolverError {
    #[error("no point satisfies all constraints")]
    Infeasible,
    #[error("the objective has no lower bound")]
    Unbounded,
    #[error("{solver} stopped ({why}) before it found a feasible point; raise the limits")]
    NoSolution { solver: &'static str, why: String },
    #[error("{solver} failed: {why}")]
    Failed { solver: &'static str, why: String },
}

/// A minimisation problem over columns that are nonnegative.
#[derive(Default)]
pub struct Mip {
    variables: ProblemVariables,
    columns: Vec<Variable>,
    costs: Vec<f64>,
    integers: usize,
    constraints: Vec<Constraint>,
}

impl Mip {
    /// An empty problem.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column of values 0 and 1.
    pub fn binary(&mut self, cost: f64) -> Variable {
        self.integers += 1;
        self.add(variable().binary(), cost)
    }

    /// Adds a column of values 0 to 1.
    pub fn fraction(&mut self, cost: f64) -> Variable {
        self.add(variable().clamp(0, 1), cost)
    }

    fn add(&mut self, definition: good_lp::VariableDefinition, cost: f64) -> Variable {
        let column = self.variables.add(definition);
        self.columns.push(column);
        self.costs.push(cost);
        column
    }

    /// Adds a constraint.
    pub fn constrain(&mut self, constraint: Constraint) {
        self.constraints.push(constraint);
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.constraints.len()
    }

    /// Minimises. `start` gives a value for every column, a feasible point to begin from.
    pub fn solve(
        self,
        backend: Backend,
        limits: &Limits,
        start: Option<&[f64]>,
    ) -> Result<Solution, SolverError> {
        match backend {
            Backend::Highs => self.solve_highs(limits, start),
            Backend::Microlp => self.solve_microlp(limits, start),
        }
    }

    fn solve_highs(self, limits: &Limits, start: Option<&[f64]>) -> Result<Solution, SolverError> {
        let solver = Backend::Highs;
        let failed = |why: String| SolverError::Failed { solver: solver.name(), why };
        let objective = objective(&self.columns, &self.costs);
        let columns = self.columns;
        let mut problem = self.variables.minimise(objective).using(highs);
        for constraint in self.constraints {
            problem.add_constraint(constraint);
        }
        let mut model = problem.try_into_inner().map_err(|e| failed(e.to_string()))?;
        model.make_quiet();
        let mut options = vec![
            model.try_set_option("threads", 1),
            model.try_set_option("parallel", "off"),
            model.try_set_option("random_seed", 0),
            model.try_set_option("mip_rel_gap", limits.relative_gap),
            model.try_set_option("mip_abs_gap", 1e-9),
            model.try_set_option(
                "mip_max_nodes",
                i32::try_from(limits.max_nodes).unwrap_or(i32::MAX),
            ),
        ];
        if let Some(seconds) = limits.time_limit_s {
            options.push(model.try_set_option("time_limit", seconds));
        }
        options.into_iter().collect::<Result<(), _>>().map_err(|e| failed(format!("{e:?}")))?;
        // HiGHS takes an empty start for a mistake.
        if let Some(start) = start.filter(|s| !s.is_empty()) {
            model
                .try_set_solution(Some(start), None, None, None)
                .map_err(|e| failed(format!("the start was refused: {e:?}")))?;
        }
        let solved = model.try_solve().map_err(|e| failed(format!("{e:?}")))?;
        let ended = match solved.status() {
            HighsModelStatus::Optimal => Status::Optimal,
            HighsModelStatus::ReachedTimeLimit => Status::TimeLimit,
            HighsModelStatus::ReachedSolutionLimit => Status::NodeLimit,
            HighsModelStatus::Infeasible | HighsModelStatus::UnboundedOrInfeasible => {
                return Err(SolverError::Infeasible);
            }
            HighsModelStatus::Unbounded => return Err(SolverError::Unbounded),
            // Nothing to choose.
            HighsModelStatus::ModelEmpty if columns.is_empty() => Status::Optimal,
            other => return Err(failed(format!("status {other:?}"))),
        };
        if !columns.is_empty() && solved.primal_solution_status() != HighsSolutionStatus::Feasible {
            return Err(SolverError::NoSolution {
                solver: solver.name(),
                why: ended.name().into(),
            });
        }
        let values = solved.get_solution().columns().to_vec();
        // Bounds are kept for problems with integers only; a linear one is solved to its optimum.
        let bound =
            (self.integers > 0).then(|| solved.double_info_value(c"mip_dual_bound").ok()).flatten();
        let nodes = if self.integers > 0 { node_count(&solved) } else { 0 };
        Ok(Solution::new(values, &self.costs, bound, ended, nodes, solver))
    }

    fn solve_microlp(
        self,
        limits: &Limits,
        start: Option<&[f64]>,
    ) -> Result<Solution, SolverError> {
        let solver = Backend::Microlp;
        let objective = objective(&self.columns, &self.costs);
        let columns = self.columns;
        let mut problem = self.variables.minimise(objective).using(microlp);
        for constraint in self.constraints {
            problem.add_constraint(constraint);
        }
        problem = problem
            .with_mip_gap(limits.relative_gap as f32)
            .map_err(|e| SolverError::Failed { solver: solver.name(), why: e.to_string() })?;
        if let Some(seconds) = limits.time_limit_s {
            problem = problem.with_time_limit(seconds);
        }
        if let Some(start) = start {
            problem =
                problem.with_initial_solution(columns.iter().copied().zip(start.iter().copied()));
        }
        let solved = problem.solve().map_err(|e| match e {
            ResolutionError::Infeasible => SolverError::Infeasible,
            ResolutionError::Unbounded => SolverError::Unbounded,
            ResolutionError::Other(why) => {
                SolverError::NoSolution { solver: solver.name(), why: why.to_string() }
            }
            why @ ResolutionError::Str(_) => {
                SolverError::Failed { solver: solver.name(), why: why.to_string() }
            }
        })?;
        let ended = match solved.status() {
            good_lp::solvers::SolutionStatus::TimeLimit => Status::TimeLimit,
            _ => Status::Optimal,
        };
        let values = columns.iter().map(|&c| solved.value(c)).collect();
        let stats = solved.into_inner().stats();
        let bound = if self.integers > 0 { stats.best_bound } else { None };
        Ok(Solution::new(values, &self.costs, bound, ended, stats.nodes_solved, solver))
    }
}

impl Solution {
    /// The objective is recomputed from the values; the bound never exceeds it, whatever the solver's
    /// tolerances make of the last digits.
    fn new(
        values: Vec<f64>,
        costs: &[f64],
        bound: Option<f64>,
        ended: Status,
        nodes: u64,
        solver: Backend,
    ) -> Self {
        let value: f64 = costs.iter().zip(&values).map(|(c, v)| c * v).sum();
        let bound = bound.filter(|b| b.is_finite()).unwrap_or(match ended {
            Status::Optimal => value,
            _ => 0.0,
        });
        let bound = bound.min(value);
        let gap = relative_gap(value, bound);
        let status = if ended == Status::Optimal && gap > 1e-9 { Status::GapLimit } else { ended };
        Self { values, objective: value, bound, gap, status, nodes, solver }
    }
}

fn objective(columns: &[Variable], costs: &[f64]) -> Expression {
    columns.iter().zip(costs).filter(|(_, c)| **c != 0.0).map(|(&x, &c)| c * x).sum()
}

/// `(objective - bound) / |objective|`, 0 where they are equal.
#[allow(clippy::float_cmp)] // equal infinities have no distance
pub fn relative_gap(objective: f64, bound: f64) -> f64 {
    if objective == bound { 0.0 } else { (objective - bound) / objective.abs().max(1e-12) }
}

/// The `highs` crate reads 32-bit counts only, and the node count has 64.
#[allow(unsafe_code)]
fn node_count(solved: &highs::SolvedModel) -> u64 {
    let mut nodes = 0i64;
    // SAFETY: the pointer is a live HiGHS instance (`solved` is borrowed), the name is a C string, and
    // HiGHS writes one 64-bit integer through the last pointer or nothing at all.
    unsafe {
        highs_sys::Highs_getInt64InfoValue(
            solved.as_ptr().cast_mut(),
            c"mip_node_count".as_ptr(),
            &raw mut nodes,
        );
    }
    u64::try_from(nodes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use good_lp::constraint;

    /// A knapsack: weights 3 4 5 6, values 4 5 6 9, capacity 10, all minimised as negatives.
    fn knapsack() -> (Mip, Vec<Variable>) {
        let mut mip = Mip::new();
        let items: Vec<_> = [4.0, 5.0, 6.0, 9.0].map(|v: f64| mip.binary(-v)).to_vec();
        let weight: Expression = items.iter().zip([3.0, 4.0, 5.0, 6.0]).map(|(&x, w)| w * x).sum();
        mip.constrain(constraint!(weight <= 10.0));
        (mip, items)
    }

    #[test]
    fn backends_agree_on_the_optimum_and_its_bound() {
        for backend in [Backend::Highs, Backend::Microlp] {
            let solution = knapsack().0.solve(backend, &Limits::default(), None).unwrap();
            assert!((solution.objective + 14.0).abs() < 1e-6, "{solution:?}");
            assert!((solution.bound + 14.0).abs() < 1e-4, "{solution:?}");
            assert!(solution.bound <= solution.objective);
            assert_eq!(
                solution.values.iter().map(|v| v.round() as u8).collect::<Vec<_>>(),
                [0, 1, 0, 1]
            );
        }
    }

    #[test]
    fn a_start_is_taken() {
        for backend in [Backend::Highs, Backend::Microlp] {
            let start = [1.0, 0.0, 0.0, 1.0];
            let solution = knapsack().0.solve(backend, &Limits::default(), Some(&start)).unwrap();
            assert!((solution.objective + 14.0).abs() < 1e-6);
        }
        // With no nodes allowed and a gap that the start already meets, the start itself comes back.
        let limits = Limits { relative_gap: 0.9, ..Limits::default() };
        let start = [1.0, 0.0, 0.0, 1.0];
        let solution = knapsack().0.solve(Backend::Highs, &limits, Some(&start)).unwrap();
        assert!(solution.objective <= -13.0, "{solution:?}");
    }

    #[test]
    fn a_start_of_the_wrong_length_is_refused() {
        let error = knapsack().0.solve(Backend::Highs, &Limits::default(), Some(&[1.0]));
        assert!(matches!(error, Err(SolverError::Failed { .. })));
    }

    #[test]
    fn contradictions_are_infeasible() {
        for backend in [Backend::Highs, Backend::Microlp] {
            let (mut mip, items) = knapsack();
            mip.constrain(constraint!(items[0] + items[1] + items[2] >= 2.0));
            mip.constrain(constraint!(items[3] >= 1.0));
            assert_eq!(mip.solve(backend, &Limits::default(), None), Err(SolverError::Infeasible));
        }
    }

    #[test]
    fn a_loose_gap_is_said() {
        let limits = Limits { relative_gap: 0.5, ..Limits::default() };
        let solution =
            knapsack().0.solve(Backend::Highs, &limits, Some(&[0.0, 0.0, 0.0, 1.0])).unwrap();
        assert!(solution.gap <= 0.5 + 1e-9);
        assert!(solution.bound <= -14.0 + 1e-6);
    }

    #[test]
    fn a_problem_without_integers_is_solved() {
        for backend in [Backend::Highs, Backend::Microlp] {
            let mut mip = Mip::new();
            let (x, y) = (mip.fraction(1.0), mip.fraction(2.0));
            mip.constrain(constraint!(x + y == 1.5));
            let solution = mip.solve(backend, &Limits::default(), None).unwrap();
            assert!((solution.objective - 2.0).abs() < 1e-9);
            assert_eq!(solution.status, Status::Optimal);
        }
    }
}
