//! `planc inspect MODEL`: what a model is and what planc sees in it.

use super::error::CliError;
use super::{Outcome, ok, parse_binding};
use planc::inspect::assume::import_assuming;
use planc::inspect::{inspect, report};
use planc::rewrite::raise;
use planc_ir::onnx::ImportOptions;
use planc_ir::text;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The ONNX model.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Values of symbolic dimensions, such as batch=8,seq=128; what is not given is assumed.
    #[arg(long, value_name = "NAME=N", value_delimiter = ',', value_parser = parse_binding)]
    bind: Vec<(String, u64)>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the raised graph in its textual form instead.
    #[arg(long, conflicts_with = "json")]
    text: bool,
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let options =
        ImportOptions { bind: args.bind.iter().cloned().collect(), ..ImportOptions::default() };
    let (model, assumed) = import_assuming(&args.model, &options)?;
    let raised = raise(&model.graph);
    if args.text {
        say!("{}", text::print(&raised.graph).trim_end());
        return ok();
    }
    let mut inspection = inspect(&model, &raised);
    inspection.assumed = assumed;
    if args.json {
        say!("{}", serde_json::json!(inspection));
    } else {
        let file = args.model.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
        say!("{}", report(&file, &inspection).trim_end());
    }
    ok()
}
