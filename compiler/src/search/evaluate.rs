//! Prices any strategy: the independent check on the solver's figures.
//!
//! Shares no code with the search space or the integer program: it walks the graph node by node, asks
//! the factor rules what each operand must be in, and adds up.
//!
//! - **Compute**: each node at its largest local extents.
//! - **Communication**: each value is brought once to each sharding that some reader needs; a graph
//!   output that is partial is reduced in the cheapest way, unless a finished form of it exists.
//! - **Memory**: inputs, weights and constants in use stay throughout. A node's result is held from its
//!   node to its last reader, a graph output to the end; its further forms, with all that the reshard
//!   makes on the way, from the value's first reader to its last. The result of a node that changes
//!   only a description shares its operand's bytes while the node runs. Sizes are those of the largest
//!   part, each rounded up to the arena's alignment. This is never less than what the program holds at
//!   once.

use super::costs::Costs;
use planc_ir::program::{ALIGNMENT, Kernel};
use planc_ir::sharding::reshard::{Path, Resharder, Step, StepCost, reshard_reduced};
use planc_ir::sharding::{Mesh, OpShardings, Sharding, Strategy, StrategyError};
use planc_ir::{Graph, TensorType, ValueDef, ValueId};
use std::collections::BTreeMap;
use thiserror::Error;

/// What a strategy costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Time of one step.
    pub total_us: f64,
    /// Of it: kernels.
    pub compute_us: f64,
    /// Of it: reshards, by kind of step.
    pub communication_us: BTreeMap<String, f64>,
    /// Number of reshard steps, by kind.
    pub steps: BTreeMap<String, u64>,
    /// Largest memory of any rank.
    pub memory_bytes: u64,
    /// Of it: weights and constants.
    pub weight_bytes: u64,
}

impl Evaluation {
    /// Time spent in reshards of all kinds.
    pub fn resharding_us(&self) -> f64 {
        self.communication_us.values().sum()
    }

    /// Memory for inputs, activations and results at the fullest point.
    pub fn activation_bytes(&self) -> u64 {
        self.memory_bytes - self.weight_bytes
    }
}

/// A strategy that has no price.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum EvaluateError {
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    #[error("value `{value}` is left {from} and needed {to}; no sequence of collectives does that")]
    NoPath { value: String, from: String, to: String },
}

/// Prices a strategy.
pub fn evaluate(
    graph: &Graph,
    strategy: &Strategy,
    costs: &dyn Costs,
) -> Result<Evaluation, EvaluateError> {
    let nodes = strategy.check(graph)?;
    let mut evaluation = Evaluation::default();
    for (id, shardings) in graph.node_ids().zip(&nodes) {
        let local = |values: &[ValueId], shardings: &[Sharding]| -> Vec<TensorType> {
            let types = values.iter().map(|&v| graph.ty(v));
            types.zip(shardings).map(|(ty, s)| local_type(ty, s, &strategy.mesh)).collect()
        };
        let node = graph.node(id);
        let outputs = local(&node.outputs, &shardings.outputs);
        let work = node.op.work(&local(&node.inputs, &shardings.inputs), &outputs);
        if let Some(first) = outputs.first() {
            evaluation.compute_us += costs.op_us(&work, first.dtype);
        }
    }
    let mut walk = Walk::new(graph, strategy, &nodes, costs);
    for v in graph.value_ids() {
        walk.value(v, &mut evaluation)?;
    }
    let peak = walk.live_bytes.iter().copied().max().unwrap_or(0);
    evaluation.memory_bytes = evaluation.weight_bytes.saturating_add(peak);
    evaluation.total_us = evaluation.compute_us + evaluation.resharding_us();
    Ok(evaluation)
}

/// The walk over values: what it knows and what it adds up.
struct Walk<'a> {
    graph: &'a Graph,
    strategy: &'a Strategy,
    costs: &'a dyn Costs,
    resharder: Resharder<'a>,
    /// For each value, the nodes that read it and the sharding that each operand needs.
    readers: Vec<Vec<(usize, &'a Sharding)>>,
    /// Bytes but for weights while each node runs; the last entry is the end.
    live_bytes: Vec<u64>,
}

impl<'a> Walk<'a> {
    fn new(
        graph: &'a Graph,
        strategy: &'a Strategy,
        nodes: &'a [OpShardings],
        costs: &'a dyn Costs,
    ) -> Self {
        let mut readers = vec![Vec::new(); graph.values.len()];
        for (at, (node, shardings)) in graph.nodes.iter().zip(nodes).enumerate() {
            for (&v, needed) in node.inputs.iter().zip(&shardings.inputs) {
                readers[v.index()].push((at, needed));
            }
        }
        let live_bytes = vec![0; graph.nodes.len() + 1];
        let step_cost: &dyn StepCost = costs;
        let resharder = Resharder::new(&strategy.mesh, step_cost);
        Self { graph, strategy, costs, resharder, readers, live_bytes }
    }

    fn value(&mut self, v: ValueId, evaluation: &mut Evaluation) -> Result<(), EvaluateError> {
        let (ty, home) = (self.graph.ty(v), &self.strategy.values[v.index()]);
        let end = self.graph.nodes.len();
        let is_output = self.graph.outputs.contains(&v);
        let readers = std::mem::take(&mut self.readers[v.index()]);

        let mut forms: Vec<&Sharding> = Vec::new();
        let mut paths: Vec<Path> = Vec::new();
        for &(_, needed) in readers.iter().filter(|(_, needed)| *needed != home) {
            if !forms.contains(&needed) {
                forms.push(needed);
                paths.push(self.path(v, needed)?);
            }
        }
        let finished = |s: &Sharding| s.partial.is_empty();
        if is_output && !finished(home) && !forms.iter().any(|s| finished(s)) {
            let path = reshard_reduced(ty, home, &self.strategy.mesh, self.costs);
            paths.push(path.ok_or_else(|| self.no_path(v, "reduced".into()))?);
        }
        for path in &paths {
            self.add_steps(ty, home, path, evaluation);
        }

        let first = readers.iter().map(|r| r.0).min().unwrap_or(end);
        let last = if is_output { end } else { readers.iter().map(|r| r.0).max().unwrap_or(0) };
        let bytes = self.bytes(ty, home);
        match &self.graph.value(v).def {
            ValueDef::Input | ValueDef::Accumulator => self.hold(0, end, bytes),
            ValueDef::Weight(_) | ValueDef::Constant(_) => {
                if is_output || !readers.is_empty() {
                    evaluation.weight_bytes = evaluation.weight_bytes.saturating_add(bytes);
                }
            }
            ValueDef::Node { node, .. } => {
                let describes = matches!(self.graph.node(*node).op.lower(), Kernel::Copy);
                let from = node.index() + usize::from(describes);
                self.hold(from, last.max(node.index()), bytes);
            }
        }
        for path in &paths {
            let bytes =
                path.shardings.iter().map(|s| self.bytes(ty, s)).fold(0, u64::saturating_add);
            self.hold(first, last, bytes);
        }
        Ok(())
    }

    fn hold(&mut self, from: usize, to: usize, bytes: u64) {
        if from <= to {
            for live in &mut self.live_bytes[from..=to] {
                *live = live.saturating_add(bytes);
            }
        }
    }

    fn bytes(&self, ty: &TensorType, sharding: &Sharding) -> u64 {
        let bytes = local_type(ty, sharding, &self.strategy.mesh).bytes();
        bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
    }

    fn path(&mut self, v: ValueId, to: &Sharding) -> Result<Path, EvaluateError> {
        let home = &self.strategy.values[v.index()];
        match self.resharder.path(self.graph.ty(v), home, to) {
            Some(path) => Ok(path.clone()),
            None => Err(self.no_path(v, to.display(&self.strategy.mesh).to_string())),
        }
    }

    fn no_path(&self, v: ValueId, to: String) -> EvaluateError {
        let from = self.strategy.values[v.index()].display(&self.strategy.mesh).to_string();
        EvaluateError::NoPath { value: self.graph.value(v).name.clone(), from, to }
    }

    fn add_steps(&self, ty: &TensorType, home: &Sharding, path: &Path, sum: &mut Evaluation) {
        let mesh = &self.strategy.mesh;
        let mut before = local_type(ty, home, mesh);
        for (step, after) in path.steps.iter().zip(&path.shardings) {
            let after = local_type(ty, after, mesh);
            let us = self.costs.step_us(step, &before, &after, mesh);
            *sum.communication_us.entry(kind(step).to_string()).or_default() += us;
            *sum.steps.entry(kind(step).to_string()).or_default() += 1;
            before = after;
        }
    }
}

fn local_type(ty: &TensorType, sharding: &Sharding, mesh: &Mesh) -> TensorType {
    TensorType::new(ty.dtype, sharding.max_local_shape(&ty.shape, mesh))
}

/// The name of a kind of step, as reports say it.
pub const fn kind(step: &Step) -> &'static str {
    match step {
        Step::AllReduce { .. } => "all-reduce",
        Step::ReduceScatter { .. } => "reduce-scatter",
        Step::AllGather { .. } => "all-gather",
        Step::AllToAll { .. } => "all-to-all",
        Step::Slice { .. } => "slice",
        Step::ToPartial { .. } => "to-partial",
    }
}
