//! `planc verify PLAN MODEL`: check that a plan computes what the model says.

use super::error::CliError;
use super::run::load;
use super::{Outcome, parse_binding};
use planc::verify::{Numerical, Options, verify};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// The model.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Values of symbolic dimensions for the numerical check; small ones by default.
    #[arg(long, value_name = "NAME=N", value_delimiter = ',', value_parser = parse_binding)]
    bind: Vec<(String, u64)>,
    /// Seed of the inputs (and of the weights, where the model's are absent).
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let plan = load(&args.plan)?;
    let options = Options { bind: args.bind.iter().cloned().collect(), seed: args.seed };
    let report = verify(&plan, &args.model, &options)?;
    for finding in &report.findings {
        say!("finding: {finding}");
    }
    say!(
        "structure: {} instructions, {} buffers, {} findings",
        report.instructions,
        report.buffers,
        report.findings.len()
    );
    let equal = match &report.numerical {
        Numerical::Compared { what, worst } => {
            say!(
                "numbers: {what}: largest difference from the reference {:.3e} absolute, {:.3e} relative: {}",
                worst.max_abs,
                worst.max_rel,
                if worst.equal { "equal" } else { "DIFFERENT" }
            );
            worst.equal
        }
        Numerical::Skipped { why } => {
            say!("numbers: not checked: {why}");
            true
        }
    };
    Ok(if equal && report.findings.is_empty() { Outcome::Good } else { Outcome::Bad })
}
