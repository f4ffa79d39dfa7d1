//! The search: decides how every node of a graph is split, and proves how good that is.
//!
//! ```text
//! graph ─blocks─▶ who decides together
//!   for each mesh: ─space─▶ candidates ─ways─▶ prices of reshards ─formulate─▶ request
//!                  ─reduce─▶ core ─eliminate, else ilp─▶ choice and bound ─formulate─▶ strategy
//! strategies and baselines ─evaluate─▶ the best one that fits
//! ```
//!
//! Memory enters only if it has to: the problem without it is a relaxation, so if its optimum fits, that
//! is the optimum; else memory is priced ([`lagrange`]), and if that does not settle it, the whole problem
//! goes to the solver with memory rows.
//!
//! The answer is never worse than a baseline: all are priced by the [`evaluate`](evaluate::evaluate)
//! function, which shares no code with the formulation, and the best is taken.

pub mod baselines;
pub mod blocks;
pub mod costs;
mod dominate;
pub mod eliminate;
pub mod error;
pub mod evaluate;
pub mod formulate;
pub mod ilp;
pub mod lagrange;
pub mod memory;
pub mod meshes;
pub mod on_mesh;
pub mod reduce;
pub mod request;
pub mod solver;
pub mod space;
mod state;
pub mod ways;

use blocks::Blocks;
use costs::Costs;
pub use error::SearchError;
use evaluate::Evaluation;
use on_mesh::{Found, OnMesh, Posed};
use planc_ir::Graph;
use planc_ir::plan::{Baseline, Certificate};
use planc_ir::sharding::{Mesh, Strategy};
use rayon::prelude::*;
use solver::{Backend, Limits, relative_gap};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a caller may ask for.
#[derive(Clone, Debug, Default)]
pub struct SearchOptions {
    /// The only mesh to try; all factorisations of the number of devices if there is none.
    pub mesh: Option<Mesh>,
    /// Memory of each device; the cost model's if there is none.
    pub memory_bytes: Option<u64>,
    /// Which solver runs.
    pub backend: Backend,
    /// When it may stop.
    pub limits: Limits,
    /// Let every node decide for itself, repeated blocks or not.
    pub distinct_layers: bool,
    /// Make further forms of weights again for the backward phase of a training step, rather than keep them.
    pub gather_again: bool,
    /// Give up on what cannot be quicker than this by as much as counts: the gap that is enough.
    pub cutoff_us: Option<f64>,
    /// Leave everything to the solver: neither reduce nor eliminate.
    pub solver_only: bool,
}

/// The answer.
#[derive(Clone, Debug)]
pub struct SearchResult {
    /// What was decided.
    pub strategy: Strategy,
    /// How good it is proven to be.
    pub certificate: Certificate,
    /// What the simpler strategies cost: each on the mesh on which it is best.
    pub baselines: Vec<Baseline>,
    /// What the strategy costs.
    pub evaluation: Evaluation,
    /// No strategy is quicker, whatever it holds.
    pub relaxed_us: f64,
    /// The gap that was small enough.
    pub enough: f64,
    /// Sizes and times, for logs.
    pub log: Vec<MeshLog>,
}

impl SearchResult {
    /// Of a strategy that was not searched for.
    pub fn of(strategy: Strategy, evaluation: Evaluation) -> Self {
        let certificate = Certificate {
            objective_us: evaluation.total_us,
            bound_us: 0.0,
            gap: relative_gap(evaluation.total_us, 0.0),
            status: "not searched".to_string(),
            solver: String::new(),
            limits: BTreeMap::new(),
            evaluated_us: evaluation.total_us,
            space: BTreeMap::new(),
        };
        Self {
            strategy,
            certificate,
            baselines: Vec::new(),
            evaluation,
            relaxed_us: 0.0,
            enough: 0.0,
            log: Vec::new(),
        }
    }
}

/// What happened on one mesh.
#[derive(Clone, Debug)]
pub struct MeshLog {
    /// The mesh.
    pub mesh: Mesh,
    /// Size of the problem.
    pub size: Size,
    /// Time of the best strategy found on it that fits; `None` if nothing fits.
    pub total_us: Option<f64>,
    /// Nothing on the mesh is quicker.
    pub bound_us: f64,
    /// Time for finding candidates and pricing reshards.
    pub posing: Duration,
    /// Time for solving.
    pub solving: Duration,
    /// Time for baselines and evaluation.
    pub pricing: Duration,
}

/// Size of a problem. Columns, rows and nodes are those of the integer program; 0 where none was needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Decisions posed.
    pub decisions: u64,
    /// Candidates of all decisions.
    pub candidates: u64,
    /// Columns, after reduction.
    pub columns: u64,
    /// Rows.
    pub rows: u64,
    /// Memory rows among them.
    pub memory_rows: u64,
    /// Branch-and-bound nodes.
    pub nodes: u64,
}

/// Decides how every node of a graph is split.
pub fn search(
    graph: &Graph,
    costs: &dyn Costs,
    options: &SearchOptions,
) -> Result<SearchResult, SearchError> {
    let meshes = match &options.mesh {
        Some(mesh) => vec![mesh.clone()],
        None => meshes::factorisations(costs.devices()),
    };
    let devices = costs.devices();
    if let Some(mesh) = meshes.iter().find(|m| m.ranks() > devices) {
        let (mesh, ranks) = (mesh.to_string(), mesh.ranks());
        return Err(SearchError::MeshTooLarge { mesh, ranks, devices });
    }
    let blocks = if options.distinct_layers { Blocks::none(graph) } else { Blocks::find(graph) };
    let limit_bytes = options.memory_bytes.unwrap_or_else(|| costs.memory_bytes());
    let posed: Vec<Posed<'_>> = meshes
        .par_iter()
        .map(|mesh| OnMesh { graph, mesh, blocks: &blocks, costs, options, limit_bytes }.pose())
        .collect::<Result<_, _>>()?;
    let found = run(posed, options.cutoff_us)?;

    let least =
        |bounds: &dyn Fn(&Found) -> f64| found.iter().map(bounds).fold(f64::INFINITY, f64::min);
    let (bound_us, relaxed_us) = (least(&|f| f.bound_us), least(&|f| f.relaxed_us));
    let fitting = found.iter().filter_map(|f| Some((f, f.best.as_ref()?)));
    let best =
        fitting.min_by(|(_, a), (_, b)| a.evaluation.total_us.total_cmp(&b.evaluation.total_us));
    let Some((on, best)) = best else {
        if found.iter().any(|f| f.skipped) {
            return Err(SearchError::NoQuicker { bound_us });
        }
        return Err(error::nothing_fits(graph, &found, limit_bytes));
    };
    let enough = found.iter().map(|f| f.enough).fold(0.0, f64::max);
    let objective_us = best.objective_us;
    // The bound holds for all meshes; rounding may lift it over the objective by a last digit.
    let bound_us = bound_us.min(objective_us);
    let certificate = Certificate {
        objective_us,
        bound_us,
        gap: relative_gap(objective_us, bound_us),
        status: best.status.to_string(),
        solver: best.solver.to_string(),
        limits: limits(options, enough, limit_bytes),
        evaluated_us: best.evaluation.total_us,
        space: space_facts(&found, on, &blocks),
    };
    Ok(SearchResult {
        strategy: best.strategy.clone(),
        certificate,
        baselines: baselines(graph, &found, limit_bytes),
        evaluation: best.evaluation.clone(),
        relaxed_us,
        enough,
        log: found.iter().map(|f| f.log.clone()).collect(),
    })
}

/// Searches within the memory, the mesh with the lowest bound first: what fits there often spares the others.
fn run(posed: Vec<Posed<'_>>, mut known_us: Option<f64>) -> Result<Vec<Found>, SearchError> {
    let mut queue: Vec<(usize, Posed<'_>)> = posed.into_iter().enumerate().collect();
    queue.sort_by(|(_, a), (_, b)| a.bound_us.total_cmp(&b.bound_us));
    let mut found = Vec::with_capacity(queue.len());
    for (at, posed) in queue {
        let on = posed.run(known_us)?;
        if let Some(best) = &on.best {
            let us = best.evaluation.total_us;
            known_us = Some(known_us.map_or(us, |known| known.min(us)));
        }
        found.push((at, on));
    }
    found.sort_by_key(|(at, _)| *at);
    Ok(found.into_iter().map(|(_, on)| on).collect())
}

fn limits(options: &SearchOptions, enough: f64, limit_bytes: u64) -> BTreeMap<String, String> {
    let mut limits = BTreeMap::from([
        ("relative gap".to_string(), enough.to_string()),
        ("nodes".to_string(), options.limits.max_nodes.to_string()),
        ("memory bytes".to_string(), limit_bytes.to_string()),
    ]);
    if let Some(seconds) = options.limits.time_limit_s {
        limits.insert("seconds".to_string(), seconds.to_string());
    }
    limits
}

fn space_facts(found: &[Found], on: &Found, blocks: &Blocks) -> BTreeMap<String, u64> {
    let size = on.log.size;
    let repeats = blocks.runs.iter().map(|r| (r.nodes / r.period) as u64).max().unwrap_or(1);
    let facts = [
        ("meshes", found.len() as u64),
        ("decisions", size.decisions),
        ("candidates", size.candidates),
        ("columns", size.columns),
        ("rows", size.rows),
        ("memory_rows", size.memory_rows),
        ("nodes", size.nodes),
        ("distinct_nodes", blocks.distinct_nodes() as u64),
        ("distinct_blocks", blocks.runs.len() as u64),
        ("repeats", repeats),
    ];
    facts.into_iter().map(|(name, n)| (name.to_string(), n)).collect()
}

/// Each baseline on the mesh on which it is quickest, among those on which it fits if there are any.
fn baselines(graph: &Graph, found: &[Found], limit_bytes: u64) -> Vec<Baseline> {
    let priced = baselines::baselines(graph).into_iter().filter_map(|baseline| {
        let all = found.iter().flat_map(|f| &f.baselines).filter(|p| p.baseline == baseline);
        all.map(|p| Baseline {
            name: baseline.name().to_string(),
            mesh: p.mesh.to_string(),
            total_us: p.evaluation.total_us,
            memory_bytes: p.evaluation.memory_bytes,
            fits: p.evaluation.memory_bytes <= limit_bytes,
        })
        .min_by(|a, b| b.fits.cmp(&a.fits).then(a.total_us.total_cmp(&b.total_us)))
    });
    priced.collect()
}

#[cfg(test)]
mod tests;
