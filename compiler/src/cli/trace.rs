//! `planc trace PLAN`: the step that a plan predicts, as a trace.

use super::error::CliError;
use super::run::load;
use super::{Outcome, ok};
use planc::trace::{Ranks, simulated};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Where to write the trace; the default is beside the plan, ending in .trace.json.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Which ranks to show: one of each stage, whose ranks all do the same, or all.
    #[arg(long, value_enum, default_value_t = Shown::One)]
    ranks: Shown,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shown {
    One,
    All,
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let plan = load(&args.plan)?;
    let ranks = match args.ranks {
        Shown::One => Ranks::One,
        Shown::All => Ranks::All,
    };
    let trace = simulated(&plan, ranks)?;
    let out = args.out.clone().unwrap_or_else(|| beside(&args.plan));
    write(&out, &trace)?;
    say!("trace       {}", out.display());
    ok()
}

/// The trace of `x.plan.json` is `x.trace.json`.
fn beside(plan: &Path) -> PathBuf {
    let name = plan.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".json").unwrap_or(&name);
    let stem = stem.strip_suffix(".plan").unwrap_or(stem);
    plan.with_file_name(format!("{stem}.trace.json"))
}

/// Writes a trace; the file appears whole or not at all.
pub fn write(path: &Path, trace: &str) -> Result<(), CliError> {
    planc_ir::atomic::write(path, trace.as_bytes()).map_err(CliError::io(path))
}
