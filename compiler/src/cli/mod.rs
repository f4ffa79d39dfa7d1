//! Command-line verbs, one file each. A model with no verb is planned.

/// Prints a line; whoever reads it may have gone (`planc … | head`), which is no error.
macro_rules! say {
    ($($arg:tt)*) => { $crate::cli::print_line(&format!($($arg)*))? };
}

mod cluster;
mod error;
mod files;
mod inspect;
mod model;
mod ops;
mod plan;
mod progress;
mod run;
mod trace;
mod train;
mod training;
mod verify;

use clap::{CommandFactory as _, Parser, Subcommand};
use error::CliError;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// Plans how to split a neural network over many GPUs, and runs the plan.
#[derive(Debug, Parser)]
#[command(name = "planc", version, arg_required_else_help = true)]
#[command(override_usage = "planc MODEL --gpus N [OPTIONS]\n       planc VERB [ARGUMENTS]")]
#[command(after_help = "A model with no verb is planned: `planc help plan` lists the options.")]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Search for the best plan of a model (the default verb).
    Plan(plan::Args),
    /// Run a plan on virtual CPU ranks.
    Run(run::Args),
    /// Train on virtual CPU ranks, by a plan of training steps.
    Train(train::Args),
    /// Write the step that a plan predicts as a trace, which Perfetto opens.
    Trace(trace::Args),
    /// Check that a plan computes what the model says.
    Verify(verify::Args),
    /// Tell what a model is: its size, layers, kinds of ops, and what cannot be split.
    Inspect(inspect::Args),
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
    /// Reads the command line; where it names no verb, `plan` is meant.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Self {
        let mut args: Vec<OsString> = args.into_iter().collect();
        let command = Self::command();
        let is_verb = |arg: &OsString| {
            let own = ["help", "--help", "-h", "--version", "-V"];
            own.iter().any(|a| arg == a) || command.get_subcommands().any(|c| arg == c.get_name())
        };
        if args.get(1).is_some_and(|first| !is_verb(first)) {
            args.insert(1, "plan".into());
        }
        Self::parse_from(args)
    }

    /// Runs the verb and says how the process shall end: 0 for yes, 1 for no, 2 for an error.
    pub fn run(self) -> ExitCode {
        let result = match self.verb {
            Verb::Plan(args) => plan::run(&args),
            Verb::Run(args) => run::run(&args),
            Verb::Train(args) => train::run(&args),
            Verb::Trace(args) => trace::run(&args),
            Verb::Verify(args) => verify::run(&args),
            Verb::Inspect(args) => inspect::run(&args),
            Verb::Ops(args) => ops::run(&args),
            Verb::Model(args) => model::run(&args),
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

fn print_line(line: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(CliError::io("standard output")),
    }
}

#[allow(clippy::unnecessary_wraps)] // what verbs return
fn ok() -> Result<Outcome, CliError> {
    Ok(Outcome::Good)
}
