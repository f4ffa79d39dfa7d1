//! From a model and a cluster to a plan: the passes, in order.

use crate::emit::{self, EmitError};
use crate::rewrite::{self, Raised};
use crate::search::{self, SearchError, SearchOptions, SearchResult};
use planc_codegen::CodegenError;
use planc_cost_model::CostModel;
use planc_ir::onnx::Model;
use planc_ir::plan::Plan;
use planc_ir::program;
use thiserror::Error;

/// A pass that failed.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum CompileError {
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    #[error(transparent)]
    Emit(#[from] EmitError),
    #[error(
        "the plan's buffers take {arena_bytes} bytes of each device once they have their places, more \
         than the {limit_bytes} that it may hold; use more or larger devices, or a smaller batch"
    )]
    Arena { arena_bytes: u64, limit_bytes: u64 },
    #[error("planc emitted a program that its own verifier rejects, which is a bug: {}", .0.join("; "))]
    Unverified(Vec<String>),
}

/// A plan and what is known of how it came about.
#[derive(Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
    /// The graph that was planned: the model's, with idioms as single ops.
    pub raised: Raised,
    /// The search's result.
    pub search: SearchResult,
}

/// Compiles `model` for the cluster of `cost`. `progress` is told what is being done.
///
/// # Errors
/// The first pass that fails; nothing is written anywhere.
pub fn compile(
    model: &Model,
    file: &str,
    cost: &CostModel,
    options: &SearchOptions,
    progress: &dyn Fn(&str),
) -> Result<Compiled, CompileError> {
    progress("raising");
    let raised = rewrite::raise(&model.graph);
    let graph = &raised.graph;
    progress("searching");
    let search = search::search(graph, cost, options)?;
    progress("partitioning");
    let program = planc_codegen::partition(graph, &search.strategy, cost)?;
    // The search counts what is live at once; gaps between buffers may come on top.
    let limit_bytes = options.memory_bytes.unwrap_or_else(|| cost.memory_bytes());
    if program.arena_bytes > limit_bytes {
        return Err(CompileError::Arena { arena_bytes: program.arena_bytes, limit_bytes });
    }
    let findings = program::verify::verify(&program);
    if !findings.is_empty() {
        return Err(CompileError::Unverified(findings.iter().map(ToString::to_string).collect()));
    }
    let plan = emit::plan(model, graph, file, cost, &search, program)?;
    Ok(Compiled { plan, raised, search })
}
