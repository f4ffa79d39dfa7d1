//! `planc MODEL`: search for the best plan and write it down.

use super::cluster::ClusterArgs;
use super::error::CliError;
use super::progress::Progress;
use super::{Outcome, ok, parse_binding};
use planc::pipeline::{Compiled, compile};
use planc::report::plan_report;
use planc::search::SearchOptions;
use planc_ir::onnx::{ImportOptions, import};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The ONNX model.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Values of symbolic dimensions, such as batch=8,seq=128.
    #[arg(long, value_name = "NAME=N", value_delimiter = ',', value_parser = parse_binding)]
    bind: Vec<(String, u64)>,
    /// Only this mesh, such as 2x4 (data x tensor) or 8.
    #[arg(long, value_name = "AxB", value_parser = parse_mesh)]
    mesh: Option<Mesh>,
    /// Where the plan goes; the default is beside the model, ending in .plan.json.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
    /// Print every row of the layer table.
    #[arg(long)]
    all: bool,
    /// Stop the solver at this relative gap.
    #[arg(long, value_name = "FRACTION", default_value_t = 1e-4)]
    gap: f64,
}

/// Sizes of a mesh's axes, outermost first.
#[derive(Clone, Debug)]
struct Mesh(Vec<u32>);

fn parse_mesh(text: &str) -> Result<Mesh, String> {
    let sizes: Result<Vec<u32>, _> = text.split('x').map(str::parse).collect();
    match sizes {
        Ok(sizes) if (1..=2).contains(&sizes.len()) && !sizes.contains(&0) => Ok(Mesh(sizes)),
        _ => Err("expected one or two axes, such as 8 or 2x4".to_string()),
    }
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let cost = args.cluster.cost_model()?;
    let progress = Progress::start();
    progress.say("importing");
    let options = ImportOptions { bind: args.bind.iter().cloned().collect() };
    let model = import(&args.model, &options)?;
    let options = SearchOptions {
        mesh: args.mesh.as_ref().map(|m| m.0.clone()),
        gap: args.gap,
        ..SearchOptions::default()
    };
    let file = args.model.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    let compiled = compile(&model, &file, &cost, &options, &|what| progress.say(what))?;
    drop(progress);

    let out = args.out.clone().unwrap_or_else(|| args.model.with_extension("plan.json"));
    compiled.plan.save(&out).map_err(|source| CliError::Plan { path: out.clone(), source })?;
    if args.json {
        println!("{}", answer(&compiled, &out));
    } else {
        print!("{}", plan_report(&model.graph, &cost, &compiled, args.all));
        println!("{:<12}{}", "plan", out.display());
    }
    ok()
}

/// The plan without its programs and weights, and where it was written.
fn answer(compiled: &Compiled, out: &Path) -> serde_json::Value {
    let plan = &compiled.plan;
    serde_json::json!({
        "plan": out.display().to_string(),
        "model": plan.model,
        "cluster": plan.cluster,
        "mesh": compiled.search.strategy.mesh,
        "predicted": plan.predicted,
        "baselines": plan.baselines,
        "certificate": plan.certificate,
    })
}
