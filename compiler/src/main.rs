//! The `planc` command line.

#![allow(clippy::print_stderr)] // the only place that prints errors

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::Cli::from_args(std::env::args_os()).run()
}
