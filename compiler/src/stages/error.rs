//! Why there is no pipeline.

use crate::search::SearchError;
use planc_codegen::{CodegenError, ScheduleError};
use planc_ir::program::pipeline::OrderFinding;
use thiserror::Error;

/// A pipeline that cannot be.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum StageError {
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    #[error("{devices} devices cannot be divided evenly among {stages} stages")]
    Devices { devices: u32, stages: u32 },
    #[error(
        "the model has {nodes} nodes to cut between, which make no {parts} parts; ask for fewer stages"
    )]
    Parts { nodes: usize, parts: u32 },
    #[error("schedule `{schedule}` has no backward phase, and the step has one; choose another")]
    Inference { schedule: &'static str },
    #[error(
        "stages that hold several parts recompute nothing; leave out `--recompute`, or choose another schedule"
    )]
    Recompute,
    #[error("planc emitted orders that do not come to an end, which is a bug: {}", list(.0))]
    Order(Vec<OrderFinding>),
}

fn list(findings: &[OrderFinding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
