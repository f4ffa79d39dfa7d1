//! Checks that a plan computes what a model says, without trusting the search or the partitioner.
//!
//! 1. **Structure** ([`structure`]): the plan is of this model (digest); its programs pass the program
//!    verifier; each node of the raised model appears exactly once, as the kernel that its op lowers to, reading
//!    and writing buffers of its own values in the shardings that its factor rule derives from its
//!    strategy; everything else only reshards. Together with the factor rules (which are tested op by
//!    op) this is a proof of equivalence.
//! 2. **Numbers** ([`numbers`]): the plan's strategies are executed on virtual CPU ranks and compared with
//!    the reference evaluation of the model as it was imported, which checks the raising too, on the model's own dimensions if that is cheap, else on small ones.
//!
//! A plan of training steps says what its step was made from ([`Settings`]), so the step is made again and the
//! plan is compared with that. The numbers of a step are its outputs and all state after it. Of a pipeline, the step
//! is cut again, each stage is compared with its own part, and all stages run together.

pub mod compare;
mod graphs;
pub mod numbers;
mod step;
pub mod structure;

pub use compare::{Comparison, Tolerance, compare, random_inputs};
pub use graphs::{Expected, Graphs};
pub use numbers::Numerical;

use crate::train::{Settings, TrainError};
use planc_ir::onnx::{ImportError, ImportOptions, import};
use planc_ir::plan::Plan;
use std::collections::BTreeMap;
use std::path::Path;
use thiserror::Error;

/// What to check with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Symbolic dimensions for the numerical check.
    pub bind: BTreeMap<String, u64>,
    /// Seed of the inputs, and of the weights where the model's are absent.
    pub seed: u64,
}

/// A check that could not be made.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum VerifyError {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(
        "the plan is for another model: its digest is {expected}, that of {file} is {found}; plan this model anew"
    )]
    OtherModel { file: String, expected: String, found: String },
    #[error("what the plan says of its training step cannot be read: {0}; plan the model anew")]
    Settings(serde_json::Error),
    #[error("the plan's training step cannot be made from the model: {0}")]
    Train(#[from] TrainError),
    #[error("running the plan failed: {0}")]
    Run(#[from] planc_runtime::RunError),
    #[error("the reference evaluation failed: {0}")]
    Reference(#[from] planc_ir::interp::InterpError),
    #[error("the plan's cluster is not one: {0}")]
    Cluster(String),
    #[error("the plan gives no result `{name}`")]
    NoResult { name: String },
    #[error(transparent)]
    Codegen(#[from] planc_codegen::CodegenError),
    #[error(transparent)]
    Eval(#[from] planc_ir::EvalError),
}

/// What was found.
#[derive(Debug)]
pub struct Report {
    /// What is wrong with the structure; empty if nothing is.
    pub findings: Vec<String>,
    /// Number of instructions checked.
    pub instructions: usize,
    /// Number of buffers checked.
    pub buffers: usize,
    /// The numerical check.
    pub numerical: Numerical,
}

/// Checks `plan` against the model at `path`.
///
/// # Errors
/// If the model cannot be read, is another one, or a check cannot be carried out. A plan that is wrong is
/// no error but a report with findings or with differing numbers.
pub fn verify(plan: &Plan, path: &Path, options: &Options) -> Result<Report, VerifyError> {
    let settings = settings(plan)?;
    let model = import(path, &imported(settings.as_ref(), plan.model.bindings.clone()))?;
    if model.digest != plan.model.digest {
        return Err(VerifyError::OtherModel {
            file: path.display().to_string(),
            expected: plan.model.digest.clone(),
            found: model.digest,
        });
    }
    let graphs = Graphs::of(model.graph, settings.as_ref())?;
    let findings = structure::check(plan, &graphs);
    let numerical = if findings.is_empty() {
        numbers::check(plan, &graphs, settings.as_ref(), path, options)?
    } else {
        Numerical::Skipped { why: "the structure is wrong".to_string() }
    };
    Ok(Report {
        findings,
        instructions: plan.stages.iter().map(|s| s.program.instrs.len()).sum(),
        buffers: plan.stages.iter().map(|s| s.program.buffers.len()).sum(),
        numerical,
    })
}

/// How the model of a plan with these settings is imported.
fn imported(settings: Option<&Settings>, bind: BTreeMap<String, u64>) -> ImportOptions {
    match settings {
        Some(settings) => settings.step.import(bind),
        None => ImportOptions { bind, ..ImportOptions::default() },
    }
}

/// What the plan's training step was made from, if its steps train.
fn settings(plan: &Plan) -> Result<Option<Settings>, VerifyError> {
    let read = |t: &planc_ir::plan::Training| serde_json::from_value(t.settings.clone());
    plan.training.as_ref().map(read).transpose().map_err(VerifyError::Settings)
}
