//! The `planc` command line.

#![allow(clippy::print_stdout, clippy::print_stderr)] // the only place that prints

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::Cli::from_args(std::env::args_os()).run()
}
