//! What all stages of a plan do in a step, and when.
//!
//! * What a pass does is simulated once ([`simulate`](crate::simulate)); when it runs for which micro-batch, the
//!   [pipeline's simulation](crate::pipeline) says. Without a pipeline, micro-batches run one after another.
//! * What a pass sends goes once it is done, and takes the time of all of it together.
//! * What runs once a step begins in each stage after its last pass. There a receive waits for its message, which
//!   goes as soon as it is sent.

use crate::collective::Collective;
use crate::model::CostModel;
use crate::pipeline::{PartTimes, PipelineTimes, simulate};
use crate::simulate::{InstrSpan, Streams, end_us, spans};
use planc_ir::TensorType;
use planc_ir::program::pipeline::{OrderFinding, Pipeline};
use planc_ir::program::{Action, BufferId, Instr, Pass, Place, Program};
use planc_ir::sharding::{AxisId, Mesh};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A step, from the first start on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Until the last stage is done.
    pub total_us: f64,
    /// What each stage does.
    pub stages: Vec<StageTimeline>,
    /// What goes between stages.
    pub messages: Vec<Message>,
}

/// What a stage does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageTimeline {
    /// The instructions of each of the program's passes, each from the pass' beginning on; without passes, all that is
    /// repeated is one.
    pub passes: Vec<Vec<InstrSpan>>,
    /// When they run.
    pub runs: Vec<PassRun>,
    /// The instructions that run once, from the step's beginning on.
    pub update: Vec<InstrSpan>,
}

/// A pass that runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassRun {
    /// Which of [`StageTimeline::passes`].
    pub pass: usize,
    /// For which micro-batch.
    pub micro_batch: u32,
    /// When it starts.
    pub start_us: f64,
    /// When it ends.
    pub end_us: f64,
}

/// What goes by a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// The channel.
    pub channel: u32,
    /// For which micro-batch, of what goes for each.
    pub micro_batch: Option<u32>,
    /// When it leaves.
    pub start_us: f64,
    /// When it is there.
    pub end_us: f64,
}

/// Time of sending so many bytes from each rank of a stage to one of the next.
pub fn send_us(bytes: f64, costs: &CostModel, stages: u32, ranks: u32) -> f64 {
    if bytes > 0.0 {
        let mesh = Mesh::new([("stage", stages), ("rank", ranks)]);
        costs.collective_us(Collective::SendRecv, bytes, &mesh, &[AxisId(0)])
    } else {
        0.0
    }
}

/// Bytes of the largest part of a buffer that a rank holds.
pub fn local_bytes(program: &Program, id: BufferId) -> u64 {
    let buffer = program.buffer(id);
    let shape = buffer.sharding.max_local_shape(&buffer.ty.shape, &program.mesh);
    TensorType::new(buffer.ty.dtype, shape).bytes()
}

/// Simulates the stages of a plan in which [`check`](planc_ir::plan::pipeline::check) finds nothing, and for which the
/// cluster has devices. `places` says where the parts of the pipeline are; there are none if there is no pipeline.
///
/// # Errors
/// If the stages' orders are not those of a pipeline with parts in these places.
pub fn timeline(
    programs: &[&Program],
    places: &[Place],
    costs: &CostModel,
) -> Result<Timeline, Vec<OrderFinding>> {
    let stages: Vec<Stage<'_>> = programs.iter().map(|p| Stage::new(p, programs, costs)).collect();
    let mut timeline = match &stages[..] {
        [stage] if stage.program.passes.is_empty() => stage.alone(),
        _ => pipeline(&stages, places)?,
    };
    updates(&stages, &mut timeline);
    Ok(timeline)
}

/// A stage, and what its passes do.
struct Stage<'a> {
    program: &'a Program,
    costs: &'a CostModel,
    /// Number of stages.
    stages: u32,
    passes: Vec<Vec<InstrSpan>>,
}

impl<'a> Stage<'a> {
    fn new(program: &'a Program, all: &[&Program], costs: &'a CostModel) -> Self {
        let mut stage = Self { program, costs, stages: all.len() as u32, passes: Vec::new() };
        let of = |instrs| spans(program, instrs, costs);
        stage.passes = match program.passes.len() {
            0 => vec![of(0..stage.repeated())],
            passes => (0..passes).map(|pass| of(stage.instrs(pass))).collect(),
        };
        stage
    }

    /// The number of the first instruction that runs once.
    fn repeated(&self) -> usize {
        let all = self.program.instrs.len();
        self.program.micro_batches.map_or(all, |m| m.instrs.min(all))
    }

    fn instrs(&self, pass: usize) -> Range<usize> {
        let passes = &self.program.passes;
        let begin = pass.checked_sub(1).map_or(0, |before| passes[before].end);
        begin..passes[pass].end
    }

    /// The pass of a chunk.
    fn pass(&self, pass: Pass, chunk: u32) -> Option<usize> {
        self.program.passes.iter().position(|p| (p.pass, p.chunk) == (pass, chunk))
    }

    fn pass_us(&self, pass: Pass, chunk: u32) -> f64 {
        self.pass(pass, chunk).map_or(0.0, |pass| end_us(&self.passes[pass]))
    }

    /// What a pass sends: channels, and bytes of each.
    fn sent(&self, pass: usize) -> Vec<(u32, f64)> {
        let instrs = &self.program.instrs[self.instrs(pass)];
        let sends = instrs.iter().filter_map(|instr| match *instr {
            Instr::Send { channel, buffer } => {
                Some((channel, local_bytes(self.program, buffer) as f64))
            }
            _ => None,
        });
        sends.collect()
    }

    fn send_us(&self, bytes: f64) -> f64 {
        send_us(bytes, self.costs, self.stages, self.program.mesh.ranks())
    }

    /// How long all that a pass of a chunk sends takes.
    fn sends_us(&self, pass: Pass, chunk: u32) -> f64 {
        let bytes = self.pass(pass, chunk).map(|pass| self.sent(pass).iter().map(|s| s.1).sum());
        self.send_us(bytes.unwrap_or(0.0))
    }

    fn part_times(&self, chunk: u32) -> PartTimes {
        PartTimes {
            forward_us: self.pass_us(Pass::Forward, chunk),
            backward_us: self.pass_us(Pass::Backward, chunk),
            weights_us: self.pass_us(Pass::Weights, chunk),
            send_forward_us: self.sends_us(Pass::Forward, chunk),
            send_backward_us: self.sends_us(Pass::Backward, chunk),
        }
    }

    /// The micro-batches of the only stage.
    fn alone(&self) -> Timeline {
        let pass_us = end_us(&self.passes[0]);
        let mut runs = Vec::new();
        let mut start_us = 0.0;
        for micro_batch in 0..self.program.micro_batches.map_or(1, |m| m.count) {
            let end_us = start_us + pass_us;
            runs.push(PassRun { pass: 0, micro_batch, start_us, end_us });
            start_us = end_us;
        }
        let stage = StageTimeline { passes: self.passes.clone(), runs, update: Vec::new() };
        Timeline { total_us: start_us, stages: vec![stage], messages: Vec::new() }
    }
}

/// The passes of a pipeline and what they send.
fn pipeline(stages: &[Stage<'_>], places: &[Place]) -> Result<Timeline, Vec<OrderFinding>> {
    let orders: Vec<Vec<Action>> = stages.iter().map(|s| s.program.order.clone()).collect();
    let passes: BTreeSet<Pass> = orders.iter().flatten().map(|a| a.pass).collect();
    let micro_batches = stages.first().and_then(|s| s.program.micro_batches);
    let pipeline = Pipeline {
        places,
        passes: &passes.into_iter().collect::<Vec<_>>(),
        micro_batches: micro_batches.map_or(1, |m| m.count),
        orders: &orders,
    };
    let part_times = |place: &Place| {
        let stage = stages.get(place.stage as usize);
        stage.map_or_else(PartTimes::default, |stage| stage.part_times(place.chunk))
    };
    let parts = places.iter().map(part_times).collect();
    let simulation = simulate(&pipeline, &PipelineTimes { parts, update_us: Vec::new() })?;
    let mut timeline = Timeline { total_us: simulation.total_us, ..Timeline::default() };
    for (stage, spans) in stages.iter().zip(&simulation.spans) {
        let run = |span: &crate::Span| {
            let pass = stage.pass(span.action.pass, span.action.chunk)?;
            let (micro_batch, start_us) = (span.action.micro_batch, span.start_us);
            Some(PassRun { pass, micro_batch, start_us, end_us: span.end_us })
        };
        let runs: Vec<PassRun> = spans.iter().filter_map(run).collect();
        let sent: Vec<_> = (0..stage.passes.len()).map(|pass| stage.sent(pass)).collect();
        for run in &runs {
            timeline.messages.extend(messages(stage, &sent[run.pass], run));
        }
        let passes = stage.passes.clone();
        timeline.stages.push(StageTimeline { passes, runs, update: Vec::new() });
    }
    Ok(timeline)
}

/// What a pass that runs sends: one after another, each as long as its share of the bytes.
fn messages(stage: &Stage<'_>, sent: &[(u32, f64)], run: &PassRun) -> Vec<Message> {
    let bytes: f64 = sent.iter().map(|s| s.1).sum();
    let all_us = stage.send_us(bytes);
    let mut before = 0.0;
    let at_us =
        |before: f64| run.end_us + if bytes > 0.0 { all_us * (before / bytes) } else { 0.0 };
    let message = |&(channel, bytes): &(u32, f64)| {
        let start_us = at_us(before);
        before += bytes;
        let micro_batch = Some(run.micro_batch);
        Message { channel, micro_batch, start_us, end_us: at_us(before) }
    };
    sent.iter().map(message).collect()
}

/// What runs once: every stage goes on until it waits for a message, and is looked at again when that is sent.
fn updates(stages: &[Stage<'_>], timeline: &mut Timeline) {
    let starts = timeline.stages.iter().map(|s| s.runs.last().map_or(0.0, |run| run.end_us));
    let mut all: Vec<(Streams<'_>, usize)> = stages
        .iter()
        .zip(starts)
        .map(|(s, start_us)| (Streams::new(s.program, s.costs, start_us), s.repeated()))
        .collect();
    let mut there_us: BTreeMap<u32, f64> = BTreeMap::new();
    let mut waiting: BTreeMap<u32, usize> = BTreeMap::new();
    let mut ready: Vec<usize> = (0..all.len()).rev().collect();
    while let Some(at) = ready.pop() {
        let (stage, (streams, next)) = (&stages[at], &mut all[at]);
        while let Some(instr) = stage.program.instrs.get(*next) {
            match instr {
                Instr::Receive { channel, .. } => {
                    let Some(&at_us) = there_us.get(channel) else {
                        waiting.insert(*channel, at);
                        break;
                    };
                    streams.receive(*next, at_us);
                }
                Instr::Send { channel, buffer } => {
                    streams.run(*next);
                    let start_us = streams.now_us();
                    let bytes = local_bytes(stage.program, *buffer) as f64;
                    let (channel, end_us) = (*channel, start_us + stage.send_us(bytes));
                    let message = Message { channel, micro_batch: None, start_us, end_us };
                    timeline.messages.push(message);
                    there_us.insert(channel, end_us);
                    ready.extend(waiting.remove(&channel));
                }
                _ => streams.run(*next),
            }
            *next += 1;
        }
    }
    for ((streams, _), stage) in all.into_iter().zip(&mut timeline.stages) {
        let (simulation, update) = streams.end();
        timeline.total_us = timeline.total_us.max(simulation.total_us);
        stage.update = update;
    }
}
