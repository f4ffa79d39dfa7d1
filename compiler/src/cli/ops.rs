//! `planc ops`: the supported operators.

use super::error::CliError;
use super::{Outcome, ok};
use std::collections::BTreeMap;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print a Markdown table.
    #[arg(long)]
    markdown: bool,
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let mut since: BTreeMap<(&str, &str), Vec<i64>> = BTreeMap::new();
    for entry in planc_ir::ops::decoders() {
        since.entry((entry.domain, entry.name)).or_default().push(entry.since);
    }
    if args.markdown {
        say!("| operator | domain | read from opset |\n|---|---|---|");
    }
    for ((domain, name), mut versions) in since {
        versions.sort_unstable();
        let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        if args.markdown {
            say!("| {name} | {domain} | {} |", versions.join(", "));
        } else {
            say!("{name:<32}{domain:<16}{}", versions.join(", "));
        }
    }
    ok()
}
