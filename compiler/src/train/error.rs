//! Why a model cannot be trained.

use super::Recompute;
use planc_ir::{DType, OpError, TensorType};
use thiserror::Error;

/// A training step that cannot be made.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum TrainError {
    #[error(
        "node `{node}` ({op}) stands between a parameter and the loss: {why}; freeze the parameters before \
         it, or export the model in another form"
    )]
    Gradient { node: String, op: &'static str, why: OpError },
    #[error("nothing to train: the loss depends on no floating-point weight that is not frozen")]
    NoParameters,
    #[error("a step has at least one micro-batch")]
    MicroBatches,
    #[error("gradients cannot be scaled down to a norm of {norm}: it is a positive number")]
    ClipNorm { norm: f64 },
    #[error("the model has no output `{name}`; it has {}", outputs.join(", "))]
    NoOutput { name: String, outputs: Vec<String> },
    #[error("output `{name}` is {ty}: {expected}")]
    LossType { name: String, ty: TensorType, expected: &'static str },
    #[error("`{pattern}` is no pattern: {why}")]
    Pattern { pattern: String, why: String },
    #[error("`{pattern}` freezes nothing: no floating-point weight has such a name")]
    FreezesNothing { pattern: String },
    #[error("weight `{name}` has elements of type {dtype}, whose updates planc cannot keep")]
    ParameterType { name: String, dtype: DType },
    #[error(
        "node `{node}` ({op}) cannot compute in {dtype}: {why}; train in the model's own precision"
    )]
    Precision { node: String, op: &'static str, dtype: DType, why: OpError },
    #[error("while building the step, at `{at}`: {why}")]
    Build { at: String, why: OpError },
    #[error("the step has no such pipeline: {0}")]
    Pipeline(#[from] PipelineError),
}

/// A pipeline into which a step cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum PipelineError {
    #[error(
        "cuts ascend and lie between nodes of the forward phase, of which there are {forward}; {cut} does not"
    )]
    Cut { cut: usize, forward: usize },
    #[error("{cuts} cuts make {} parts, but {holders} are held by a stage", cuts + 1)]
    Holders { cuts: usize, holders: usize },
    #[error("stages are numbered from 0 on, and each holds a part; stage {stage} holds none")]
    NoPart { stage: u32 },
    #[error("there are {stages} stages, but it is said of {found} {what}")]
    Policies { stages: usize, found: usize, what: &'static str },
    #[error(
        "stage {stage} holds several parts and computes {recompute} again, which has no place in any of them"
    )]
    Recompute { stage: usize, recompute: Recompute },
}
