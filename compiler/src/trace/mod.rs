//! What a step does when, as Chrome trace events, which Perfetto opens.
//!
//! * [`simulated`] shows the step that a plan predicts: what the cost model's [`timeline`](planc_cost_model::timeline)
//!   says, and nothing else.
//! * [`measured`] shows a step that ran.

mod channels;
mod chrome;
mod label;
mod lanes;
mod measured;
mod simulated;

pub use measured::measured;
pub use simulated::simulated;

use channels::Channels;
use planc_cost_model::CostError;
use planc_ir::plan::{Plan, pipeline};
use planc_ir::program::pipeline::OrderFinding;
use planc_ir::program::{self, Program};
use planc_runtime::executor::MAX_RANKS;
use thiserror::Error;

/// More events than this are not written: no viewer opens so many.
pub const MAX_EVENTS: u64 = 1_000_000;

/// Which ranks are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// The first of each stage; the others do the same.
    One,
    /// All.
    All,
}

/// A plan that cannot be shown.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum TraceError {
    #[error("the plan's program of stage {stage} is not sound: {finding}")]
    Program { stage: usize, finding: Box<program::verify::Finding> },
    #[error("the plan's stages do not fit together: {0}")]
    Stages(pipeline::Finding),
    #[error("the plan's cluster is not one that it can run on: {0}")]
    Cluster(#[from] CostError),
    #[error("what the plan says of its training step cannot be read: {0}; plan the model anew")]
    Settings(serde_json::Error),
    #[error("the plan does not say how its pipeline is cut; plan the model anew")]
    NoPipeline,
    #[error("the stages' orders are not those of a pipeline: {0}")]
    Order(OrderFinding),
    #[error("the trace would have {events} events, and at most {MAX_EVENTS} are written{}", .hint)]
    Events { events: u64, hint: &'static str },
    #[error(
        "the plan has {ranks} ranks, of which at most {MAX_RANKS} are shown: show one of each stage"
    )]
    Ranks { ranks: u64 },
    #[error("an event has no JSON form: {0}")]
    Json(#[from] serde_json::Error),
}

/// Whether a trace of a plan that was checked is small enough to be written.
///
/// # Errors
/// If it is not.
pub fn check_size(plan: &Plan, ranks: Ranks) -> Result<(), TraceError> {
    let all: u64 = plan.stages.iter().map(|s| u64::from(s.program.mesh.ranks())).sum();
    if ranks == Ranks::All && all > MAX_RANKS {
        return Err(TraceError::Ranks { ranks: all });
    }
    let shown = |program: &Program| match ranks {
        Ranks::One => 1,
        Ranks::All => u64::from(program.mesh.ranks()),
    };
    let spans = plan.stages.iter().map(|s| spans(&s.program).saturating_mul(shown(&s.program)));
    let spans = spans.fold(0, u64::saturating_add);
    check_events(spans, ranks)?;
    let channels = Channels::of(plan, ranks);
    let arrows = plan.stages.iter().map(|s| arrows(&s.program, &channels));
    check_events(arrows.fold(spans, u64::saturating_add), ranks)
}

fn check_events(events: u64, ranks: Ranks) -> Result<(), TraceError> {
    let hint = match ranks {
        Ranks::One => "",
        Ranks::All => ": show one rank of each stage, or run fewer micro-batches",
    };
    if events > MAX_EVENTS { Err(TraceError::Events { events, hint }) } else { Ok(()) }
}

/// How often each instruction of a program runs in a step.
fn times(program: &Program) -> Vec<u64> {
    let repeated = program.micro_batches.map_or(program.instrs.len(), |m| m.instrs);
    let micro_batches = program.micro_batches.map_or(1, |m| u64::from(m.count));
    (0..program.instrs.len()).map(|at| if at < repeated { micro_batches } else { 1 }).collect()
}

/// How many instructions run in a step. Micro-batches count even where there is nothing to do for them.
fn spans(program: &Program) -> u64 {
    let micro_batches = program.micro_batches.map_or(1, |m| u64::from(m.count));
    times(program).into_iter().fold(micro_batches, u64::saturating_add)
}

/// How many ends of arrows begin with a program.
fn arrows(program: &Program, channels: &Channels) -> u64 {
    let count = |(channel, times): (u32, u64)| {
        times.saturating_mul(2 * channels.pairs(channel).len() as u64)
    };
    let times = times(program);
    let sends = program.instrs.iter().zip(times).filter_map(|(instr, times)| match *instr {
        program::Instr::Send { channel, .. } => Some((channel, times)),
        _ => None,
    });
    sends.map(count).fold(0, u64::saturating_add)
}
