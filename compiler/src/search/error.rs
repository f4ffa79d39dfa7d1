//! Why there is no answer.

use super::evaluate::EvaluateError;
use super::on_mesh::Found;
use super::solver::SolverError;
use planc_ir::{Graph, Value, ValueDef};
use thiserror::Error;

/// A search without an answer.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum SearchError {
    #[error(
        "nothing fits: each device may hold {limit_bytes} bytes, and the least that any strategy on \
         any mesh needs is {least_bytes}, of which weights are {weight_bytes}; the largest value is \
         `{largest}` with {largest_bytes} bytes in all; use more or larger devices, or a smaller batch"
    )]
    NothingFits {
        limit_bytes: u64,
        least_bytes: u64,
        weight_bytes: u64,
        largest: String,
        largest_bytes: u64,
    },
    #[error("mesh {mesh}: {source}")]
    Solver { mesh: String, source: SolverError },
    #[error("mesh {mesh}: a strategy of the search has no price: {source}")]
    Evaluate { mesh: String, source: EvaluateError },
    #[error(
        "mesh {mesh} needs {ranks} devices and the cluster has {devices}; give a smaller mesh or a \
         larger cluster"
    )]
    MeshTooLarge { mesh: String, ranks: u32, devices: u32 },
    #[error("what fits was not searched: nothing is quicker than {bound_us} µs")]
    NoQuicker { bound_us: f64 },
    #[error("the solver stopped before it found anything that fits; raise its limits")]
    Stopped,
}

/// The error that says what would be needed.
pub fn nothing_fits(graph: &Graph, found: &[Found], limit_bytes: u64) -> SearchError {
    let least = found.iter().filter_map(|f| f.least.as_ref()).min_by_key(|e| e.memory_bytes);
    let Some(least) = least else { return SearchError::Stopped };
    let is_result = |v: &&Value| matches!(v.def, ValueDef::Node { .. });
    let largest = graph.values.iter().filter(is_result).max_by_key(|v| v.ty.bytes());
    SearchError::NothingFits {
        limit_bytes,
        least_bytes: least.memory_bytes,
        weight_bytes: least.weight_bytes,
        largest: largest.map_or_else(String::new, |v| v.name.clone()),
        largest_bytes: largest.map_or(0, |v| v.ty.bytes()),
    }
}
