//! What is kept for the backward phase and what is made again: the choices around the search.
//!
//! Recomputing and gathering again only add work. So if the quickest strategy of the step that keeps
//! everything fits, it is the answer for all policies. Else each policy is searched within the memory, and
//! the quickest answer wins; of the number of recomputed blocks the least that fits is found by halving.

use super::recompute::{Recompute, blocks, recompute};
use crate::search::{SearchError, SearchOptions, SearchResult, costs::Costs, search};
use planc_ir::Graph;

/// What is settled beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// What is recomputed.
    pub recompute: Option<Recompute>,
    /// Whether weights are gathered again for the backward phase.
    pub gather_again: Option<bool>,
}

/// A step with its policy and strategy.
#[derive(Debug)]
pub struct Planned {
    /// The step, with what it recomputes.
    pub graph: Graph,
    /// What that is.
    pub recompute: Recompute,
    /// The strategy.
    pub search: SearchResult,
    /// What keeping everything would take at least in time, and then in bytes: the quickest strategy where
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
        let (us, bytes) = (found.evaluation.total_us, found.evaluation.memory_bytes);
        unlimited = Some((us, bytes));
        if bytes <= limit_bytes {
            let (graph, recompute) = (step.clone(), Recompute::Nothing);
            return Ok(Planned { graph, recompute, search: found, unlimited });
        }
    }
    let mut policies =
        Policies { step, costs, options, best: None, failed: None, unlimited, progress };
    let again = asked.gather_again.map_or(vec![false, true], |again| vec![again]);
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
        (Some(best), _) => Ok(best),
        (None, error) => Err(error.unwrap_or(SearchError::Stopped)),
    }
}

struct Policies<'a> {
    step: &'a Graph,
    costs: &'a dyn Costs,
    options: &'a SearchOptions,
    best: Option<Planned>,
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
        let cutoff_us = self.best.as_ref().map(|b| b.search.evaluation.total_us);
        let options = SearchOptions { gather_again, cutoff_us, ..self.options.clone() };
        let found = match search(&graph, self.costs, &options) {
            Ok(found) => found,
            Err(SearchError::NoQuicker { .. }) => return Ok(true),
            Err(error @ (SearchError::NothingFits { .. } | SearchError::Stopped)) => {
                self.failed = Some(leaner(self.failed.take(), error));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let us = found.evaluation.total_us;
        if self.best.as_ref().is_none_or(|b| us < b.search.evaluation.total_us) {
            let unlimited = self.unlimited;
            self.best = Some(Planned { graph, recompute, search: found, unlimited });
        }
        Ok(true)
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
