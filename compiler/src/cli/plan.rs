//! `planc MODEL`: search for the best plan and write it down.

use super::cluster::ClusterArgs;
use super::error::CliError;
use super::progress::Progress;
use super::training::TrainingArgs;
use super::{Outcome, ok, parse_binding};
use planc::compile::{Compiled, compile, compile_step};
use planc::report::plan_report;
use planc::search::SearchOptions;
use planc::search::solver::Limits;
use planc_ir::onnx::{ImportOptions, import};
use planc_ir::sharding::Mesh;
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
    #[command(flatten)]
    training: TrainingArgs,
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

/// `2x4` is a mesh of two axes, named as the search names them.
fn parse_mesh(text: &str) -> Result<Mesh, String> {
    let sizes: Result<Vec<u32>, _> = text.split('x').map(str::parse).collect();
    match sizes.as_deref() {
        Ok(&[devices]) if devices > 0 => Ok(Mesh::new([("device", devices)])),
        Ok(&[data, tensor]) if data > 0 && tensor > 0 => {
            Ok(Mesh::new([("data", data), ("tensor", tensor)]))
        }
        _ => Err("expected one or two axes, such as 8 or 2x4".to_string()),
    }
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let cost = args.cluster.cost_model()?;
    let progress = Progress::start();
    progress.say("importing");
    let train = args.training.is_asked().then(|| args.training.options());
    let bind = args.bind.iter().cloned().collect();
    let options = match &train {
        Some(train) => train.import(bind),
        None => ImportOptions { bind, ..ImportOptions::default() },
    };
    let model = import(&args.model, &options)?;
    if let Some(mesh) = &args.mesh {
        cost.check_mesh(mesh)?;
    }
    let limits = Limits { relative_gap: args.gap, ..Limits::default() };
    let options = SearchOptions { mesh: args.mesh.clone(), limits, ..SearchOptions::default() };
    let file = args.model.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    let say = |what: &str| progress.say(what);
    let compiled = match &train {
        Some(train) => {
            let asked = args.training.asked();
            compile_step(&model, &file, &cost, &options, train, asked, &say)?
        }
        None => compile(&model, &file, &cost, &options, &say)?,
    };
    drop(progress);

    let out = args.out.clone().unwrap_or_else(|| args.model.with_extension("plan.json"));
    compiled.plan.save(&out).map_err(CliError::plan(&out))?;
    if args.json {
        say!("{}", answer(&compiled, &out));
    } else {
        say!("{}", plan_report(&cost, &compiled, args.all).trim_end());
        say!("{:<12}{}", "plan", out.display());
    }
    ok()
}

/// The plan without its programs and weights, and where it was written.
fn answer(compiled: &Compiled, out: &Path) -> serde_json::Value {
    let plan = &compiled.plan;
    serde_json::json!({
        "plan": out.display().to_string(),
        "model": plan.model,
        "training": plan.training,
        "cluster": plan.cluster,
        "meshes": compiled.stages.iter().map(|s| &s.search.strategy.mesh).collect::<Vec<_>>(),
        "predicted": plan.predicted,
        "baselines": plan.baselines,
        "certificate": plan.certificate,
    })
}
