//! What can go wrong while loading and running, as the user should read it.

use planc_ir::plan::pipeline;
use planc_ir::program::verify::Finding;
use planc_ir::{DType, EvalError, TensorType};
use std::path::PathBuf;
use thiserror::Error;

/// A kernel that cannot be carried out on its operands. The executor adds rank, instruction and node.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum KernelError {
    #[error("index {index} is out of range for an axis of extent {extent}")]
    Index { index: i64, extent: u64 },
    #[error("the {kernel} kernel does not take elements of type {dtype}")]
    Type { kernel: &'static str, dtype: DType },
    #[error("operands do not fit the {kernel} kernel: {why}")]
    Operands { kernel: &'static str, why: String },
    #[error("cannot allocate {bytes} bytes of workspace")]
    Memory { bytes: u64 },
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error(transparent)]
    Comm(#[from] CommError),
}

/// A collective that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum CommError {
    #[error("ended because another rank failed")]
    Aborted,
    #[error("{collective}: {why}")]
    Mismatch { collective: &'static str, why: String },
    #[error("cannot allocate {bytes} bytes for a message")]
    Memory { bytes: u64 },
}

/// A weight that cannot be read.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum WeightError {
    #[error("there is no weight of this name")]
    Unknown,
    #[error("the program wants {expected}, the plan lists {found}")]
    Type { expected: TensorType, found: TensorType },
    #[error(transparent)]
    File(#[from] planc_ir::weights::WeightError),
    #[error(transparent)]
    Tensor(#[from] planc_ir::EvalError),
}

/// A plan or program that cannot be loaded, or failed while running.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum RunError {
    #[error("cannot read the model {}: {source}", path.display())]
    Model { path: PathBuf, source: std::io::Error },
    #[error(
        "the plan was made for another model: {} has digest {found}, the plan is for {expected}; \
         plan this model, or name the right file",
        path.display()
    )]
    OtherModel { path: PathBuf, expected: String, found: String },
    #[error("a step of this plan takes {expected} micro-batches, got {found}")]
    MicroBatches { expected: usize, found: usize },
    #[error("the plan is one of inference: plan the model for training")]
    NoTraining,
    #[error("what the plan says of training is not sound: {why}")]
    Training { why: String },
    #[error("the plan's {what} `{name}` is not sound: {why}")]
    Contents { what: &'static str, name: String, why: String },
    #[error("the program is not valid, so it was not run: {}", listed(findings))]
    Program { findings: Vec<Finding> },
    #[error("the stages of the plan do not fit together, so it was not run: {}", listed(findings))]
    Pipeline { findings: Vec<pipeline::Finding> },
    #[error("{ranks} ranks are more than the {limit} that run in one process")]
    Ranks { ranks: u64, limit: u64 },
    #[error(
        "rank {rank}: cannot allocate an arena of {bytes} bytes; plan for more ranks or a smaller batch"
    )]
    Memory { rank: u32, bytes: u64 },
    #[error("cannot start the thread of rank {rank}: {source}")]
    Thread { rank: u32, source: std::io::Error },
    #[error("input `{name}` ({ty}) is missing")]
    MissingInput { name: String, ty: TensorType },
    #[error("`{name}` is not an input; the inputs are {}", inputs.join(", "))]
    UnknownInput { name: String, inputs: Vec<String> },
    #[error("input `{name}` is {found}, expected {expected}")]
    InputType { name: String, expected: TensorType, found: TensorType },
    #[error("constant `{name}` ({ty}) is missing from the plan or has another type")]
    Constant { name: String, ty: TensorType },
    #[error("the program has no weight `{name}`")]
    NoWeight { name: String },
    #[error("rank {rank}: weight `{name}`: {source}")]
    Weight { rank: u32, name: String, source: WeightError },
    #[error("rank {rank}, instruction {instr} (node `{node}`): {source}")]
    Kernel { rank: u32, instr: usize, node: String, source: KernelError },
    #[error("rank {rank}, instruction {instr} (reshard of `{value}`): {source}")]
    Reshard { rank: u32, instr: usize, value: String, source: KernelError },
    #[error("rank {rank}, instruction {instr} (transfer of `{value}`): {source}")]
    Transfer { rank: u32, instr: usize, value: String, source: KernelError },
    #[error("rank {rank} panicked at {place}: {message}; this is a defect of planc")]
    Panic { rank: u32, place: String, message: String },
    #[error("output `{name}`: rank {rank} and rank {replica} hold different copies")]
    Diverged { name: String, rank: u32, replica: u32 },
    #[error("output `{name}`: {source}")]
    Output { name: String, source: EvalError },
}

impl RunError {
    /// Whether the rank only ended because another one failed.
    pub(crate) fn is_consequence(&self) -> bool {
        matches!(
            self,
            Self::Reshard { source: KernelError::Comm(CommError::Aborted), .. }
                | Self::Transfer { source: KernelError::Comm(CommError::Aborted), .. }
        )
    }
}

/// The first findings, and how many follow.
fn listed(findings: &[impl ToString]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = findings.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = findings.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join("; "))
}
