//! From a model and a cluster to a plan: the passes, in order.

mod pipeline;

use crate::emit::{self, EmitError, Merits, StageParts};
use crate::report::units;
use crate::rewrite::{self, Raised};
use crate::search::{self, SearchError, SearchOptions, SearchResult};
use crate::stages::{Pipelines, Planner, StageError};
use crate::train::policy::{self, Asked};
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
    Stage(Box<StageError>),
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

impl From<StageError> for CompileError {
    fn from(error: StageError) -> Self {
        Self::Stage(Box::new(error))
    }
}

/// A plan and what is known of how it came about.
#[derive(Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
    /// The model's graph with idioms as single ops.
    pub raised: Raised,
    /// What was planned for each stage: without a pipeline, one for all.
    pub stages: Vec<CompiledStage>,
    /// What was trained, for a training step.
    pub step: Option<Trained>,
}

/// A stage that was planned.
#[derive(Debug)]
pub struct CompiledStage {
    /// The graph: the raised one, a training step made of it, or a part of that.
    pub graph: Graph,
    /// The search's result.
    pub search: SearchResult,
    /// The chunk of each node; empty where there is one.
    pub chunk_of: Vec<u32>,
}

/// A training step that was planned.
#[derive(Debug)]
pub struct Trained {
    /// The weights that are trained.
    pub parameters: Vec<String>,
    /// Floating-point weights that are not, and why.
    pub untrained: BTreeMap<String, &'static str>,
    /// What each stage computes again in the backward phase.
    pub recompute: Vec<Recompute>,
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
    let graph = raised.graph.clone();
    let (search, plan) = within_memory(cost, options, |options, limit_bytes| {
        let context = Context { model, file, cost, options, limit_bytes, progress };
        progress("searching");
        let search = search::search(&graph, cost, options)?;
        let plan = context.plan(&graph, &search, None)?;
        Ok((search, plan))
    })?;
    let stages = vec![CompiledStage { graph, search, chunk_of: Vec::new() }];
    Ok(Compiled { plan, raised, stages, step: None })
}

/// How often a search is begun anew with less memory.
const RETRIES: usize = 4;

/// Plans within the memory of each device. The search counts what is live at once, and gaps between buffers
/// come on top when they get their places: where that is too much, it is searched again with as much less. `plan`
/// is given what to search within, and what the arena must stay within.
fn within_memory<T>(
    cost: &CostModel,
    options: &SearchOptions,
    plan: impl Fn(&SearchOptions, u64) -> Result<T, CompileError>,
) -> Result<T, CompileError> {
    let limit_bytes = options.memory_bytes.unwrap_or_else(|| cost.memory_bytes());
    let mut options = options.clone();
    let mut result = plan(&options, limit_bytes);
    for _ in 0..RETRIES {
        let Err(CompileError::Arena { arena_bytes, limit_bytes }) = result else { break };
        let searched_bytes = options.memory_bytes.unwrap_or(limit_bytes);
        options.memory_bytes = Some(searched_bytes.saturating_sub(arena_bytes - limit_bytes));
        result = plan(&options, limit_bytes);
    }
    result
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
    let limit_bytes = options.memory_bytes.unwrap_or_else(|| cost.memory_bytes());
    let context = Context { model, file, cost, options, limit_bytes, progress };
    let flat = || {
        within_memory(cost, options, |options, limit_bytes| {
            Context { options, limit_bytes, ..context }.flat(&step, train, asked)
        })
    };
    let planned = match asked.pipeline {
        None => flat()?,
        Some(Pipelines::Of(kind)) => within_memory(cost, options, |options, limit_bytes| {
            let mut planner = Planner::new(&step.graph, cost, options, asked, progress);
            let context = Context { options, limit_bytes, ..context };
            pipeline::compile(&context, &step, train, &mut planner, kind)
        })?,
        Some(Pipelines::Best) => {
            let flat = flat();
            let mut planner = Planner::new(&step.graph, cost, options, asked, progress);
            let known = flat.as_ref().ok().map(|f| &f.plan);
            match pipeline::best(&context, &step, train, &mut planner, known)? {
                Some(found) => found,
                None => flat?,
            }
        }
    };
    let Planned { plan, stages, recompute } = planned;
    let trained = Trained { parameters: step.parameters, untrained: step.untrained, recompute };
    Ok(Compiled { plan, raised, stages, step: Some(trained) })
}

/// A planned training step.
struct Planned {
    plan: Plan,
    stages: Vec<CompiledStage>,
    /// What each stage recomputes.
    recompute: Vec<Recompute>,
}

/// What all of a plan is made with.
#[derive(Clone, Copy)]
struct Context<'a> {
    model: &'a Model,
    file: &'a str,
    cost: &'a CostModel,
    options: &'a SearchOptions,
    /// What the arena must stay within.
    limit_bytes: u64,
    progress: &'a dyn Fn(&str),
}

/// What a plan says of a training step, with what was decided about it.
fn training(
    step: &train::Step,
    train: &TrainOptions,
    planned: &policy::Planned,
    limit_bytes: u64,
) -> Result<Training, CompileError> {
    let mut training = step.training.clone();
    let recompute = planned.recompute;
    let why = match planned.unlimited {
        Some((_, bytes)) if bytes > limit_bytes => format!(
            "; keeping everything, the quickest strategy takes {} of {} per device",
            units::bytes(bytes),
            units::bytes(limit_bytes)
        ),
        _ => String::new(),
    };
    training.recipe.insert("recompute".into(), format!("{recompute}{why}"));
    let gather_again = planned.search.strategy.gather_again;
    if gather_again {
        training.recipe.insert("weights".into(), "gathered again in the backward phase".into());
    }
    let settings = Settings { step: train.clone(), recompute, gather_again, pipeline: None };
    training.settings = serde_json::to_value(settings).map_err(EmitError::from)?;
    Ok(training)
}

impl Context<'_> {
    /// Plans a training step without a pipeline.
    fn flat(
        &self,
        step: &train::Step,
        train: &TrainOptions,
        asked: Asked,
    ) -> Result<Planned, CompileError> {
        let Self { cost, options, limit_bytes, progress, .. } = *self;
        let planned = policy::plan(&step.graph, cost, options, asked, progress)?;
        let training = training(step, train, &planned, limit_bytes)?;
        let plan = self.plan(&planned.graph, &planned.search, Some(training))?;
        let policy::Planned { graph, search, recompute, .. } = planned;
        let stages = vec![CompiledStage { graph, search, chunk_of: Vec::new() }];
        Ok(Planned { plan, stages, recompute: vec![recompute] })
    }

    /// The plan that carries a strategy out, without a pipeline.
    fn plan(
        &self,
        graph: &Graph,
        search: &SearchResult,
        training: Option<Training>,
    ) -> Result<Plan, CompileError> {
        let Self { model, file, cost, limit_bytes, .. } = *self;
        (self.progress)("partitioning");
        let mut program = planc_codegen::partition(graph, &search.strategy, cost)?;
        if training.is_some() {
            program = overlapped(graph, program, cost, limit_bytes)?;
        }
        let program = checked(program, limit_bytes)?;
        let predicted = match training {
            Some(_) => emit::simulated(&program, cost)?,
            None => emit::prediction(search),
        };
        let merits = Merits {
            predicted,
            baselines: search.baselines.clone(),
            certificate: search.certificate.clone(),
        };
        let stages = vec![StageParts { graph, search, program }];
        Ok(emit::plan(model, graph, file, cost, stages, Vec::new(), merits, training)?)
    }
}

/// A program that fits and in which the verifier finds nothing.
fn checked(program: Program, limit_bytes: u64) -> Result<Program, CompileError> {
    if program.arena_bytes > limit_bytes {
        return Err(CompileError::Arena { arena_bytes: program.arena_bytes, limit_bytes });
    }
    let findings = program::verify::verify(&program);
    if !findings.is_empty() {
        return Err(CompileError::Unverified(findings.iter().map(ToString::to_string).collect()));
    }
    Ok(program)
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

#[cfg(test)]
mod tests {
    use super::*;
    use planc_cost_model::{Catalogue, Cluster};

    /// Plans whose arenas are larger than what was searched within by a tenth.
    #[test]
    fn gaps_between_buffers_are_searched_away() {
        let catalogue = Catalogue::shipped().expect("shipped profiles");
        let cluster = Cluster::homogeneous("H100", 1, &catalogue).expect("a cluster");
        let cost = CostModel::new(&cluster, &catalogue).expect("a cost model");
        let options = SearchOptions { memory_bytes: Some(1000), ..SearchOptions::default() };
        let within = |least_bytes: u64| {
            within_memory(&cost, &options, |options, limit_bytes| {
                let searched_bytes = options.memory_bytes.unwrap_or(limit_bytes);
                let arena_bytes = searched_bytes.max(least_bytes) * 11 / 10;
                if arena_bytes > limit_bytes {
                    return Err(CompileError::Arena { arena_bytes, limit_bytes });
                }
                Ok((searched_bytes, arena_bytes))
            })
        };
        let (searched_bytes, arena_bytes) = within(0).expect("it fits in the end");
        assert!(searched_bytes < 1000 && arena_bytes <= 1000, "{searched_bytes} {arena_bytes}");
        // What takes more whatever is searched is said in terms of the limit that was given.
        let error = within(950).expect_err("it never fits");
        assert!(
            matches!(error, CompileError::Arena { arena_bytes: 1045, limit_bytes: 1000 }),
            "{error}"
        );
    }
}
