//! What an expert would do by hand: strategies that the answer must never be worse than.
//!
//! Each is a walk over the graph in order. A node *follows*: a mesh axis splits a factor of it only if
//! it already splits one of its computed operands, and of the candidates that fit, the one with the
//! least resharding wins, then the quickest. Weights are loaded as they are needed. What differs is who
//! starts a split:
//!
//! - [`Baseline::Replicate`][]: nobody.
//! - [`Baseline::DataParallel`][]: the graph's inputs are split along their first dimension over all axes;
//!   weights stay whole. What a stage of a pipeline receives for each micro-batch is split so, too.
//! - [`Baseline::TensorParallel`][]: a matrix product with a weight is split over the last axis: along the
//!   contracted extent if its other operand is split there already (row-parallel; the partial result is
//!   reduced at once), else along the weight's own extent (column-parallel). Any other axis is data
//!   parallel. This is Megatron's pattern, heads included: reshapes and transposes follow.
//! - [`Baseline::Greedy`][]: each node takes what is cheapest for it, given what came before.
//!
//! Of training steps, data parallelism comes with state in shards as well ([`state`]).

pub mod state;

use super::costs::Costs;
use super::space::{NodeCandidate, Space};
use planc_ir::ops::Op;
use planc_ir::sharding::reshard::{Resharder, StepCost};
use planc_ir::sharding::{
    AxisId, AxisUse, DimSharding, FactorId, FactorKind, Mesh, OpStrategy, ReduceKind, Sharding,
    Strategy,
};
use planc_ir::{Graph, NodeId, Phase, ValueDef, ValueId};
pub use state::Sharded;
use std::cell::RefCell;

/// A simpler way to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum Baseline {
    Replicate,
    DataParallel,
    TensorParallel,
    Greedy,
    /// Data parallel.
    Zero(Sharded),
}

/// Those of any graph.
const OF_GRAPHS: [Baseline; 4] =
    [Baseline::Replicate, Baseline::DataParallel, Baseline::TensorParallel, Baseline::Greedy];

/// Those of training steps besides.
const OF_STEPS: [Baseline; 3] = [
    Baseline::Zero(Sharded::OptimizerState),
    Baseline::Zero(Sharded::Gradients),
    Baseline::Zero(Sharded::Parameters),
];

/// All that a graph has.
pub fn baselines(graph: &Graph) -> Vec<Baseline> {
    let of_steps = if graph.carried.is_empty() { &[][..] } else { &OF_STEPS };
    OF_GRAPHS.iter().chain(of_steps).copied().collect()
}

impl Baseline {
    /// The name as reports say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replicate => "replicate",
            Self::DataParallel => "data parallel",
            Self::TensorParallel => "tensor parallel",
            Self::Greedy => "greedy",
            Self::Zero(Sharded::OptimizerState) => "ZeRO 1",
            Self::Zero(Sharded::Gradients) => "ZeRO 2",
            Self::Zero(Sharded::Parameters) => "ZeRO 3",
        }
    }

    /// Which axes are split by the batch, and which by weights.
    fn axes(self, mesh: &Mesh) -> (Vec<AxisId>, Option<AxisId>) {
        let mut all: Vec<AxisId> = mesh.axis_ids().collect();
        match self {
            Self::Replicate | Self::Greedy => (Vec::new(), None),
            Self::DataParallel | Self::Zero(_) => (all, None),
            Self::TensorParallel => {
                let tensor = all.pop();
                (all, tensor)
            }
        }
    }

    /// The strategy on the mesh of a space.
    pub fn strategy(self, space: &Space<'_>, costs: &dyn Costs) -> Strategy {
        let (graph, mesh) = (space.graph, space.mesh);
        if self == Self::Replicate {
            return Strategy::replicated(graph, mesh.clone());
        }
        if let Self::Zero(what) = self {
            return state::shard(space, Self::DataParallel.strategy(space, costs), what);
        }
        let (data, tensor) = self.axes(mesh);
        let step_cost: &dyn StepCost = costs;
        let mut walk = Walk {
            baseline: self,
            space,
            data: data.clone(),
            tensor,
            resharder: RefCell::new(Resharder::new(mesh, step_cost)),
            homes: vec![None; graph.values.len()],
            ops: vec![None; graph.nodes.len()],
            parameter: parameters(graph),
        };
        for &v in &graph.inputs {
            walk.homes[v.index()] = Some(batch_split(graph, v, mesh, &data));
        }
        for at in 0..graph.nodes.len() {
            // What works on parameters alone waits for its reader.
            if graph.nodes[at].outputs.iter().any(|v| !walk.parameter[v.index()]) {
                walk.node(at);
            }
        }
        for at in 0..graph.nodes.len() {
            if walk.ops[at].is_none() {
                walk.take(at, 0);
            }
        }
        let homes = walk.homes.into_iter().zip(&graph.values);
        let values =
            homes.map(|(h, v)| h.unwrap_or_else(|| Sharding::replicated(v.ty.rank()))).collect();
        let replicated = || OpStrategy::replicated(mesh);
        let ops = walk.ops.into_iter().map(|op| op.unwrap_or_else(replicated)).collect();
        Strategy { mesh: mesh.clone(), ops, values, gather_again: space.gather_again }
    }
}

/// An input's home: its first dimension split over as many of the axes as its extent has room for.
fn batch_split(graph: &Graph, v: ValueId, mesh: &Mesh, axes: &[AxisId]) -> Sharding {
    let ty = graph.ty(v);
    let mut home = Sharding::replicated(ty.rank());
    if let (Some(dim), Some(&extent)) = (home.dims.first_mut(), ty.shape.first()) {
        let mut split = axes.to_vec();
        while !split.is_empty() && u64::from(mesh.group_size(&split)) > extent {
            split.pop();
        }
        *dim = DimSharding::split(split);
    }
    home.canonical(&ty.shape, mesh)
}

struct Walk<'a> {
    baseline: Baseline,
    space: &'a Space<'a>,
    data: Vec<AxisId>,
    tensor: Option<AxisId>,
    resharder: RefCell<Resharder<'a>>,
    /// Homes settled so far; a parameter's is settled by its first reader.
    homes: Vec<Option<Sharding>>,
    /// Nodes settled so far.
    ops: Vec<Option<OpStrategy>>,
    /// By value: whether it is known before the model runs.
    parameter: Vec<bool>,
}

impl Walk<'_> {
    /// Decides a node and settles the homes of its operands and results.
    fn node(&mut self, at: usize) {
        if let Some(received) = self.received(at) {
            return self.take(at, received);
        }
        let started = self.tensor.and_then(|axis| Some((axis, self.column_or_row(at)?)));
        // A split that the op or its extents do not allow is not started.
        let best = self
            .cheapest(at, |c| self.follows(at, c, started))
            .or_else(|| self.cheapest(at, |c| self.follows(at, c, None)))
            .unwrap_or(0);
        self.take(at, best);
    }

    /// What another stage sends for each micro-batch comes as inputs do.
    fn received(&self, at: usize) -> Option<usize> {
        let space = self.space;
        let node = &space.graph.nodes[at];
        if !matches!(node.op, Op::Receive(_)) || node.phase == Phase::Update {
            return None;
        }
        let home = batch_split(space.graph, node.outputs[0], space.mesh, &self.data);
        let candidates = &space.nodes[&space.blocks.leader[at]];
        candidates.iter().position(|c| space.shardings[c.outputs[0]] == home)
    }

    /// Settles a node on a candidate, and all that only follows from it.
    fn take(&mut self, at: usize, candidate: usize) {
        let space = self.space;
        let node = &space.graph.nodes[at];
        let candidate = &space.nodes[&space.blocks.leader[at]][candidate];
        for (&v, &needed) in node.inputs.iter().zip(&candidate.inputs) {
            if self.homes[v.index()].is_some() {
                continue;
            }
            let needed = &space.shardings[needed];
            match space.graph.value(v).def {
                ValueDef::Node { node, output } => self.supply(node.index(), output, needed),
                _ => self.homes[v.index()] = Some(loaded(needed)),
            }
        }
        for (v, &left) in node.outputs.iter().zip(&candidate.outputs) {
            self.homes[v.index()] = Some(space.shardings[left].clone());
        }
        self.ops[at] = Some(candidate.strategy.clone());
    }

    /// Decides a node that works on parameters alone so that its result comes closest to what a reader
    /// needs.
    fn supply(&mut self, at: usize, output: u32, needed: &Sharding) {
        let space = self.space;
        let ty = space.graph.ty(space.graph.nodes[at].outputs[output as usize]);
        let candidates = &space.nodes[&space.blocks.leader[at]];
        let cost = |c: &NodeCandidate| {
            let left = &space.shardings[c.outputs[output as usize]];
            let us = self.resharder.borrow_mut().cost_us(ty, left, needed);
            (us.unwrap_or(f64::INFINITY), c.us)
        };
        let costs = candidates.iter().map(cost).enumerate();
        let best = costs.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        self.take(at, best.map_or(0, |(i, _)| i));
    }

    /// The cheapest of the candidates that are allowed.
    fn cheapest(&self, at: usize, allowed: impl Fn(&NodeCandidate) -> bool) -> Option<usize> {
        let candidates = &self.space.nodes[&self.space.blocks.leader[at]];
        let mut best = None;
        let mut least = (f64::INFINITY, f64::INFINITY);
        for (i, candidate) in candidates.iter().enumerate().filter(|(_, c)| allowed(c)) {
            let Some(reshard_us) = self.reshard_us(at, candidate) else { continue };
            let cost = match self.baseline {
                Baseline::Greedy => (reshard_us + candidate.us, candidate.us),
                _ => (reshard_us, candidate.us),
            };
            if cost < least {
                (best, least) = (Some(i), cost);
            }
        }
        best
    }

    /// What it takes to bring a node's operands to where a candidate needs them.
    fn reshard_us(&self, at: usize, candidate: &NodeCandidate) -> Option<f64> {
        let space = self.space;
        let operands = space.graph.nodes[at].inputs.iter().zip(&candidate.inputs);
        let us = operands.map(|(v, &needed)| {
            let needed = &space.shardings[needed];
            let home = self.homes[v.index()].clone().unwrap_or_else(|| loaded(needed));
            self.resharder.borrow_mut().cost_us(space.graph.ty(*v), &home, needed)
        });
        us.sum()
    }

    /// Whether a candidate only continues splits, but for one axis that starts (or continues) one at
    /// `started`.
    fn follows(
        &self,
        at: usize,
        candidate: &NodeCandidate,
        started: Option<(AxisId, FactorId)>,
    ) -> bool {
        if self.baseline == Baseline::Greedy {
            return true;
        }
        self.space.mesh.axis_ids().zip(&candidate.strategy.axes).all(|(axis, &usage)| {
            match (usage, started) {
                (_, Some((tensor, factor))) if axis == tensor => usage == AxisUse::Split(factor),
                (AxisUse::Replicate, _) => true,
                (AxisUse::Linear(_), _) => false,
                (AxisUse::Split(_), _) => {
                    let splits_a_weight = self.baseline == Baseline::DataParallel
                        && self.splits_weight(at, candidate, axis);
                    !splits_a_weight && self.splits_computed(at, axis)
                }
            }
        })
    }

    /// Whether an axis already splits an operand that is computed or a graph input.
    fn splits_computed(&self, at: usize, axis: AxisId) -> bool {
        let graph = self.space.graph;
        graph.nodes[at].inputs.iter().any(|&v| {
            !self.parameter[v.index()]
                && self.homes[v.index()].as_ref().is_some_and(|h| h.split_axes().any(|a| a == axis))
        })
    }

    fn splits_weight(&self, at: usize, candidate: &NodeCandidate, axis: AxisId) -> bool {
        let graph = self.space.graph;
        graph.nodes[at].inputs.iter().zip(&candidate.inputs).any(|(v, &needed)| {
            matches!(graph.value(*v).def, ValueDef::Weight(_))
                && self.space.shardings[needed].split_axes().any(|a| a == axis)
        })
    }

    /// For a product of one computed operand with a weight: the contracted factor if the tensor axis
    /// splits it already, else the weight's own.
    fn column_or_row(&self, at: usize) -> Option<FactorId> {
        let graph = self.space.graph;
        let node = &graph.nodes[at];
        let id = NodeId(at as u32);
        let rule = graph.rule(id);
        let (weights, computed): (Vec<usize>, Vec<usize>) =
            (0..node.inputs.len()).partition(|&i| self.parameter[node.inputs[i].index()]);
        let ([weight, ..], [computed]) = (&*weights, &*computed) else { return None };
        let has = |dims: &[Vec<FactorId>], f: FactorId| dims.iter().flatten().any(|&g| g == f);
        let factor = |wanted: &dyn Fn(FactorId, FactorKind) -> bool| {
            let all = rule.factors.iter().enumerate().map(|(i, f)| (FactorId(i as u8), f.kind));
            let mut fitting = all.filter(|&(f, kind)| wanted(f, kind));
            fitting.next().map(|(f, _)| f)
        };
        let contracted = factor(&|f, kind| {
            kind == FactorKind::Reduce(ReduceKind::Sum)
                && has(&rule.inputs[*weight], f)
                && has(&rule.inputs[*computed], f)
        })?;
        let home = self.homes[node.inputs[*computed].index()].as_ref()?;
        let mut contracted_dims = rule.inputs[*computed]
            .iter()
            .zip(&home.dims)
            .filter(|(dim, _)| dim.contains(&contracted));
        if contracted_dims.any(|(_, d)| self.tensor.is_some_and(|t| d.axes.contains(&t))) {
            return Some(contracted);
        }
        factor(&|f, kind| {
            kind == FactorKind::Parallel
                && has(&rule.inputs[*weight], f)
                && !has(&rule.inputs[*computed], f)
        })
    }
}

/// How a value is loaded that is needed in some sharding.
fn loaded(needed: &Sharding) -> Sharding {
    Sharding { dims: needed.dims.clone(), partial: Vec::new() }
}

/// By value: whether it is known before the model runs: a weight, a constant, or computed from such.
fn parameters(graph: &Graph) -> Vec<bool> {
    let mut known: Vec<bool> = graph
        .values
        .iter()
        .map(|v| matches!(v.def, ValueDef::Weight(_) | ValueDef::Constant(_)))
        .collect();
    for node in &graph.nodes {
        let all = !node.inputs.is_empty() && node.inputs.iter().all(|v| known[v.index()]);
        for v in &node.outputs {
            known[v.index()] = all;
        }
    }
    known
}
