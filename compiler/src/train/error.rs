//! Why a model cannot be trained.

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
}
