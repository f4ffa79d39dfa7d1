//! What can go wrong inside one operator. The caller adds the node's name.

use crate::DType;
use thiserror::Error;

/// An operator whose inputs or attributes contradict its definition.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum OpError {
    #[error("expects {expected} inputs, has {found}")]
    InputCount { expected: String, found: usize },
    #[error("input {index} is required but missing")]
    MissingInput { index: usize },
    #[error("attribute `{name}` is required but missing")]
    MissingAttribute { name: &'static str },
    #[error("attribute `{name}`: {why}")]
    BadAttribute { name: &'static str, why: String },
    #[error("input {index} has rank {found}, expected {expected}")]
    Rank { index: usize, found: usize, expected: String },
    #[error("axis {axis} is out of range for rank {rank}")]
    Axis { axis: i64, rank: usize },
    #[error("shapes {lhs:?} and {rhs:?} do not match: {why}")]
    ShapeMismatch { lhs: Vec<u64>, rhs: Vec<u64>, why: &'static str },
    #[error("element types {lhs} and {rhs} differ; both must be the same")]
    TypeMismatch { lhs: DType, rhs: DType },
    #[error("does not take elements of type {found}")]
    UnsupportedType { found: DType },
    #[error("input {index} must be known when the model is imported (it decides a shape): {why}")]
    NotConstant { index: usize, why: &'static str },
    #[error("cannot be differentiated: {why}")]
    NotDifferentiable { why: String },
    #[error("{0}")]
    Invalid(String),
    #[error("unsupported: {0}")]
    Unsupported(String),
}

/// An evaluation that cannot be carried out on these values.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum EvalError {
    #[error("index {index} is out of range for an axis of extent {extent}")]
    Index { index: i64, extent: u64 },
    #[error("would take {bytes} bytes, more than the limit of {limit_bytes}")]
    TooLarge { bytes: u64, limit_bytes: u64 },
    #[error("would run {iterations} iterations, more than the limit of {limit}")]
    TooLong { iterations: u64, limit: u64 },
    #[error("does not evaluate elements of type {0}")]
    Type(DType),
    #[error("{0}")]
    Invalid(String),
}
