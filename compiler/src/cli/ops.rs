//! `planc ops`: the supported operators.

use super::error::CliError;
use super::{Outcome, ok};
use planc::report::operators::{markdown, operators};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print docs/operators.md.
    #[arg(long)]
    markdown: bool,
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    if args.markdown {
        say!("{}", markdown().trim_end());
        return ok();
    }
    for operator in operators() {
        let since: Vec<String> = operator.since.iter().map(ToString::to_string).collect();
        say!("{:<32}{:<16}{}", operator.name, operator.domain, since.join(", "));
    }
    ok()
}
