//! The plan of a pipeline.

use super::{CompileError, CompiledStage, Context, Planned, checked, overlapped};
use crate::emit::{self, EmitError, Merits, StageParts};
use crate::search::SearchError;
use crate::search::solver::relative_gap;
use crate::stages::{Pipelining, PlannedPipeline, PlannedStage, Planner, StageError};
use crate::train::{Recompute, Settings, Step, TrainOptions};
use planc_codegen::{MemoryReport, Schedule};
use planc_cost_model::timeline;
use planc_ir::plan::{Baseline, Certificate, Plan, Prediction, Training, pipeline};
use planc_ir::program::Program;
use std::collections::BTreeMap;

/// Plans a training step as a pipeline of one kind.
pub(super) fn compile(
    context: &Context<'_>,
    step: &Step,
    train: &TrainOptions,
    planner: &mut Planner<'_>,
    kind: Pipelining,
) -> Result<Planned, CompileError> {
    let planned = planner.plan(kind)?;
    carried_out(context, step, train, planned)
}

/// The plan that carries a pipeline out.
fn carried_out(
    context: &Context<'_>,
    step: &Step,
    train: &TrainOptions,
    planned: PlannedPipeline,
) -> Result<Planned, CompileError> {
    let Context { model, file, cost, limit_bytes, progress, .. } = *context;
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
    let stage = |s: PlannedStage| CompiledStage {
        graph: s.planned.graph,
        search: s.planned.search,
        chunk_of: s.chunk_of,
    };
    Ok(Planned { plan, stages: planned.stages.into_iter().map(stage).collect(), recompute })
}

/// Plans a training step as the quickest pipeline, if one is quicker than the plan that is known.
pub(super) fn best(
    context: &Context<'_>,
    step: &Step,
    train: &TrainOptions,
    planner: &mut Planner<'_>,
    known: Option<&Plan>,
) -> Result<Option<Planned>, CompileError> {
    let mut best: Option<Planned> = None;
    let mut least_us = known.map_or(f64::INFINITY, |p| p.predicted.total_us);
    // The best that an expert would do is the answer unless something is quicker.
    let mut grid = None;
    if let Some(point) = planner.grid()? {
        let kind = point.pipeline.kind;
        let mesh = point.pipeline.stages[0].planned.search.strategy.mesh.to_string();
        match carried_out(context, step, train, point.pipeline) {
            Ok(found) => {
                let Prediction { total_us, memory_bytes, .. } = found.plan.predicted;
                let name = format!("even {} x {}", kind.stages, kind.schedule);
                grid = Some(Baseline { name, mesh, total_us, memory_bytes, fits: true });
                if total_us < least_us {
                    (least_us, best) = (total_us, Some(found));
                }
            }
            Err(error) if is_no_such_pipeline(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let devices = context.cost.device_count();
    let of_mesh = |stages: &u32| {
        let mesh = context.options.mesh.as_ref();
        mesh.is_none_or(|mesh| u64::from(*stages) * u64::from(mesh.ranks()) == u64::from(devices))
    };
    for stages in (2..=devices).filter(of_mesh) {
        match planner.bound_us(stages) {
            Ok(bound_us) if bound_us < least_us => {}
            Ok(_) | Err(StageError::Devices { .. }) => continue,
            Err(error) => return Err(error.into()),
        }
        for (schedule, chunks) in KINDS {
            let kind = Pipelining { stages, schedule, chunks };
            match compile(context, step, train, planner, kind) {
                Ok(found) if found.plan.predicted.total_us < least_us => {
                    least_us = found.plan.predicted.total_us;
                    best = Some(found);
                }
                Ok(_) => {}
                Err(error) if is_no_such_pipeline(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    // What it is better than stands beside it.
    if let (Some(best), Some(known)) = (&mut best, known) {
        best.plan.baselines.clone_from(&known.baselines);
        best.plan.baselines.push(Baseline {
            name: "without a pipeline".to_string(),
            mesh: known.stages.first().map_or_else(String::new, |s| s.program.mesh.to_string()),
            total_us: known.predicted.total_us,
            memory_bytes: known.predicted.memory_bytes,
            fits: true,
        });
    }
    if let Some(best) = &mut best {
        best.plan.baselines.extend(grid);
    }
    Ok(best)
}

/// The schedules to choose from, with the parts on a stage. GPipe is never quicker than the second and keeps more.
const KINDS: [(Schedule, u32); 4] = [
    (Schedule::ZeroBubble, 1),
    (Schedule::OneFOneB, 1),
    (Schedule::ZeroBubbleV, 2),
    (Schedule::Interleaved, 2),
];

/// Whether an error says that a kind of pipeline does not suit the model, the cluster or its memory.
fn is_no_such_pipeline(error: &CompileError) -> bool {
    use SearchError::{NothingFits, Stopped};
    use StageError::{Parts, Recompute, Schedule, Search};
    match error {
        CompileError::Arena { .. } => true,
        CompileError::Stage(error) => {
            matches!(
                **error,
                Schedule(_) | Parts { .. } | Recompute | Search(NothingFits { .. } | Stopped)
            )
        }
        _ => false,
    }
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
