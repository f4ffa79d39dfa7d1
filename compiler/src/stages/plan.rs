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
use crate::search::{SearchError, SearchOptions, SearchResult, search};
use crate::train::policy::{Asked, Planned, plan};
use crate::train::recompute::{Recompute, recompute};
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
use std::collections::BTreeMap;

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

/// Which pipelines are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipelines {
    /// One of this kind.
    Of(Pipelining),
    /// The quickest, if any is quicker than none.
    Best,
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

/// Finds the best strategies for the stages of pipelines of a step, and keeps what serves for several.
pub struct Planner<'a> {
    pub(super) step: &'a Graph,
    pub(super) cost: &'a CostModel,
    pub(super) options: &'a SearchOptions,
    asked: Asked,
    progress: &'a dyn Fn(&str),
    /// By number of devices, the quickest strategy of the whole, memory aside.
    whole: BTreeMap<u32, SearchResult>,
    /// Stages that were searched, without names, and what was found.
    searched: Vec<(Graph, Planned)>,
}

impl<'a> Planner<'a> {
    /// For pipelines of this step; a mesh among the options is that of each stage.
    pub fn new(
        step: &'a Graph,
        cost: &'a CostModel,
        options: &'a SearchOptions,
        asked: Asked,
        progress: &'a dyn Fn(&str),
    ) -> Self {
        Self { step, cost, options, asked, progress, whole: BTreeMap::new(), searched: Vec::new() }
    }

    /// What each device may hold.
    pub(super) fn limit_bytes(&self) -> u64 {
        self.options.memory_bytes.unwrap_or_else(|| self.cost.memory_bytes())
    }

    /// The devices of one of so many stages.
    fn devices(&self, stages: u32) -> Result<OnDevices<'a>, StageError> {
        let devices = self.cost.device_count();
        if stages == 0 || !devices.is_multiple_of(stages) {
            return Err(StageError::Devices { devices, stages });
        }
        Ok(OnDevices { cost: self.cost, devices: devices / stages })
    }

    /// The quickest strategy of the whole on one stage's devices, memory aside.
    fn whole(&mut self, on: &OnDevices<'_>) -> Result<&SearchResult, StageError> {
        if !self.whole.contains_key(&on.devices) {
            (self.progress)(&format!("weighing nodes on {} devices", on.devices));
            let free = SearchOptions { memory_bytes: Some(u64::MAX), ..self.options.clone() };
            self.whole.insert(on.devices, search(self.step, on, &free)?);
        }
        Ok(&self.whole[&on.devices])
    }

    /// No pipeline of so many stages is quicker, if sending takes no time: some stage takes as long as they take on
    /// average.
    ///
    /// # Errors
    /// If the devices cannot be divided so, or the search fails.
    pub fn bound_us(&mut self, stages: u32) -> Result<f64, StageError> {
        let on = self.devices(stages)?;
        Ok(self.whole(&on)?.certificate.bound_us / f64::from(stages))
    }

    /// The best strategies for the stages of a pipeline of this kind.
    ///
    /// # Errors
    /// If there is no such pipeline, or a stage does not fit.
    pub fn plan(&mut self, kind: Pipelining) -> Result<PlannedPipeline, StageError> {
        let on = self.devices(kind.stages)?;
        let is_training = self.step.nodes.iter().any(|n| n.phase == Phase::Backward);
        if is_training && !kind.schedule.passes().contains(&Pass::Backward) {
            return Err(StageError::Inference { schedule: kind.schedule.name() });
        }
        if kind.chunks > 1 && self.asked.recompute.is_some_and(|r| r != Recompute::Nothing) {
            return Err(StageError::Recompute);
        }
        let micro_batches = self.step.micro_batches;
        let shape = Shape { stages: kind.stages, chunks: kind.chunks, micro_batches };
        let places = schedule::placement(kind.schedule, shape)?;
        let orders = schedule::order(kind.schedule, shape)?;
        let step = self.step;
        let whole = &self.whole(&on)?.strategy;
        let chain = chain(step, whole, &on, kind)?;
        let cuts = chain
            .cuts(places.len())
            .ok_or(StageError::Parts { nodes: chain.node_us.len(), parts: places.len() as u32 })?;
        let holders: Vec<u32> = places.iter().map(|p| p.stage).collect();
        let cut = stages(step, &cuts, &holders);
        let mut planned: Vec<PlannedStage> = Vec::new();
        for (at, (stage, order)) in cut.stages.into_iter().zip(orders).enumerate() {
            let graph = Graph { under_way: under_way(&order, kind), ..stage.graph };
            (self.progress)(&format!("searching stage {at} of {}", kind.stages));
            let found = self.stage(&graph, &on, kind)?;
            let chunk_of = chunk_of(&stage.part_of, &places, kind);
            planned.push(PlannedStage { planned: found, chunk_of, order });
        }
        Ok(PlannedPipeline { kind, stages: planned, channels: cut.channels, places, cuts })
    }

    /// The best strategy of a stage.
    fn stage(
        &mut self,
        graph: &Graph,
        on: &OnDevices<'_>,
        kind: Pipelining,
    ) -> Result<Planned, StageError> {
        let key = anonymous(graph);
        let like = |(known, planned): &&(Graph, Planned)| {
            *known == key && planned.search.strategy.mesh.ranks() == on.devices
        };
        if let Some((_, like)) = self.searched.iter().find(like) {
            return Ok(renamed(like, graph));
        }
        // The chunk of what is computed again is not known.
        let nothing = (kind.chunks > 1).then_some(Recompute::Nothing);
        let asked = Asked { recompute: self.asked.recompute.or(nothing), ..self.asked };
        let found = plan(graph, on, self.options, asked, &|_| ())?;
        self.searched.push((key, found.clone()));
        Ok(found)
    }
}

/// The chunk of each node, out of its part; nothing where there is one chunk.
pub(super) fn chunk_of(part_of: &[u32], places: &[Place], kind: Pipelining) -> Vec<u32> {
    if kind.chunks == 1 {
        return Vec::new();
    }
    part_of.iter().map(|&part| places[part as usize].chunk).collect()
}

/// The most micro-batches that a stage has under way in a chunk.
pub(super) fn under_way(order: &[Action], kind: Pipelining) -> u32 {
    let last = kind.schedule.passes().last().copied().unwrap_or(Pass::Forward);
    (0..kind.chunks).map(|chunk| copies(order, chunk, Pass::Forward, last)).max().unwrap_or(1)
}

/// What there is to cut: each forward node with what belongs to it in the backward phase.
fn chain(
    graph: &Graph,
    strategy: &Strategy,
    on: &OnDevices<'_>,
    kind: Pipelining,
) -> Result<Chain, SearchError> {
    let forward = graph.nodes.partition_point(|n| n.phase == Phase::Forward);
    let us = kernel_us(graph, strategy, on)
        .map_err(|source| SearchError::Evaluate { mesh: strategy.mesh.to_string(), source })?;
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
    let crossing_us = crossing_bytes.into_iter().map(there_and_back).collect();
    Ok(Chain { node_us, crossing_us })
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
fn renamed(like: &Planned, graph: &Graph) -> Planned {
    Planned { graph: recompute(graph, like.recompute), ..like.clone() }
}
