//! What an expert would do by hand with a pipeline: equal layers on equal stages, one degree of tensor parallelism
//! and one of data parallelism for all (Megatron-LM: Narayanan et al., 2021; Korthikanti et al., 2022). Where there is
//! no tensor parallelism, optimizer state may be in shards; with one part on a stage, everything may be recomputed.
//!
//! All combinations of these are priced, by the times of the stages' kernels and reshards and a simulation of the
//! pipeline; [`Planner::grid`] gives the quickest that fits.

use super::devices::OnDevices;
use super::error::StageError;
use super::plan::{Pipelining, PlannedPipeline, PlannedStage, Planner};
use super::stages;
use crate::search::baselines::{Baseline, Sharded};
use crate::search::blocks::Blocks;
use crate::search::evaluate::evaluate;
use crate::search::space::Space;
use crate::search::{SearchError, SearchResult};
use crate::train::policy::Planned;
use crate::train::recompute::{Recompute, blocks, recompute};
use planc_codegen::{Schedule, Shape, schedule};
use planc_cost_model::CostModel;
use planc_cost_model::pipeline::{PartTimes, PipelineTimes, simulate};
use planc_cost_model::timeline::send_us;
use planc_ir::ops::Op;
use planc_ir::program::pipeline::Pipeline;
use planc_ir::sharding::Mesh;
use planc_ir::{Graph, Phase, TensorType};

/// The schedules of the grid, with the parts on a stage.
const SCHEDULES: [(Schedule, u32); 2] = [(Schedule::OneFOneB, 1), (Schedule::Interleaved, 2)];

/// A point of the grid.
#[derive(Debug)]
pub struct GridPoint {
    /// Its stages.
    pub pipeline: PlannedPipeline,
    /// Its time, communication after compute.
    pub total_us: f64,
}

impl Planner<'_> {
    /// The quickest point of the grid that fits.
    ///
    /// # Errors
    /// If a strategy has no price.
    pub fn grid(&self) -> Result<Option<GridPoint>, StageError> {
        let devices = self.cost.device_count();
        let mut best: Option<GridPoint> = None;
        for stages in (2..=devices).filter(|s| devices.is_multiple_of(*s)) {
            for (schedule, chunks) in SCHEDULES {
                let kind = Pipelining { stages, schedule, chunks };
                for mesh in meshes(devices / stages) {
                    if self.options.mesh.as_ref().is_some_and(|m| m.ranks() != mesh.ranks()) {
                        continue;
                    }
                    for point in self.points(kind, &mesh)? {
                        if best.as_ref().is_none_or(|b| point.total_us < b.total_us) {
                            best = Some(point);
                        }
                    }
                }
            }
        }
        Ok(best)
    }

    /// The points of one kind and mesh that fit.
    fn points(&self, kind: Pipelining, mesh: &Mesh) -> Result<Vec<GridPoint>, StageError> {
        let micro_batches = self.step.micro_batches;
        let shape = Shape { stages: kind.stages, chunks: kind.chunks, micro_batches };
        let Ok(places) = schedule::placement(kind.schedule, shape) else { return Ok(Vec::new()) };
        let orders = schedule::order(kind.schedule, shape)?;
        let Some(cuts) = even(self.step, places.len()) else { return Ok(Vec::new()) };
        let holders: Vec<u32> = places.iter().map(|p| p.stage).collect();
        let on = OnDevices { cost: self.cost, devices: mesh.ranks() };
        let cut = stages(self.step, &cuts, &holders);
        let again = if kind.chunks > 1 { 1 } else { 2 };
        let baselines: &[Baseline] = if mesh.rank() == 1 {
            &[Baseline::TensorParallel, Baseline::DataParallel, ZERO_1]
        } else {
            &[Baseline::TensorParallel]
        };
        let mut points = Vec::new();
        for &baseline in baselines {
            for what in [Recompute::Nothing, Recompute::Blocks(u32::MAX)].into_iter().take(again) {
                let mut planned = Vec::with_capacity(cut.stages.len());
                for (stage, order) in cut.stages.iter().zip(&orders) {
                    let under_way = super::plan::under_way(order, kind);
                    let graph = Graph { under_way, ..recompute(&stage.graph, what) };
                    let found = priced(graph, mesh, baseline, &on)?;
                    planned.push(PlannedStage {
                        planned: Planned { recompute: what, ..found },
                        chunk_of: super::plan::chunk_of(&stage.part_of, &places, kind),
                        order: order.clone(),
                    });
                }
                let pipeline = PlannedPipeline {
                    kind,
                    stages: planned,
                    channels: cut.channels.clone(),
                    places: places.clone(),
                    cuts: cuts.clone(),
                };
                let fits = |s: &PlannedStage| {
                    s.planned.search.evaluation.memory_bytes <= self.limit_bytes()
                };
                if pipeline.stages.iter().all(fits) {
                    let total_us = self.serial_us(&pipeline)?;
                    points.push(GridPoint { pipeline, total_us });
                }
            }
        }
        Ok(points)
    }

    /// The time of a pipeline in which communication comes after compute, but for sends.
    pub fn serial_us(&self, pipeline: &PlannedPipeline) -> Result<f64, StageError> {
        let kind = pipeline.kind;
        let phase_us = |stage: usize, phase: Phase| {
            let evaluation = &pipeline.stages[stage].planned.search.evaluation;
            evaluation.phase_us.get(&phase).copied().unwrap_or(0.0)
        };
        let part = |stage: usize| {
            let chunks = f64::from(kind.chunks);
            PartTimes {
                forward_us: phase_us(stage, Phase::Forward) / chunks,
                backward_us: phase_us(stage, Phase::Backward) / chunks,
                ..sends(&pipeline.stages[stage].planned, self.cost, kind)
            }
        };
        let times = PipelineTimes {
            parts: pipeline.places.iter().map(|place| part(place.stage as usize)).collect(),
            update_us: (0..pipeline.stages.len()).map(|s| phase_us(s, Phase::Update)).collect(),
        };
        let orders: Vec<_> = pipeline.stages.iter().map(|s| s.order.clone()).collect();
        let simulation = simulate(
            &Pipeline {
                places: &pipeline.places,
                passes: kind.schedule.passes(),
                micro_batches: self.step.micro_batches,
                orders: &orders,
            },
            &times,
        );
        Ok(simulation.map_err(StageError::Order)?.total_us)
    }
}

const ZERO_1: Baseline = Baseline::Zero(Sharded::OptimizerState);

/// The times of a stage's sends, out of its graph.
fn sends(stage: &Planned, cost: &CostModel, kind: Pipelining) -> PartTimes {
    let (graph, strategy) = (&stage.graph, &stage.search.strategy);
    let us = |phase: Phase| {
        let sent = graph.nodes.iter().filter(|n| n.phase == phase && matches!(n.op, Op::Send(_)));
        let bytes = sent.flat_map(|n| &n.inputs).map(|v| {
            let ty = graph.ty(*v);
            let shape = strategy.values[v.index()].max_local_shape(&ty.shape, &strategy.mesh);
            TensorType::new(ty.dtype, shape).bytes() as f64
        });
        let each = bytes.sum::<f64>() / f64::from(kind.chunks);
        send_us(each, cost, kind.stages, strategy.mesh.ranks())
    };
    PartTimes {
        send_forward_us: us(Phase::Forward),
        send_backward_us: us(Phase::Backward),
        ..PartTimes::default()
    }
}

/// Every data-parallel and tensor-parallel degree.
fn meshes(devices: u32) -> Vec<Mesh> {
    let tensor = (2..devices).filter(|t| devices.is_multiple_of(*t));
    let both = tensor.map(|t| Mesh::new([("data", devices / t), ("tensor", t)]));
    std::iter::once(Mesh::new([("device", devices)])).chain(both).collect()
}

/// Cuts that give each part equally many of the repeated blocks, if there are as many blocks as parts.
fn even(step: &Graph, parts: usize) -> Option<Vec<usize>> {
    let blocks = blocks(step);
    if blocks.len() < parts {
        return None;
    }
    let cut = |part: usize| blocks[part * blocks.len() / parts].start;
    Some((1..parts).map(cut).collect())
}

/// A stage under a baseline's strategy.
fn priced(
    graph: Graph,
    mesh: &Mesh,
    baseline: Baseline,
    on: &OnDevices<'_>,
) -> Result<Planned, StageError> {
    let blocks = Blocks::find(&graph);
    let strategy = baseline.strategy(&Space::new(&graph, mesh, &blocks, on), on);
    let evaluation = evaluate(&graph, &strategy, on)
        .map_err(|source| SearchError::Evaluate { mesh: mesh.to_string(), source })?;
    let search = SearchResult::of(strategy, evaluation);
    Ok(Planned { graph, recompute: Recompute::Nothing, search, unlimited: None })
}
