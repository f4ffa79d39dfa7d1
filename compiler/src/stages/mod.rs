//! Pipelines: a graph cut into the graphs of stages.
//!
//! ```text
//! Graph ──sums──▶ Graph ──assign──▶ a place for each node ──cut──▶ a graph for each stage, and channels
//!   each stage ──plan──▶ its strategy
//! ```

pub mod assign;
mod balance;
pub mod cut;
mod devices;
pub mod error;
pub mod grid;
pub mod plan;
mod sums;

pub use cut::{StageGraph, Stages};
pub use error::StageError;
pub use plan::{Pipelines, Pipelining, PlannedPipeline, PlannedStage, Planner};

use planc_ir::Graph;

/// The stages of a graph whose forward phase is cut before the nodes of these numbers, which ascend. Part `p`, from
/// cut to cut, is held by stage `holders[p]`.
pub fn stages(graph: &Graph, cuts: &[usize], holders: &[u32]) -> Stages {
    let graph = sums::split_sums(graph, cuts);
    let places = assign::assign(&graph, cuts);
    cut::cut(&graph, &places, holders)
}
