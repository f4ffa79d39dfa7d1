//! `planc train PLAN --data FILE --steps N`: train on virtual CPU ranks.

use super::error::CliError;
use super::run::{load, model_path};
use super::{Outcome, ok, trace};
use planc::trace::{Ranks, check_size, measured};
use planc_runtime::Session;
use planc_runtime::checkpoint;
use planc_runtime::data::TrainingData;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan, one of training steps.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// A safetensors file that holds a tensor for each input of the plan, named as the input, but for the
    /// learning rate. Where the tensor has one dimension more than the input, in front, its n-th entry is
    /// batch n; where its first dimension is a multiple of the input's, batch n is the n-th slice of as
    /// many rows as the input has. Each micro-batch takes the next batch; after the last comes the first.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Train up to this step; a run that is resumed counts those before it, too.
    #[arg(long, value_name = "N")]
    steps: u64,
    /// The learning rate.
    #[arg(long, value_name = "X", default_value_t = 1e-3)]
    learning_rate: f32,
    /// Reach the learning rate in this many steps of equal size.
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// Save the state into this folder after the last step.
    #[arg(long, value_name = "FOLDER")]
    checkpoint: Option<PathBuf>,
    /// Save after every N-th step as well.
    #[arg(long, value_name = "N", requires = "checkpoint")]
    save_every: Option<NonZeroU64>,
    /// Keep the last N checkpoints; all by default.
    #[arg(long, value_name = "N", requires = "checkpoint")]
    keep: Option<NonZeroU64>,
    /// Go on from the last checkpoint in the folder, if there is one.
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// The model; the default is the plan's model file beside the plan.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Write what each rank did when in the last step into this file, as a trace, which Perfetto opens.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print every N-th step, and the last.
    #[arg(long, value_name = "N", default_value = "1")]
    log_every: NonZeroU64,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    if !args.learning_rate.is_finite() {
        return Err(CliError::Usage("the learning rate must be a finite number".to_string()));
    }
    let plan = load(&args.plan)?;
    let model = model_path(args.model.as_deref(), &args.plan, &plan);
    let mut session = Session::load(&plan, &model)?;
    let micro_batches = u64::from(session.training()?.micro_batches);
    let data = TrainingData::open(&args.data, &session.batch_inputs()?)?;
    if args.trace.is_some() {
        check_size(&plan, Ranks::All)?;
    }
    begin(args, &mut session)?;
    while session.steps_done() < args.steps {
        let done = session.steps_done();
        let first = done.saturating_mul(micro_batches);
        let batches: Vec<BTreeMap<_, _>> = (0..micro_batches)
            .map(|m| data.batch(first.wrapping_add(m)))
            .collect::<Result<_, _>>()?;
        let rate = learning_rate(args, done + 1);
        let is_last = done + 1 == args.steps;
        let step = match &args.trace {
            Some(path) if is_last => {
                let (step, times) = session.train_step_timed(&batches, rate)?;
                trace::write(path, &measured(&plan, &times)?)?;
                step
            }
            _ => session.train_step(&batches, rate)?,
        };
        if is_last || (done + 1).is_multiple_of(args.log_every.get()) {
            report(args, &Line { step: done + 1, loss: step.loss, learning_rate: rate })?;
        }
        let is_due = |n: NonZeroU64| (done + 1).is_multiple_of(n.get());
        if is_last || args.save_every.is_some_and(is_due) {
            save(args, &session)?;
        }
    }
    ok()
}

/// Makes the folder of checkpoints, so that one that cannot be made ends the run at once, and takes over the
/// last checkpoint if that is wanted and there is one.
fn begin(args: &Args, session: &mut Session) -> Result<(), CliError> {
    let Some(folder) = &args.checkpoint else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(CliError::io(folder))?;
    match checkpoint::latest(folder)? {
        _ if !args.resume => Ok(()),
        Some(path) => {
            checkpoint::load(session, &path)?;
            note(args, "resumed", &path)
        }
        None if args.json => Ok(()),
        None => {
            say!("no checkpoint in {}: begins at step 1", folder.display());
            Ok(())
        }
    }
}

fn save(args: &Args, session: &Session) -> Result<(), CliError> {
    let Some(folder) = &args.checkpoint else { return Ok(()) };
    let keep = args.keep.map_or(0, |n| usize::try_from(n.get()).unwrap_or(usize::MAX));
    let path = checkpoint::save(session, folder, keep)?;
    note(args, "saved", &path)
}

/// Says what was done with a checkpoint.
fn note(args: &Args, what: &str, path: &Path) -> Result<(), CliError> {
    if args.json {
        say!("{}", json!({ what: path.display().to_string() }));
    } else {
        say!("{what} {}", path.display());
    }
    Ok(())
}

/// The learning rate of a step, counted from 1.
fn learning_rate(args: &Args, step: u64) -> f32 {
    if step >= args.warmup {
        args.learning_rate
    } else {
        (f64::from(args.learning_rate) * step as f64 / args.warmup as f64) as f32
    }
}

/// A step as it is printed.
#[derive(Serialize)]
struct Line {
    step: u64,
    loss: f64,
    learning_rate: f32,
}

fn report(args: &Args, line: &Line) -> Result<(), CliError> {
    let Line { step, loss, learning_rate } = line;
    if args.json {
        say!(
            "{}",
            serde_json::to_string(line)
                .map_err(std::io::Error::from)
                .map_err(CliError::io("standard output"))?
        );
    } else {
        say!("step {step}: loss {loss:.6}, learning rate {learning_rate:e}");
    }
    Ok(())
}
