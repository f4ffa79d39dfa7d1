//! Why a model cannot be built.

use crate::config::Size;
use planc_ir::DType;
use std::path::PathBuf;
use thiserror::Error;

/// A configuration that describes no model, or a file that cannot be written.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum ModelError {
    #[error("there is no model family `{name}`; choose one of {known}")]
    UnknownFamily { name: String, known: String },
    #[error("family `{family}` has no size `{}`; it has {known}", size.name())]
    Inapplicable { family: &'static str, size: Size, known: String },
    #[error("`{}` is {value}, but must be from {least} to {most}", size.name())]
    OutOfRange { size: Size, value: u64, least: u64, most: u64 },
    #[error("`{}` ({size_value}) must be a multiple of `{}` ({divisor_value})", size.name(), divisor.name())]
    Indivisible { size: Size, size_value: u64, divisor: Size, divisor_value: u64 },
    #[error(
        "a head's width, `hidden` / `heads`, is {width}, but rotary positions need an even one"
    )]
    OddHeadWidth { width: u64 },
    #[error("`batch` must be at least 1, or left out to make it symbolic")]
    EmptyBatch,
    #[error("family `{family}` has no {what}")]
    NoSuchChoice { family: &'static str, what: &'static str },
    #[error("weights of type {found} are not supported; choose f32, f16 or bf16")]
    UnsupportedType { found: DType },
    #[error(
        "the weights take {bytes} bytes, more than the {limit_bytes} that are written into the file; \
         leave them out (`--weights none`) or make the model smaller"
    )]
    TooLargeForRandom { bytes: u64, limit_bytes: u64 },
    #[error("the weights would take more than 2^63 bytes; make the model smaller")]
    TooLarge,
    #[error("cannot make a tensor: {0}")]
    Tensor(#[from] planc_ir::EvalError),
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: std::io::Error },
}
