//! `planc run PLAN`: run a plan on virtual CPU ranks.

use super::error::CliError;
use super::files::{self, Named};
use super::{Outcome, ok, trace};
use planc::trace::{Ranks, check_size, measured};
use planc::verify::{Comparison, Tolerance, compare, random_inputs};
use planc_ir::Tensor;
use planc_ir::onnx::tensor::write_tensor;
use planc_ir::plan::Plan;
use planc_runtime::Session;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// The model; the default is the plan's model file beside the plan.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Input tensors: `.pb` files, or a folder with input_*.pb and, to compare with, output_*.pb.
    /// Without it, inputs are random.
    #[arg(long, value_name = "FILE|FOLDER")]
    input: Vec<PathBuf>,
    /// Seed of random inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write the outputs into this folder.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Write what each rank did when into this file, as a trace, which Perfetto opens.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Largest accepted absolute difference from expected outputs.
    #[arg(long, default_value_t = 1e-4)]
    atol: f64,
    /// Largest accepted relative difference.
    #[arg(long, default_value_t = 1e-3)]
    rtol: f64,
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let plan = load(&args.plan)?;
    let model = model_path(args.model.as_deref(), &args.plan, &plan);
    let mut session = Session::load(&plan, &model)?;
    let (inputs, expected) = if args.input.is_empty() {
        say!("inputs are random (seed {})", args.seed);
        (random_inputs(&plan.model.inputs, args.seed)?, Named::new())
    } else {
        files::read(&args.input)?
    };
    let outputs = match &args.trace {
        Some(path) => {
            check_size(&plan, Ranks::All)?;
            let (outputs, times) = session.run_timed(&inputs)?;
            trace::write(path, &measured(&plan, &times)?)?;
            outputs
        }
        None => session.run(&inputs)?,
    };
    say!("{} on {}", plan.model.file, ranks(&plan));

    let tolerance = Tolerance { atol: args.atol, rtol: args.rtol };
    let mut outcome = ok();
    for (name, tensor) in &outputs {
        match expected.get(name) {
            Some(want) => {
                let c = compare(tensor, want, tolerance);
                say!("{}", difference(name, tensor, &c));
                if !c.equal {
                    outcome = Ok(Outcome::Bad);
                }
            }
            None => say!("{name}: {}, {}", tensor.ty(), summary(tensor)),
        }
    }
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).map_err(CliError::io(folder))?;
        for (i, (name, tensor)) in outputs.iter().enumerate() {
            let path = folder.join(format!("output_{i}.pb"));
            write_tensor(&path, name, tensor).map_err(CliError::io(&path))?;
        }
    }
    outcome
}

/// Reads a plan.
pub fn load(path: &Path) -> Result<Plan, CliError> {
    Plan::load(path).map_err(CliError::plan(path))
}

/// Where the model lies: as said, or beside the plan.
pub fn model_path(said: Option<&Path>, plan_path: &Path, plan: &Plan) -> PathBuf {
    said.map_or_else(|| plan_path.with_file_name(&plan.model.file), Path::to_path_buf)
}

/// `8 CPU ranks, mesh {device: 8}`, or of a pipeline `8 CPU ranks, 4 stages, each on mesh {device: 2}`.
fn ranks(plan: &Plan) -> String {
    let meshes: Vec<String> = plan.stages.iter().map(|s| s.program.mesh.to_string()).collect();
    let ranks: u32 = plan.stages.iter().map(|s| s.program.mesh.ranks()).sum();
    match &meshes[..] {
        [mesh] => format!("{ranks} CPU ranks, mesh {mesh}"),
        [first, others @ ..] if others.iter().all(|mesh| mesh == first) => {
            format!("{ranks} CPU ranks, {} stages, each on mesh {first}", meshes.len())
        }
        _ => format!("{ranks} CPU ranks, {} stages on meshes {}", meshes.len(), meshes.join(", ")),
    }
}

fn difference(name: &str, tensor: &Tensor, c: &Comparison) -> String {
    let verdict = if c.equal { "equal" } else { "DIFFERENT" };
    format!(
        "{name}: {}, largest difference from expected {:.3e} absolute, {:.3e} relative: {verdict}",
        tensor.ty(),
        c.max_abs,
        c.max_rel,
    )
}

fn summary(tensor: &Tensor) -> String {
    let values = tensor.to_f64s();
    let (mut low, mut high, mut sum) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
    for &x in &values {
        low = low.min(x);
        high = high.max(x);
        sum += x;
    }
    if values.is_empty() {
        "no elements".to_string()
    } else {
        format!("least {low:.6}, mean {:.6}, largest {high:.6}", sum / values.len() as f64)
    }
}
