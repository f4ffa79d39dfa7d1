//! From a model and a cluster to a plan: the passes, in order.

use crate::emit::{self, EmitError};
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
    #[error("planc emitted a program that its own verifier rejects, which is a bug: {}", .0.join("; "))]
    Unverified(Vec<String>),
}

/// A plan and what is known of how it came about.
#[derive(Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
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
    progress("searching");
    let search = search::search(&model.graph, cost, options)?;
    progress("partitioning");
    let program = planc_codegen::partition(&model.graph, &search.strategy, cost)?;
    let findings = program::verify::verify(&program);
    if !findings.is_empty() {
        return Err(CompileError::Unverified(findings.iter().map(ToString::to_string).collect()));
    }
    let plan = emit::plan(model, file, cost, &search, program)?;
    Ok(Compiled { plan, search })
}
