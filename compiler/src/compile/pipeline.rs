//! The plan of a pipeline.

use super::{CompileError, CompiledStage, Context, checked, overlapped};
use crate::emit::{self, EmitError, Merits, StageParts};
use crate::search::solver::relative_gap;
use crate::stages::{Pipelining, PlannedPipeline, StageError, plan_stages};
use crate::train::policy::Asked;
use crate::train::{Recompute, Settings, Step, TrainOptions};
use planc_codegen::MemoryReport;
use planc_cost_model::timeline;
use planc_ir::plan::{Certificate, Plan, Prediction, Training, pipeline};
use planc_ir::program::Program;
use std::collections::BTreeMap;

/// A pipeline, its plan, and what each stage recomputes.
pub(super) struct Pipelined {
    pub(super) plan: Plan,
    pub(super) stages: Vec<CompiledStage>,
    pub(super) recompute: Vec<Recompute>,
}

/// Plans a training step as a pipeline.
pub(super) fn compile(
    context: &Context<'_>,
    step: &Step,
    train: &TrainOptions,
    asked: Asked,
    kind: Pipelining,
) -> Result<Pipelined, CompileError> {
    let Context { model, file, cost, options, limit_bytes, progress } = *context;
    let planned = plan_stages(&step.graph, cost, options, asked, kind, progress)?;
    progress("partitioning");
    let mut programs = Vec::with_capacity(planned.stages.len());
    for stage in &planned.stages {
        let (graph, strategy) = (&stage.planned.graph, &stage.planned.search.strategy);
        let program = planc_codegen::stage(graph, strategy, cost, &stage.chunk_of, &stage.order)?;
        programs.push(checked(overlapped(graph, program, cost, limit_bytes)?, limit_bytes)?);
    }
    let all: Vec<&Program> = programs.iter().collect();
    let timeline = timeline(&all, &planned.places, cost).map_err(StageError::Order)?;
    let merits = merits(context, &planned, &programs, timeline.total_us)?;
    let training = training(step, train, &planned)?;
    let stages = planned.stages.iter().zip(programs).map(|(stage, program)| StageParts {
        graph: &stage.planned.graph,
        search: &stage.planned.search,
        program,
    });
    let (stages, channels) = (stages.collect(), planned.channels.clone());
    let plan =
        emit::plan(model, &step.graph, file, cost, stages, channels, merits, Some(training))?;
    let findings = pipeline::check(&plan.stages, &plan.channels);
    if !findings.is_empty() {
        return Err(CompileError::Unverified(findings.iter().map(ToString::to_string).collect()));
    }
    let recompute = planned.stages.iter().map(|s| s.planned.recompute).collect();
    let stage = |s: crate::stages::PlannedStage| CompiledStage {
        graph: s.planned.graph,
        search: s.planned.search,
        chunk_of: s.chunk_of,
    };
    Ok(Pipelined { plan, stages: planned.stages.into_iter().map(stage).collect(), recompute })
}

/// What the pipeline takes: in time that of the whole, apart from that the figures of its busiest and its fullest
/// stage.
fn merits(
    context: &Context<'_>,
    planned: &PlannedPipeline,
    programs: &[Program],
    total_us: f64,
) -> Result<Merits, CompileError> {
    let alone = programs.iter().map(|p| planc_cost_model::simulate::simulate(p, context.cost));
    let busiest = alone.max_by(|a, b| a.total_us.total_cmp(&b.total_us)).unwrap_or_default();
    let memory = programs.iter().map(MemoryReport::of).collect::<Result<Vec<_>, _>>()?;
    let fullest = memory.into_iter().max_by_key(|m| m.arena_bytes);
    let (arena_bytes, weight_bytes) = fullest.map_or((0, 0), |m| (m.arena_bytes, m.weight_bytes));
    let predicted = Prediction {
        total_us,
        exposed_us: Some((total_us - busiest.compute_us).max(0.0)),
        compute_us: busiest.compute_us,
        communication_us: busiest.communication_us,
        memory_bytes: arena_bytes,
        weight_bytes,
        activation_bytes: arena_bytes.saturating_sub(weight_bytes),
    };
    // Of other cuts nothing is proven.
    let (objective_us, bound_us) = (total_us, 0.0);
    let certificate = Certificate {
        objective_us,
        bound_us,
        gap: relative_gap(objective_us, bound_us),
        status: "not proven".to_string(),
        solver: "stages one by one".to_string(),
        limits: BTreeMap::new(),
        evaluated_us: objective_us,
        space: [("stages".to_string(), planned.stages.len() as u64)].into(),
    };
    Ok(Merits { predicted, baselines: Vec::new(), certificate })
}

/// What the plan says of the step.
fn training(
    step: &Step,
    train: &TrainOptions,
    planned: &PlannedPipeline,
) -> Result<Training, CompileError> {
    let mut training = step.training.clone();
    let Pipelining { stages, schedule, chunks } = planned.kind;
    let parts = if chunks > 1 { format!(" of {chunks} parts each") } else { String::new() };
    training.recipe.insert("pipeline".into(), format!("{stages} stages{parts}, {schedule}"));
    let mut recompute: Vec<String> =
        planned.stages.iter().map(|s| s.planned.recompute.to_string()).collect();
    recompute.dedup();
    training.recipe.insert("recompute".into(), recompute.join("; "));
    let settings = Settings {
        step: train.clone(),
        recompute: Recompute::Nothing,
        gather_again: false,
        pipeline: Some(planned.settings()),
    };
    training.settings = serde_json::to_value(settings).map_err(EmitError::from)?;
    Ok(training)
}
