//! The step that a plan predicts.

use super::channels::Channels;
use super::chrome::{Chrome, Interval, Row};
use super::label::Label;
use super::lanes::lanes;
use super::{Ranks, TraceError, check_size};
use crate::train::Settings;
use planc_cost_model::simulate::{InstrSpan, Stream};
use planc_cost_model::timeline::{Message, StageTimeline};
use planc_cost_model::{CostModel, timeline};
use planc_ir::plan::{Plan, Stage, pipeline};
use planc_ir::program::verify::verify;
use planc_ir::program::{Instr, Place, Program};
use planc_ir::sharding::Mesh;
use std::collections::BTreeMap;

/// The rows of a rank's streams.
const COMPUTE: u32 = 0;
const COMMUNICATION: u32 = 1;
/// The rows of what is sent have even numbers from this one on, those of what is received the odd ones.
const SENDS: u32 = 2;

/// The trace of the step that a plan predicts: of each rank that is shown, what its two streams do, and what it sends
/// and receives beside them.
///
/// # Errors
/// If the plan is not sound, or the trace would be too large.
pub fn simulated(plan: &Plan, ranks: Ranks) -> Result<String, TraceError> {
    check(plan)?;
    let costs = CostModel::of_plan(plan)?;
    let most = plan.stages.iter().map(|s| s.program.mesh.ranks()).max().unwrap_or(1);
    costs.check_mesh(&Mesh::new([("stage", plan.stages.len() as u32), ("rank", most)]))?;
    check_size(plan, ranks)?;
    let places = places(plan)?;
    let programs: Vec<&Program> = plan.stages.iter().map(|s| &s.program).collect();
    let timeline = timeline(&programs, &places, &costs).map_err(|findings| {
        findings.into_iter().next().map_or(TraceError::NoPipeline, TraceError::Order)
    })?;
    let labels: Vec<Vec<Label>> = programs.iter().map(|p| Label::all(p)).collect();
    let mut chrome = Chrome::new();
    let pictures = plan.stages.iter().zip(&labels).zip(&timeline.stages).enumerate();
    for (index, ((stage, labels), timeline)) in pictures {
        for (pid, name) in shown(plan, index, stage, ranks) {
            chrome.process(pid, &name)?;
            streams(&mut chrome, pid, &stage.program, labels, timeline)?;
        }
    }
    messages(&mut chrome, plan, ranks, &labels, &timeline.messages)?;
    Ok(chrome.finish())
}

/// Refuses a plan that is not sound.
fn check(plan: &Plan) -> Result<(), TraceError> {
    for (stage, s) in plan.stages.iter().enumerate() {
        if let Some(finding) = verify(&s.program).into_iter().next() {
            return Err(TraceError::Program { stage, finding: Box::new(finding) });
        }
    }
    let finding = pipeline::check(&plan.stages, &plan.channels).into_iter().next();
    finding.map_or(Ok(()), |finding| Err(TraceError::Stages(finding)))
}

/// Where the parts of the plan's pipeline are; none if it has no pipeline.
fn places(plan: &Plan) -> Result<Vec<Place>, TraceError> {
    let has_passes = plan.stages.iter().any(|s| !s.program.passes.is_empty());
    if plan.stages.len() == 1 && !has_passes {
        return Ok(Vec::new());
    }
    let training = plan.training.as_ref().ok_or(TraceError::NoPipeline)?;
    let settings: Settings =
        serde_json::from_value(training.settings.clone()).map_err(TraceError::Settings)?;
    let holders = settings.pipeline.ok_or(TraceError::NoPipeline)?.holders;
    let mut held: BTreeMap<u32, u32> = BTreeMap::new();
    let place = |stage: u32| {
        let chunks = held.entry(stage).or_default();
        let place = Place { stage, chunk: *chunks };
        *chunks += 1;
        place
    };
    Ok(holders.into_iter().map(place).collect())
}

/// The ranks of a stage that are shown, and what they are called.
fn shown(plan: &Plan, index: usize, stage: &Stage, ranks: Ranks) -> Vec<(u32, String)> {
    let (first, count) = (stage.first_rank, stage.program.mesh.ranks());
    let of_stage = match plan.stages.len() {
        1 => String::new(),
        _ => format!("stage {index}, "),
    };
    match ranks {
        Ranks::One if count > 1 => {
            vec![(first, format!("{of_stage}each of ranks {first}-{}", first + count - 1))]
        }
        _ => (first..first + count).map(|rank| (rank, format!("{of_stage}rank {rank}"))).collect(),
    }
}

/// What a rank's two streams do.
fn streams(
    chrome: &mut Chrome,
    pid: u32,
    program: &Program,
    labels: &[Label],
    timeline: &StageTimeline,
) -> Result<(), TraceError> {
    chrome.thread(Row { pid, tid: COMPUTE }, "compute")?;
    chrome.thread(Row { pid, tid: COMMUNICATION }, "communication")?;
    let mut draw = |spans: &[InstrSpan], begin_us: f64, micro_batch: Option<u32>| {
        for span in spans {
            // What is sent and received has rows of its own.
            if matches!(program.instrs[span.instr], Instr::Send { .. } | Instr::Receive { .. }) {
                continue;
            }
            let tid = match span.stream {
                Stream::Compute => COMPUTE,
                Stream::Communication => COMMUNICATION,
            };
            let (start_us, end_us) = (begin_us + span.start_us, begin_us + span.end_us);
            let (label, interval) = (&labels[span.instr], Interval { start_us, end_us });
            let args = label.args(micro_batch);
            chrome.span(Row { pid, tid }, &label.name, label.category, interval, args)?;
        }
        Ok::<(), TraceError>(())
    };
    for run in &timeline.runs {
        draw(&timeline.passes[run.pass], run.start_us, Some(run.micro_batch))?;
    }
    draw(&timeline.update, 0.0, None)
}

/// What goes between stages: at both ends while it is on its way, and an arrow.
fn messages(
    chrome: &mut Chrome,
    plan: &Plan,
    ranks: Ranks,
    labels: &[Vec<Label>],
    messages: &[Message],
) -> Result<(), TraceError> {
    let channels = Channels::of(plan, ranks);
    let mut on_way: Vec<_> =
        messages.iter().filter_map(|m| Some((m, channels.way(m.channel)?))).collect();
    on_way.sort_by(|(a, _), (b, _)| {
        a.start_us.total_cmp(&b.start_us).then(a.channel.cmp(&b.channel))
    });
    let interval = |m: &Message| Interval { start_us: m.start_us, end_us: m.end_us };
    // For each message, the rows at both ends, which are alike on all ranks of a stage.
    let mut tids = vec![[0; 2]; on_way.len()];
    for (index, stage) in plan.stages.iter().enumerate() {
        for (end, what) in ["sends", "receives"].into_iter().enumerate() {
            let is_here = |at: &usize| {
                let way = on_way[*at].1;
                [way.from, way.to][end].stage == index
            };
            let here: Vec<usize> = (0..on_way.len()).filter(is_here).collect();
            let lanes = lanes(here.iter().map(|&at| interval(on_way[at].0)));
            let tid = |lane: u32| SENDS + 2 * lane + end as u32;
            for (&at, &lane) in here.iter().zip(&lanes) {
                tids[at][end] = tid(lane);
            }
            for (pid, _) in shown(plan, index, stage, ranks) {
                for lane in 0..lanes.iter().max().map_or(0, |last| last + 1) {
                    let name = match lane {
                        0 => what.to_string(),
                        _ => format!("{what} ({})", lane + 1),
                    };
                    chrome.thread(Row { pid, tid: tid(lane) }, &name)?;
                }
            }
        }
    }
    for ((message, way), tids) in on_way.into_iter().zip(tids) {
        let interval = interval(message);
        for (end, tid) in [way.from, way.to].into_iter().zip(tids) {
            let label = &labels[end.stage][end.instr];
            for (pid, _) in shown(plan, end.stage, &plan.stages[end.stage], ranks) {
                let (row, args) = (Row { pid, tid }, label.args(message.micro_batch));
                chrome.span(row, &label.name, label.category, interval, args)?;
            }
        }
        let name = &labels[way.from.stage][way.from.instr].name;
        for &(from, to) in &way.pairs {
            let rows = [(from, tids[0]), (to, tids[1])].map(|(pid, tid)| Row { pid, tid });
            chrome.arrow(name, (rows[0], interval), (rows[1], interval))?;
        }
    }
    Ok(())
}
