//! The search on one mesh.

use super::baselines::{self, Baseline};
use super::blocks::Blocks;
use super::costs::Costs;
use super::eliminate::{Elimination, MOST_COMBINATIONS, eliminate};
use super::error::SearchError;
use super::evaluate::{Evaluation, evaluate};
use super::formulate::Formulation;
use super::ilp::{Answer, Ilp};
use super::lagrange::{Priced as PricedMemory, ROUNDS, by_elimination, lagrange, leanest};
use super::memory::memory;
use super::reduce::Reduced;
use super::request::{Choice, MemoryRow, Request};
use super::solver::{SolverError, Status};
use super::space::Space;
use super::ways::Ways;
use super::{MeshLog, SearchOptions, Size};
use planc_ir::Graph;
use planc_ir::sharding::{Mesh, Strategy};
use std::time::Instant;

/// Problems of more memory rows times decisions are not given to the solver, which does not get past its
/// presolve in minutes.
const MOST_FOR_SOLVER: usize = 30_000;

/// The gap that is enough for those.
const ENOUGH_OF_LARGE: f64 = 0.01;

/// Prices of memory tried there.
const ROUNDS_OF_LARGE: usize = 10;

/// What is searched, and where.
pub struct OnMesh<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The mesh.
    pub mesh: &'a Mesh,
    /// Which nodes decide together.
    pub blocks: &'a Blocks,
    /// Prices.
    pub costs: &'a dyn Costs,
    /// What the caller asks for.
    pub options: &'a SearchOptions,
    /// Memory of each device.
    pub limit_bytes: u64,
}

/// What was found on one mesh.
pub struct Found {
    /// The best strategy that fits.
    pub best: Option<Best>,
    /// No strategy in the space that fits is quicker; infinite if none fits.
    pub bound_us: f64,
    /// No strategy in the space is quicker, whatever it holds.
    pub relaxed_us: f64,
    /// The gap that was small enough.
    pub enough: f64,
    /// Whether what fits was left unsearched, since it could not be quick enough.
    pub skipped: bool,
    /// The baselines.
    pub baselines: Vec<Priced>,
    /// What the leanest strategy costs, where nothing fits.
    pub least: Option<Evaluation>,
    /// Sizes and times.
    pub log: MeshLog,
}

/// A strategy that fits.
pub struct Best {
    /// The strategy.
    pub strategy: Strategy,
    /// Its price.
    pub evaluation: Evaluation,
    /// What the solver says that it costs.
    pub objective_us: f64,
    /// How the solve ended, or `baseline`.
    pub status: &'static str,
    /// What solved it.
    pub solver: &'static str,
}

/// A baseline and its price.
pub struct Priced {
    /// Which one.
    pub baseline: Baseline,
    /// On which mesh.
    pub mesh: Mesh,
    /// The strategy.
    pub strategy: Strategy,
    /// Its price.
    pub evaluation: Evaluation,
}

/// A solved request.
struct Solved {
    choice: Choice,
    objective_us: f64,
    bound_us: f64,
    status: &'static str,
    solver: &'static str,
    size: Size,
}

/// How a solve ended.
enum Outcome {
    Solved(Solved),
    /// With the choice that takes least memory, if it is known.
    Infeasible(Option<Choice>),
    /// A limit was reached before there was any solution.
    Stopped,
}

/// A mesh whose problem is posed, and solved as if memory counted for nothing.
pub struct Posed<'a> {
    on: OnMesh<'a>,
    space: Space<'a>,
    ways: Ways,
    formulation: Formulation,
    baselines: Vec<Priced>,
    free: Outcome,
    /// No strategy in the space is quicker, whatever it holds.
    pub bound_us: f64,
    /// Whether the quickest fits.
    fits: bool,
    log: MeshLog,
}

impl<'a> OnMesh<'a> {
    /// Poses the problem and solves what is left of it without memory.
    pub fn pose(self) -> Result<Posed<'a>, SearchError> {
        let started = Instant::now();
        let mut space = Space::new(self.graph, self.mesh, self.blocks, self.costs);
        space.gather_again = self.options.gather_again;
        let ways = Ways::new(&mut space, self.costs);
        let formulation = Formulation::new(&space, &ways);
        let posing = started.elapsed();

        let started = Instant::now();
        let baselines = self.baselines(&space)?;
        let pricing = started.elapsed();

        let started = Instant::now();
        let request = &formulation.request;
        let start = Self::start(&space, &ways, &formulation, request, &baselines);
        let free = self.solve(request, start.as_deref())?;
        // All prices are positive, so 0 is a bound where the solver has none.
        let mut bound_us = 0.0;
        let mut fits = false;
        if let Outcome::Solved(relaxed) = &free {
            bound_us = relaxed.bound_us;
            let strategy = formulation.strategy(&space, &relaxed.choice);
            fits = self.evaluate(&strategy)?.memory_bytes <= self.limit_bytes;
        }
        let log = MeshLog {
            mesh: self.mesh.clone(),
            size: size(request),
            total_us: None,
            bound_us,
            posing,
            solving: started.elapsed(),
            pricing,
        };
        Ok(Posed { on: self, space, ways, formulation, baselines, free, bound_us, fits, log })
    }
}

impl Posed<'_> {
    /// Searches within the memory, unless nothing here could be quicker than `known_us` by as much as counts.
    pub fn run(self, known_us: Option<f64>) -> Result<Found, SearchError> {
        let Self { on, space, ways, formulation, baselines, free, fits, mut log, .. } = self;
        let relaxed_us = self.bound_us;
        let mut bound_us = relaxed_us;
        let mut skipped = false;
        let mut enough = on.options.limits.relative_gap;
        let started = Instant::now();
        let mut outcome = free;
        let mut least = None;
        if !fits {
            let mut request = formulation.request.clone();
            request.memory = memory(&space, &ways, &formulation, on.limit_bytes);
            enough = on.enough(&request);
            skipped = known_us.is_some_and(|known| bound_us >= known * (1.0 - enough));
            if skipped {
                outcome = Outcome::Stopped;
            } else {
                let start = OnMesh::start(&space, &ways, &formulation, &request, &baselines);
                outcome = on.solve_limited(&request, start.as_ref(), enough)?;
                match &outcome {
                    Outcome::Solved(s) => bound_us = bound_us.max(s.bound_us),
                    Outcome::Infeasible(None) => {
                        bound_us = f64::INFINITY;
                        least = on.leanest(&space, &formulation, &request)?;
                    }
                    Outcome::Infeasible(Some(choice)) => {
                        bound_us = f64::INFINITY;
                        least = Some(on.evaluate(&formulation.strategy(&space, choice))?);
                    }
                    Outcome::Stopped => {}
                }
            }
        }
        let solved = match outcome {
            Outcome::Solved(solved) => Some(solved),
            Outcome::Infeasible(_) | Outcome::Stopped => None,
        };
        if let Some(solved) = &solved {
            log.size = solved.size;
        }
        log.solving += started.elapsed();

        let started = Instant::now();
        let best = on.best(&space, &formulation, solved, &baselines)?;
        log.total_us = best.as_ref().map(|b| b.evaluation.total_us);
        log.bound_us = bound_us;
        log.pricing += started.elapsed();
        Ok(Found { best, bound_us, relaxed_us, enough, skipped, baselines, least, log })
    }
}

impl OnMesh<'_> {
    /// The gap that is small enough for a request with memory rows.
    fn enough(&self, request: &Request) -> f64 {
        let enough = self.options.limits.relative_gap;
        if self.is_large(request) { enough.max(ENOUGH_OF_LARGE) } else { enough }
    }

    /// Whether a request is not given to the solver.
    fn is_large(&self, request: &Request) -> bool {
        let size = request.memory.rows.len().saturating_mul(request.decisions.len());
        size > MOST_FOR_SOLVER && !self.options.solver_only
    }

    fn evaluate(&self, strategy: &Strategy) -> Result<Evaluation, SearchError> {
        evaluate(self.graph, strategy, self.costs)
            .map_err(|source| SearchError::Evaluate { mesh: self.mesh.to_string(), source })
    }

    fn baselines(&self, space: &Space<'_>) -> Result<Vec<Priced>, SearchError> {
        let priced = baselines::baselines(self.graph).into_iter().map(|baseline| {
            let strategy = baseline.strategy(space, self.costs);
            let evaluation = self.evaluate(&strategy)?;
            Ok(Priced { baseline, mesh: self.mesh.clone(), strategy, evaluation })
        });
        priced.collect()
    }

    /// Solves a request, from a start if there is one.
    fn solve(&self, request: &Request, start: Option<&[usize]>) -> Result<Outcome, SearchError> {
        let mut size = size(request);
        let (reduced, most) = if self.options.solver_only {
            (Some(Reduced::unchanged(request)), 0)
        } else {
            (Reduced::new(request), MOST_COMBINATIONS)
        };
        let Some(reduced) = reduced else { return Ok(Outcome::Infeasible(None)) };
        match eliminate(&reduced.request, most) {
            Elimination::Optimum(choice, us) => {
                let solution = Solved {
                    choice: reduced.restore(&choice),
                    objective_us: us + reduced.constant_us,
                    bound_us: us + reduced.constant_us,
                    status: Status::Optimal.name(),
                    solver: "elimination",
                    size,
                };
                return Ok(Outcome::Solved(solution));
            }
            Elimination::Impossible => return Ok(Outcome::Infeasible(None)),
            Elimination::TooLarge => {}
        }
        let start = start.and_then(|choice| reduced.project(choice));
        let ilp = Ilp::new(&reduced.request);
        (size.columns, size.rows) = (ilp.columns() as u64, ilp.rows() as u64);
        match ilp.solve(self.options.backend, &self.options.limits, start.as_deref()) {
            Ok(Answer { choice, solution }) => {
                size.nodes = solution.nodes;
                Ok(Outcome::Solved(Solved {
                    choice: reduced.restore(&choice),
                    objective_us: solution.objective + reduced.constant_us,
                    bound_us: solution.bound + reduced.constant_us,
                    status: solution.status.name(),
                    solver: solution.solver.name(),
                    size,
                }))
            }
            Err(SolverError::Infeasible) => Ok(Outcome::Infeasible(None)),
            Err(SolverError::NoSolution { .. }) => Ok(Outcome::Stopped),
            Err(source) => Err(SearchError::Solver { mesh: self.mesh.to_string(), source }),
        }
    }

    /// Solves a request with memory rows, from a choice that fits if there is one.
    fn solve_limited(
        &self,
        request: &Request,
        start: Option<&Choice>,
        enough: f64,
    ) -> Result<Outcome, SearchError> {
        if self.options.solver_only {
            return self.solve(request, start.map(Vec::as_slice));
        }
        if self.is_large(request) {
            return Ok(self.solve_priced(request, start, enough));
        }
        let Some(priced) = lagrange(request, start, enough, ROUNDS, &by_elimination) else {
            return self.solve(request, start.map(Vec::as_slice));
        };
        if priced.gap().is_some_and(|gap| gap <= enough) {
            return Ok(Self::priced(request, priced, "elimination with priced memory"));
        }
        let start = priced.best.map(|(choice, _)| choice);
        let mut outcome = self.solve(request, start.as_deref())?;
        if let Outcome::Solved(solved) = &mut outcome {
            solved.bound_us = solved.bound_us.max(priced.bound_us).min(solved.objective_us);
        }
        Ok(outcome)
    }

    /// Solves a request with more memory rows than the solver can take, by pricing memory alone.
    fn solve_priced(&self, request: &Request, start: Option<&Choice>, enough: f64) -> Outcome {
        let solve = |request: &Request| match self.solve(request, None) {
            Ok(Outcome::Solved(s)) => Some((s.choice, s.objective_us, s.bound_us)),
            _ => None,
        };
        if start.is_none()
            && let Some((choice, bytes)) = leanest(request, fullest(request), &solve)
            && bytes > self.limit_bytes
        {
            return Outcome::Infeasible(Some(choice));
        }
        match lagrange(request, start, enough, ROUNDS_OF_LARGE, &solve) {
            Some(priced) => Self::priced(request, priced, "priced memory"),
            None => Outcome::Stopped,
        }
    }

    /// What pricing memory came to.
    fn priced(request: &Request, priced: PricedMemory, solver: &'static str) -> Outcome {
        let gap = priced.gap().unwrap_or(f64::INFINITY);
        match priced.best {
            Some((choice, objective_us)) => Outcome::Solved(Solved {
                choice,
                objective_us,
                bound_us: priced.bound_us.min(objective_us),
                status: if gap <= 1e-9 { Status::Optimal } else { Status::GapLimit }.name(),
                solver,
                size: size(request),
            }),
            None => Outcome::Stopped,
        }
    }

    /// The cheapest baseline that is in the space and fits.
    fn start(
        space: &Space<'_>,
        ways: &Ways,
        formulation: &Formulation,
        request: &Request,
        baselines: &[Priced],
    ) -> Option<Choice> {
        let choices = baselines.iter().filter_map(|p| {
            let choice = formulation.choice(space, ways, &p.strategy)?;
            let price = request.price(&choice).filter(|_| request.fits(&choice))?;
            Some((price, choice))
        });
        choices.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, choice)| choice)
    }

    /// What the strategy that takes least memory costs.
    fn leanest(
        &self,
        space: &Space<'_>,
        formulation: &Formulation,
        request: &Request,
    ) -> Result<Option<Evaluation>, SearchError> {
        let answer = Ilp::leanest(request)
            .solve(self.options.backend, &self.options.limits, None)
            .map_err(|source| SearchError::Solver { mesh: self.mesh.to_string(), source })?;
        self.evaluate(&formulation.strategy(space, &answer.choice)).map(Some)
    }

    /// The solver's strategy or a baseline, whichever is quicker; a baseline only if it is so by more
    /// than rounding.
    fn best(
        &self,
        space: &Space<'_>,
        formulation: &Formulation,
        solved: Option<Solved>,
        baselines: &[Priced],
    ) -> Result<Option<Best>, SearchError> {
        let mut best = match solved {
            Some(solved) => {
                let strategy = formulation.strategy(space, &solved.choice);
                let evaluation = self.evaluate(&strategy)?;
                let Solved { objective_us, status, solver, .. } = solved;
                Some(Best { strategy, evaluation, objective_us, status, solver })
            }
            None => None,
        };
        for p in baselines.iter().filter(|p| p.evaluation.memory_bytes <= self.limit_bytes) {
            let us = p.evaluation.total_us;
            if best.as_ref().is_none_or(|b| us < b.evaluation.total_us * (1.0 - 1e-9)) {
                best = Some(Best {
                    strategy: p.strategy.clone(),
                    evaluation: p.evaluation.clone(),
                    objective_us: us,
                    status: "baseline",
                    solver: self.options.backend.name(),
                });
            }
        }
        Ok(best)
    }
}

/// The memory row that could hold most.
fn fullest(request: &Request) -> usize {
    let memory = &request.memory;
    let most = |bytes: &[u64]| bytes.iter().copied().max().unwrap_or(0);
    let homes = |row: &MemoryRow| -> u64 {
        let all = row.homes.iter().map(|&(h, n)| n.saturating_mul(most(&memory.homes[h].bytes)));
        all.fold(0, u64::saturating_add)
    };
    let rows = memory.rows.iter().enumerate();
    rows.max_by_key(|(_, row)| homes(row)).map_or(0, |(i, _)| i)
}

/// The size of a request, before it is known what is left for the solver.
fn size(request: &Request) -> Size {
    Size {
        decisions: request.decisions.len() as u64,
        candidates: request.candidates() as u64,
        memory_rows: request.memory.rows.len() as u64,
        ..Size::default()
    }
}
