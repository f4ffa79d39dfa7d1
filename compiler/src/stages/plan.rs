//! The strategy of each stage of a pipeline.
//!
//! 1. The whole graph is searched for one stage's devices, as if memory counted for nothing; so it is known what
//!    each node takes, and the forward phase is cut into parts that take about as long as each other.
//! 2. The graph is cut. Stages that are alike are searched once, each within its memory, for as many micro-batches
//!    as the schedule has under way on it.

use super::balance::Chain;
use super::devices::OnDevices;
use super::error::StageError;
use super::{assign, stages};
use crate::search::evaluate::kernel_us;
use crate::search::{SearchOptions, search};
use crate::train::policy::{Asked, Planned, plan};
use crate::train::settings::PipelineSettings;
use planc_codegen::{Schedule, Shape, schedule};
use planc_cost_model::CostModel;
use planc_cost_model::timeline::send_us;
use planc_ir::ops::Op;
use planc_ir::plan::Channel;
use planc_ir::program::under_way::copies;
use planc_ir::program::{Action, Pass, Place};
use planc_ir::sharding::Strategy;
use planc_ir::{Graph, Phase};

/// A kind of pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipelining {
    /// Number of stages.
    pub stages: u32,
    /// What they run when.
    pub schedule: Schedule,
    /// Number of parts on each stage.
    pub chunks: u32,
}

/// A stage with its strategy.
#[derive(Debug)]
pub struct PlannedStage {
    /// Its graph, its policy and its strategy.
    pub planned: Planned,
    /// The chunk of each node.
    pub chunk_of: Vec<u32>,
    /// What it runs when.
    pub order: Vec<Action>,
}

/// A pipeline with the strategies of its stages.
#[derive(Debug)]
pub struct PlannedPipeline {
    /// What kind it is.
    pub kind: Pipelining,
    /// Its stages.
    pub stages: Vec<PlannedStage>,
    /// What goes between them.
    pub channels: Vec<Channel>,
    /// Where each part is.
    pub places: Vec<Place>,
    /// The forward nodes before which the graph is cut.
    pub cuts: Vec<usize>,
}

impl PlannedPipeline {
    /// How it is cut, as a plan carries it.
    pub fn settings(&self) -> PipelineSettings {
        let stages = || self.stages.iter().map(|s| &s.planned);
        PipelineSettings {
            cuts: self.cuts.clone(),
            holders: self.places.iter().map(|p| p.stage).collect(),
            recompute: stages().map(|p| p.recompute).collect(),
            gather_again: stages().map(|p| p.search.strategy.gather_again).collect(),
        }
    }
}

/// The best strategies for the stages of a pipeline of this kind.
///
/// # Errors
/// If there is no such pipeline, or a stage does not fit.
pub fn plan_stages(
    step: &Graph,
    cost: &CostModel,
    options: &SearchOptions,
    asked: Asked,
    kind: Pipelining,
    progress: &dyn Fn(&str),
) -> Result<PlannedPipeline, StageError> {
    let devices = cost.device_count();
    if kind.stages == 0 || !devices.is_multiple_of(kind.stages) {
        return Err(StageError::Devices { devices, stages: kind.stages });
    }
    let is_training = step.nodes.iter().any(|n| n.phase == Phase::Backward);
    if is_training && !kind.schedule.passes().contains(&Pass::Backward) {
        return Err(StageError::Inference { schedule: kind.schedule.name() });
    }
    let shape =
        Shape { stages: kind.stages, chunks: kind.chunks, micro_batches: step.micro_batches };
    let places = schedule::placement(kind.schedule, shape)?;
    let orders = schedule::order(kind.schedule, shape)?;
    let on = OnDevices { cost, devices: devices / kind.stages };

    progress(&format!("cutting into {} stages", kind.stages));
    let free = SearchOptions { memory_bytes: Some(u64::MAX), ..options.clone() };
    let whole = search(step, &on, &free)?.strategy;
    let chain = chain(step, &whole, &on, kind);
    let cuts = chain
        .cuts(places.len())
        .ok_or(StageError::Parts { nodes: chain.node_us.len(), parts: places.len() as u32 })?;
    let holders: Vec<u32> = places.iter().map(|p| p.stage).collect();
    let cut = stages(step, &cuts, &holders);

    let last_pass = kind.schedule.passes().last().copied().unwrap_or(Pass::Forward);
    let mut planned: Vec<PlannedStage> = Vec::new();
    let mut searched: Vec<(Graph, usize)> = Vec::new();
    for (at, (stage, order)) in cut.stages.into_iter().zip(orders).enumerate() {
        let chunks = 0..kind.chunks;
        let under_way = chunks.map(|c| copies(&order, c, Pass::Forward, last_pass)).max();
        let graph = Graph { under_way: under_way.unwrap_or(1), ..stage.graph };
        let key = anonymous(&graph);
        let like = searched.iter().find(|(known, _)| *known == key).map(|(_, at)| *at);
        let of_stage = match like {
            Some(like) => renamed(&planned[like].planned, graph),
            None => {
                let say = |what: &str| progress(&format!("stage {at}: {what}"));
                // The chunk of what is computed again is not known.
                let recompute = asked.recompute.or((kind.chunks > 1).then(Default::default));
                let found = plan(&graph, &on, options, Asked { recompute, ..asked }, &say)?;
                searched.push((key, at));
                found
            }
        };
        let chunk_of = match kind.chunks {
            1 => Vec::new(),
            _ => stage.part_of.iter().map(|&p| places[p as usize].chunk).collect(),
        };
        planned.push(PlannedStage { planned: of_stage, chunk_of, order });
    }
    Ok(PlannedPipeline { kind, stages: planned, channels: cut.channels, places, cuts })
}

/// What there is to cut: each forward node with what belongs to it in the backward phase.
fn chain(graph: &Graph, strategy: &Strategy, on: &OnDevices<'_>, kind: Pipelining) -> Chain {
    let forward = graph.nodes.partition_point(|n| n.phase == Phase::Forward);
    let us = kernel_us(graph, strategy, on);
    // As if it were cut everywhere: the part is the forward node.
    let everywhere: Vec<usize> = (1..forward).collect();
    let places = assign::assign(graph, &everywhere);
    let mut node_us = vec![0.0; forward];
    for (at, place) in places.iter().enumerate() {
        if let assign::Place::Part(part) = *place
            && graph.nodes[at].phase != Phase::Update
        {
            node_us[part as usize] += us[at];
        }
    }
    let mut crossing_bytes = vec![0u64; forward];
    let mut last_read = vec![0; graph.values.len()];
    for (at, node) in graph.nodes[..forward].iter().enumerate() {
        node.inputs.iter().for_each(|v| last_read[v.index()] = at);
    }
    for (at, node) in graph.nodes[..forward].iter().enumerate() {
        if places[at] == assign::Place::Shared {
            continue;
        }
        for v in &node.outputs {
            for bytes in crossing_bytes.iter_mut().take(last_read[v.index()] + 1).skip(at + 1) {
                *bytes = bytes.saturating_add(graph.ty(*v).bytes());
            }
        }
    }
    // There and back; how a value is split where it crosses is not known, so as evenly as can be.
    let there_and_back = |bytes: u64| {
        2.0 * send_us(bytes as f64 / f64::from(on.devices), on.cost, kind.stages, on.devices)
    };
    Chain { node_us, crossing_us: crossing_bytes.into_iter().map(there_and_back).collect() }
}

/// A stage's graph without names, so that stages that do the same are equal.
fn anonymous(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        (node.name, node.scope) = (String::new(), String::new());
        match &mut node.op {
            Op::Send(op) => op.channel = 0,
            Op::Receive(op) => op.channel = 0,
            _ => {}
        }
    }
    for value in &mut graph.values {
        value.name = String::new();
        if let planc_ir::ValueDef::Weight(_) = value.def {
            value.def = planc_ir::ValueDef::Weight(planc_ir::WeightSource::Fill { value: 0.0 });
        }
    }
    graph
}

/// What was found for a stage, for one that does the same under other names.
fn renamed(like: &Planned, graph: Graph) -> Planned {
    Planned {
        graph: crate::train::recompute::recompute(&graph, like.recompute),
        recompute: like.recompute,
        search: like.search.clone(),
        unlimited: like.unlimited,
    }
}
