//! `planc model FAMILY`: write a model of a known family as ONNX.

use super::error::CliError;
use super::{Outcome, ok};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the model goes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let _ = args;
    ok()
}
