//! Errors of the command line: the libraries' errors, and those of files and arguments.

use planc_ir::plan::PlanError;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a verb failed.
#[derive(Debug, Error)]
pub enum CliError {
    #[error("{0}")]
    Import(#[from] planc_ir::onnx::ImportError),
    #[error("{0}")]
    Cluster(#[from] planc_cost_model::CostError),
    #[error("{0}")]
    Compile(#[from] planc::compile::CompileError),
    #[error("{path}: {source}", path = path.display())]
    Plan { path: PathBuf, source: PlanError },
    #[error("{0}")]
    PlanFile(PlanError),
    #[error("{0}")]
    Run(#[from] planc_runtime::RunError),
    #[error("{0}")]
    Checkpoint(#[from] planc_runtime::checkpoint::CheckpointError),
    #[error("{0}")]
    Data(#[from] planc_runtime::data::DataError),
    #[error("{0}")]
    Trace(#[from] planc::trace::TraceError),
    #[error("{0}")]
    Verify(#[from] planc::verify::VerifyError),
    #[error("{0}")]
    Model(#[from] planc_models::ModelError),
    #[error("{0}")]
    TensorFile(#[from] planc_ir::onnx::tensor::TensorFileError),
    #[error("{0}")]
    Eval(#[from] planc_ir::EvalError),
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Usage(String),
}

impl CliError {
    /// What is wrong with the plan at `path`.
    pub fn plan(path: &Path) -> impl FnOnce(PlanError) -> Self {
        let path = path.to_path_buf();
        move |source| match source {
            PlanError::Io { .. } => Self::PlanFile(source), // names the path itself
            source => Self::Plan { path, source },
        }
    }

    /// An I/O error at `path`.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
