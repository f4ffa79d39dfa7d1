//! Command-line verbs, one file each. A model with no verb is planned.

mod cluster;
mod error;
mod files;
mod model;
mod ops;
mod plan;
mod progress;
mod run;
mod verify;

use clap::{Parser, Subcommand};
use error::CliError;
use std::process::ExitCode;

/// Plans how to split a neural network over many GPUs, and runs the plan.
#[derive(Debug, Parser)]
#[command(name = "planc", version, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    plan: Option<plan::Args>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Search for the best plan of a model (the default verb).
    Plan(plan::Args),
    /// Run a plan on virtual CPU ranks.
    Run(run::Args),
    /// Check that a plan computes what the model says.
    Verify(verify::Args),
    /// List the supported operators.
    Ops(ops::Args),
    /// Write a model of a known family as ONNX.
    Model(model::Args),
}

/// What a verb ends with when nothing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Exit code 0.
    Good,
    /// Exit code 1: it ran, and the answer is no (outputs differ, a plan is not equivalent).
    Bad,
}

impl Cli {
    /// Runs the verb and says how the process shall end: 0 for yes, 1 for no, 2 for an error.
    pub fn run(self) -> ExitCode {
        let result = match (self.verb, self.plan) {
            (Some(Verb::Plan(args)), _) | (None, Some(args)) => plan::run(&args),
            (Some(Verb::Run(args)), _) => run::run(&args),
            (Some(Verb::Verify(args)), _) => verify::run(&args),
            (Some(Verb::Ops(args)), _) => ops::run(&args),
            (Some(Verb::Model(args)), _) => model::run(&args),
            (None, None) => return ExitCode::from(2),
        };
        match result {
            Ok(Outcome::Good) => ExitCode::SUCCESS,
            Ok(Outcome::Bad) => ExitCode::from(1),
            Err(e) => {
                eprintln!("error: {e}");
                ExitCode::from(2)
            }
        }
    }
}

/// Parses `batch=8,seq=128`.
fn parse_binding(text: &str) -> Result<(String, u64), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=NUMBER, such as batch=8")?;
    let value = value.trim().parse().map_err(|_| format!("`{value}` is not a number"))?;
    Ok((name.trim().to_string(), value))
}

#[allow(clippy::unnecessary_wraps)] // what verbs return
fn ok() -> Result<Outcome, CliError> {
    Ok(Outcome::Good)
}
