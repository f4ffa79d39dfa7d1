//! Errors of the command line: the libraries' errors, and those of files and arguments.

use std::path::PathBuf;
use thiserror::Error;

/// Why a verb failed.
#[derive(Debug, Error)]
pub enum CliError {
    #[error("{0}")]
    Import(#[from] planc_ir::onnx::ImportError),
    #[error("{0}")]
    Cluster(#[from] planc_cost_model::CostError),
    #[error("{0}")]
    Compile(#[from] planc::pipeline::CompileError),
    #[error("{path}: {source}", path = path.display())]
    Plan { path: PathBuf, source: planc_ir::plan::PlanError },
    #[error("{0}")]
    Run(#[from] planc_runtime::RunError),
    #[error("{0}")]
    Verify(#[from] planc::verify::VerifyError),
    #[error("{0}")]
    Model(#[from] planc_models::ModelError),
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Usage(String),
}

impl CliError {
    /// An I/O error at `path`.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
