//! From a model and a cluster to a plan: the passes, in order.

use crate::emit::{self, EmitError};
use crate::report::units;
use crate::rewrite::{self, Raised};
use crate::search::{self, SearchError, SearchOptions, SearchResult};
use crate::train::policy::{Asked, Planned};
use crate::train::{self, Recompute, Settings, TrainError, TrainOptions};
use planc_codegen::{BUCKET_BYTES, CodegenError};
use planc_cost_model::CostModel;
use planc_cost_model::simulate::{instr_us, simulate};
use planc_ir::onnx::Model;
use planc_ir::plan::{Plan, Training};
use planc_ir::program::{Instr, Program};
use planc_ir::{Graph, program};
use std::collections::BTreeMap;
use thiserror::Error;

/// A pass that failed.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum CompileError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    #[error(transparent)]
    Emit(#[from] EmitError),
    #[error(
        "the plan's buffers take {arena_bytes} bytes of each device once they have their places, more \
         than the {limit_bytes} that it may hold; use more or larger devices, or a smaller batch"
    )]
    Arena { arena_bytes: u64, limit_bytes: u64 },
    #[error("planc emitted a program that its own verifier rejects, which is a bug: {}", .0.join("; "))]
    Unverified(Vec<String>),
}

/// A plan and what is known of how it came about.
#[derive(Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
    /// The model's graph with idioms as single ops.
    pub raised: Raised,
    /// The graph that was planned: the raised one, or a training step made of it.
    pub graph: Graph,
    /// The search's result.
    pub search: SearchResult,
    /// What was trained, for a training step.
    pub step: Option<Trained>,
}

/// A training step that was planned.
#[derive(Debug)]
pub struct Trained {
    /// The weights that are trained.
    pub parameters: Vec<String>,
    /// Floating-point weights that are not, and why.
    pub untrained: BTreeMap<String, &'static str>,
    /// What is computed again in the backward phase.
    pub recompute: Recompute,
}

/// Compiles `model` for the cluster of `cost`. `progress` is told what is being done.
///
/// # Errors
/// The first pass that fails; nothing is written anywhere.
pub fn compile(
    model: &Model,
    file: &str,
    cost: &CostModel,
    options: &SearchOptions,
    progress: &dyn Fn(&str),
) -> Result<Compiled, CompileError> {
    progress("raising");
    let raised = rewrite::raise(&model.graph);
    progress("searching");
    let search = search::search(&raised.graph, cost, options)?;
    let graph = raised.graph.clone();
    let plan = plan(model, &graph, file, cost, options, &search, None, progress)?;
    Ok(Compiled { plan, raised, graph, search, step: None })
}

/// Compiles a training step of `model`, which must have been imported for training.
///
/// # Errors
/// The first pass that fails; nothing is written anywhere.
pub fn compile_step(
    model: &Model,
    file: &str,
    cost: &CostModel,
    options: &SearchOptions,
    train: &TrainOptions,
    asked: Asked,
    progress: &dyn Fn(&str),
) -> Result<Compiled, CompileError> {
    progress("raising");
    let raised = rewrite::raise(&model.graph);
    progress("differentiating");
    let step = train::step(&raised.graph, train)?;
    let Planned { graph, recompute, search, unlimited } =
        train::policy::plan(&step.graph, cost, options, asked, progress)?;
    let mut training = step.training;
    let limit_bytes = options.memory_bytes.unwrap_or_else(|| cost.memory_bytes());
    let why = match unlimited {
        Some((_, bytes)) if bytes > limit_bytes => format!(
            "; keeping everything, the quickest strategy takes {} of {} per device",
            units::bytes(bytes),
            units::bytes(limit_bytes)
        ),
        _ => String::new(),
    };
    training.recipe.insert("recompute".into(), format!("{recompute}{why}"));
    if search.strategy.gather_again {
        training.recipe.insert("weights".into(), "gathered again in the backward phase".into());
    }
    let gather_again = search.strategy.gather_again;
    let settings = Settings { step: train.clone(), recompute, gather_again };
    training.settings = serde_json::to_value(settings).map_err(EmitError::from)?;
    let plan = plan(model, &graph, file, cost, options, &search, Some(training), progress)?;
    let trained = Trained { parameters: step.parameters, untrained: step.untrained, recompute };
    Ok(Compiled { plan, raised, graph, search, step: Some(trained) })
}

/// The plan that carries a strategy out.
#[allow(clippy::too_many_arguments)] // what a plan is made of
fn plan(
    model: &Model,
    graph: &Graph,
    file: &str,
    cost: &CostModel,
    options: &SearchOptions,
    search: &SearchResult,
    training: Option<Training>,
    progress: &dyn Fn(&str),
) -> Result<Plan, CompileError> {
    progress("partitioning");
    let mut program = planc_codegen::partition(graph, &search.strategy, cost)?;
    // The search counts what is live at once; gaps between buffers may come on top.
    let limit_bytes = options.memory_bytes.unwrap_or_else(|| cost.memory_bytes());
    if training.is_some() {
        program = overlapped(graph, program, cost, limit_bytes)?;
    }
    if program.arena_bytes > limit_bytes {
        return Err(CompileError::Arena { arena_bytes: program.arena_bytes, limit_bytes });
    }
    let findings = program::verify::verify(&program);
    if !findings.is_empty() {
        return Err(CompileError::Unverified(findings.iter().map(ToString::to_string).collect()));
    }
    Ok(emit::plan(model, graph, file, cost, search, program, training)?)
}

/// The program with communication beside compute, if that fits and is no slower.
fn overlapped(
    graph: &Graph,
    program: Program,
    cost: &CostModel,
    limit_bytes: u64,
) -> Result<Program, CodegenError> {
    let time_us = |program: &Program, instr: &Instr| instr_us(program, instr, cost);
    let overlapped = planc_codegen::overlap(graph, &program, BUCKET_BYTES, &time_us)?;
    let is_better = overlapped.arena_bytes <= limit_bytes
        && simulate(&overlapped, cost).total_us <= simulate(&program, cost).total_us;
    Ok(if is_better { overlapped } else { program })
}
