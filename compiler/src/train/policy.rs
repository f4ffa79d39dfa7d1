//! What is kept for the backward phase and what is made again: the choices around the search.
//!
//! Values are made again to save memory, not time: keeping a value is taken to cost no more than making it
//! again. So if the quickest strategy of the step that keeps everything fits, it is the answer for all policies.
//! Else each policy is searched within the memory, and the quickest answer wins. Left out are policies whose
//! bound (everything kept, and what is made again at its least) shows that they cannot win; of the number of
//! recomputed blocks the least that fits is found by halving.
//!
//! The certificate is that of all policies: what recomputes fewer blocks than some that do not fit does not
//! fit either, and what recomputes more is bounded by what is quickest with fewer, memory aside.

use super::recompute::{Recompute, blocks, recompute};
use crate::search::solver::{Status, relative_gap};
use crate::search::{SearchError, SearchOptions, SearchResult, costs::Costs, search};
use crate::stages::Pipelines;
use planc_ir::plan::Certificate;
use planc_ir::{Graph, Phase};

/// What is settled beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// What is recomputed.
    pub recompute: Option<Recompute>,
    /// Whether weights are gathered again for the backward phase.
    pub gather_again: Option<bool>,
    /// The pipelines to choose from; a mesh is then that of each stage. Without any, there is one stage.
    pub pipeline: Option<Pipelines>,
}

/// A step with its policy and strategy.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The step, with what it recomputes.
    pub graph: Graph,
    /// What that is.
    pub recompute: Recompute,
    /// The strategy.
    pub search: SearchResult,
    /// What keeping everything would take at least in time, and the bytes of the quickest strategy where
    /// memory counts for nothing. `None` if that was not asked for.
    pub unlimited: Option<(f64, u64)>,
}

/// The best policy and strategy for a step.
///
/// # Errors
/// If nothing fits, or the search fails.
pub fn plan(
    step: &Graph,
    costs: &dyn Costs,
    options: &SearchOptions,
    asked: Asked,
    progress: &dyn Fn(&str),
) -> Result<Planned, SearchError> {
    let limit_bytes = options.memory_bytes.unwrap_or_else(|| costs.memory_bytes());
    let mut unlimited = None;
    if asked.recompute.is_none_or(|r| r == Recompute::Nothing) && asked.gather_again != Some(true) {
        progress("searching, with everything kept");
        let free = SearchOptions { memory_bytes: Some(u64::MAX), ..options.clone() };
        let found = search(step, costs, &free)?;
        let (us, bytes) = (found.certificate.bound_us, found.evaluation.memory_bytes);
        unlimited = Some((us, bytes));
        if bytes <= limit_bytes {
            let (graph, recompute) = (step.clone(), Recompute::Nothing);
            return Ok(Planned { graph, recompute, search: found, unlimited });
        }
    }
    let mut policies = Policies {
        step,
        costs,
        options,
        best: None,
        bound_us: f64::INFINITY,
        is_settled: asked.recompute.is_some(),
        failed: None,
        unlimited,
        progress,
    };
    // Gathering again takes least memory, so something that fits is found soonest.
    let again = asked.gather_again.map_or(vec![true, false], |again| vec![again]);
    if let Some(recompute) = asked.recompute {
        let recompute = match recompute {
            Recompute::Blocks(n) => Recompute::Blocks(n.min(blocks(step).len() as u32)),
            other => other,
        };
        for &again in &again {
            policies.attempt(recompute, again)?;
        }
    } else {
        let all = blocks(step).len() as u32;
        for &again in &again {
            policies.attempt(Recompute::Cheap, again)?;
            policies.fewest_blocks(all, again)?;
            policies.attempt(Recompute::Nothing, again)?;
        }
    }
    match (policies.best, policies.failed) {
        (Some(mut best), _) => {
            lower(&mut best.search.certificate, policies.bound_us);
            Ok(best)
        }
        (None, error) => Err(error.unwrap_or(SearchError::Stopped)),
    }
}

/// Lowers a certificate's bound to one that holds for more.
fn lower(certificate: &mut Certificate, bound_us: f64) {
    if bound_us < certificate.bound_us {
        certificate.bound_us = bound_us;
        certificate.gap = relative_gap(certificate.objective_us, bound_us);
        certificate.status = Status::GapLimit.name().to_string();
    }
}

struct Policies<'a> {
    step: &'a Graph,
    costs: &'a dyn Costs,
    options: &'a SearchOptions,
    best: Option<Planned>,
    /// No policy is quicker.
    bound_us: f64,
    /// Whether the caller says what is recomputed.
    is_settled: bool,
    /// Why the policy that came closest does not fit.
    failed: Option<SearchError>,
    unlimited: Option<(f64, u64)>,
    progress: &'a dyn Fn(&str),
}

impl Policies<'_> {
    /// Searches under a policy; whether something fits, or nothing could be quicker than the best so far.
    fn attempt(&mut self, recompute: Recompute, gather_again: bool) -> Result<bool, SearchError> {
        let gathers = if gather_again { ", gathering weights again" } else { "" };
        (self.progress)(&format!("searching, recomputing {recompute}{gathers}"));
        let graph = self::recompute(self.step, recompute);
        if let (Some(best), Some((kept_us, _))) = (&self.best, self.unlimited) {
            let least_us = kept_us + self.again_us(&graph);
            let known_us = best.search.evaluation.total_us;
            if least_us >= known_us * (1.0 - best.search.enough) {
                self.bound_us = self.bound_us.min(least_us);
                return Ok(true);
            }
        }
        let cutoff_us = self.best.as_ref().map(|b| b.search.evaluation.total_us);
        let options = SearchOptions { gather_again, cutoff_us, ..self.options.clone() };
        let found = match search(&graph, self.costs, &options) {
            Ok(found) => found,
            Err(SearchError::NoQuicker { bound_us }) => {
                self.bound_us = self.bound_us.min(bound_us);
                return Ok(true);
            }
            Err(error @ (SearchError::NothingFits { .. } | SearchError::Stopped)) => {
                if error == SearchError::Stopped {
                    self.bound_us = self.unlimited.map_or(0.0, |(us, _)| us.min(self.bound_us));
                }
                self.failed = Some(leaner(self.failed.take(), error));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        self.bound_us = self.bound_us.min(found.certificate.bound_us);
        if matches!(recompute, Recompute::Blocks(_)) && !self.is_settled {
            self.bound_us = self.bound_us.min(found.relaxed_us); // holds for more blocks too
        }
        let us = found.evaluation.total_us;
        if self.best.as_ref().is_none_or(|b| us < b.search.evaluation.total_us) {
            let unlimited = self.unlimited;
            self.best = Some(Planned { graph, recompute, search: found, unlimited });
        }
        Ok(true)
    }

    /// What the nodes that a policy adds to the step take at least: their time on one device, split evenly.
    fn again_us(&self, graph: &Graph) -> f64 {
        let compute_us = |graph: &Graph| -> f64 {
            let backward = graph.node_ids().filter(|&id| graph.node(id).phase == Phase::Backward);
            let us = backward.map(|id| {
                let outputs = graph.output_types(id);
                let work = graph.node(id).op.work(&graph.input_types(id), &outputs);
                outputs.first().map_or(0.0, |first| self.costs.op_us(&work, first.dtype))
            });
            us.sum::<f64>() * f64::from(graph.repeats(Phase::Backward))
        };
        (compute_us(graph) - compute_us(self.step)) / f64::from(self.costs.devices().max(1))
    }

    /// Searches with the fewest recomputed blocks with which something fits.
    fn fewest_blocks(&mut self, all: u32, gather_again: bool) -> Result<(), SearchError> {
        if all == 0 || !self.attempt(Recompute::Blocks(all), gather_again)? {
            return Ok(());
        }
        let (mut too_few, mut enough) = (0, all);
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            if self.attempt(Recompute::Blocks(middle), gather_again)? {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        Ok(())
    }
}

/// Of two policies under which nothing fits the one that needs less.
fn leaner(so_far: Option<SearchError>, other: SearchError) -> SearchError {
    let needs = |e: &SearchError| match e {
        SearchError::NothingFits { least_bytes, .. } => *least_bytes,
        _ => u64::MAX,
    };
    match so_far {
        Some(so_far) if needs(&so_far) <= needs(&other) => so_far,
        _ => other,
    }
}
