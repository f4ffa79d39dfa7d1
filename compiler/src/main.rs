//! The `planc` command line.

#![allow(clippy::print_stdout, clippy::print_stderr)] // the only place that prints

mod cli;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
