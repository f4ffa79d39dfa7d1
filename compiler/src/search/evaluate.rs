//! Prices any strategy: the independent check on the solver's figures.
//!
//! Shares no code with the search space or the integer program: it walks the graph node by node, asks
//! the factor rules what each operand must be in, and adds up.
//!
//! - **Compute**: each node at its largest local extents.
//! - **Communication**: each value is brought once to each sharding that some reader of a [`section`]
//!   needs, and what state becomes to the state's home; a graph output that is partial is reduced in the
//!   cheapest way, unless a finished form of it exists.
//! - Both count as often as a step runs the phase.
//! - **Memory**: inputs, weights and constants in use stay throughout. A node's result is held from its
//!   node to its last reader, a graph output to the end; its further forms, with all that the reshard
//!   makes on the way, from the value's first reader to its last. The result of a node that changes
//!   only a description shares its operand's bytes while the node runs. What state becomes takes none
//!   once it lies where the state lies; until then, and where it is copied there in the end, it does. What the
//!   forward phase makes for the backward phase, and inputs, are held throughout and for each micro-batch that
//!   is [under way](Graph::under_way), if several are. Sizes are those of the largest part, each rounded up to
//!   the arena's alignment. This is never less than what the program holds at
//!   once.

use super::costs::Costs;
use super::state::next_values;
use planc_ir::program::{ALIGNMENT, Kernel};
use planc_ir::sharding::reshard::{Path, Resharder, StepCost, reshard_reduced};
use planc_ir::sharding::{Mesh, OpShardings, Sharding, Strategy, StrategyError, section};
use planc_ir::{Graph, Phase, TensorType, ValueDef, ValueId};
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
    /// Time that the kernels and reshards of each phase take, for one micro-batch.
    pub phase_us: BTreeMap<Phase, f64>,
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
    for (node, us) in graph.nodes.iter().zip(kernels(graph, &strategy.mesh, &nodes, costs)) {
        evaluation.compute_us += us * f64::from(graph.repeats(node.phase));
        *evaluation.phase_us.entry(node.phase).or_default() += us;
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

/// Time of each node's kernel, once, under a strategy of the graph; 0 of a node without results.
///
/// # Errors
/// If the strategy is not one of the graph.
pub fn kernel_us(
    graph: &Graph,
    strategy: &Strategy,
    costs: &dyn Costs,
) -> Result<Vec<f64>, EvaluateError> {
    Ok(kernels(graph, &strategy.mesh, &strategy.check(graph)?, costs).collect())
}

fn kernels<'a>(
    graph: &'a Graph,
    mesh: &'a Mesh,
    nodes: &'a [OpShardings],
    costs: &'a dyn Costs,
) -> impl Iterator<Item = f64> + 'a {
    graph.nodes.iter().zip(nodes).map(move |(node, shardings)| {
        let local = |values: &[ValueId], shardings: &[Sharding]| -> Vec<TensorType> {
            let types = values.iter().map(|&v| graph.ty(v));
            types.zip(shardings).map(|(ty, s)| local_type(ty, s, mesh)).collect()
        };
        let outputs = local(&node.outputs, &shardings.outputs);
        let work = node.op.work(&local(&node.inputs, &shardings.inputs), &outputs);
        outputs.first().map_or(0.0, |first| costs.op_us(&work, first.dtype))
    })
}

/// The walk over values: what it knows and what it adds up.
struct Walk<'a> {
    graph: &'a Graph,
    strategy: &'a Strategy,
    costs: &'a dyn Costs,
    resharder: Resharder<'a>,
    /// For each value, who needs it in which sharding: the node that reads it, or makes it for state.
    readers: Vec<Vec<(usize, &'a Sharding)>>,
    /// By value: whether it is copied to where state lies in the end.
    copied: Vec<bool>,
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
        let end = graph.nodes.len();
        let mut copied = vec![false; graph.values.len()];
        for next in next_values(graph) {
            let v = next.carried.next.index();
            let home = &strategy.values[next.carried.state.index()];
            readers[v].push((next.maker.unwrap_or(end), home));
            copied[v] |= !next.in_place;
        }
        let live_bytes = vec![0; end + 1];
        let step_cost: &dyn StepCost = costs;
        let resharder = Resharder::new(&strategy.mesh, step_cost);
        Self { graph, strategy, costs, resharder, readers, copied, live_bytes }
    }

    /// The phase of a node; of the end, that of the last one.
    fn phase(&self, at: usize) -> Phase {
        let node = self.graph.nodes.get(at).or(self.graph.nodes.last());
        node.map_or(Phase::Forward, |n| n.phase)
    }

    fn value(&mut self, v: ValueId, evaluation: &mut Evaluation) -> Result<(), EvaluateError> {
        let (ty, home) = (self.graph.ty(v), &self.strategy.values[v.index()]);
        let end = self.graph.nodes.len();
        let is_output = self.graph.outputs.contains(&v);
        let mut sections: BTreeMap<Phase, Vec<(usize, &Sharding)>> = BTreeMap::new();
        let readers = std::mem::take(&mut self.readers[v.index()]);
        for &(at, needed) in &readers {
            let section = section(self.graph, v, self.phase(at), self.strategy.gather_again);
            sections.entry(section).or_default().push((at, needed));
        }
        if is_output {
            let last = section(self.graph, v, self.phase(end), self.strategy.gather_again);
            sections.entry(last).or_default().push((end, home));
        }
        for (section, readers) in sections {
            self.section(v, section, &readers, evaluation)?;
        }
        let stays = is_output || self.copied[v.index()];
        let last = if stays { end } else { readers.iter().map(|r| r.0).max().unwrap_or(0) };
        let bytes = self.bytes(ty, home);
        match &self.graph.value(v).def {
            ValueDef::Input => self.hold(0, end, bytes.saturating_mul(self.under_way())),
            ValueDef::Accumulator => self.hold(0, end, bytes),
            ValueDef::Weight(_) | ValueDef::Constant(_) => {
                if is_output || !readers.is_empty() {
                    evaluation.weight_bytes = evaluation.weight_bytes.saturating_add(bytes);
                }
            }
            ValueDef::Node { node, .. } => {
                let describes = matches!(self.graph.node(*node).op.lower(), Kernel::Copy);
                let from = node.index() + usize::from(describes);
                self.keep(from, last.max(node.index()), bytes, self.under_way());
            }
        }
        Ok(())
    }

    /// What it takes to bring a value to the readers of a section; a reader at the end is the caller, who
    /// takes it in any form that is finished.
    fn section(
        &mut self,
        v: ValueId,
        section: Phase,
        readers: &[(usize, &Sharding)],
        evaluation: &mut Evaluation,
    ) -> Result<(), EvaluateError> {
        let (ty, home) = (self.graph.ty(v), &self.strategy.values[v.index()]);
        let end = self.graph.nodes.len();
        let mut forms: Vec<&Sharding> = Vec::new();
        let mut paths: Vec<Path> = Vec::new();
        for &(_, needed) in readers.iter().filter(|(_, needed)| *needed != home) {
            if !forms.contains(&needed) {
                forms.push(needed);
                paths.push(self.path(v, needed)?);
            }
        }
        let finished = |s: &Sharding| s.partial.is_empty();
        let is_output = self.graph.outputs.contains(&v) && readers.iter().any(|r| r.0 == end);
        if is_output && !finished(home) && !forms.iter().any(|s| finished(s)) {
            let path = reshard_reduced(ty, home, &self.strategy.mesh, self.costs);
            paths.push(path.ok_or_else(|| self.no_path(v, "reduced".into()))?);
        }
        let first = readers.iter().map(|r| r.0).min().unwrap_or(end);
        let (repeats, phase) = (self.graph.repeats(section), self.phase(first));
        for path in &paths {
            let us = self.add_steps(ty, home, path, repeats, evaluation);
            *evaluation.phase_us.entry(phase).or_default() += us;
        }
        let last = if self.copied[v.index()] {
            end
        } else {
            readers.iter().map(|r| r.0).max().unwrap_or(end)
        };
        // Forms of weights are the same for every micro-batch.
        let copies = match self.graph.value(v).def {
            ValueDef::Weight(_) | ValueDef::Constant(_) => 1,
            _ => self.under_way(),
        };
        for path in &paths {
            let bytes =
                path.shardings.iter().map(|s| self.bytes(ty, s)).fold(0, u64::saturating_add);
            self.keep(first, last, bytes, copies);
        }
        Ok(())
    }

    fn under_way(&self) -> u64 {
        self.graph.under_way.into()
    }

    /// Holds what is made for one micro-batch: throughout and in several copies, if one phase makes it and another
    /// reads it, and several micro-batches are under way.
    fn keep(&mut self, from: usize, to: usize, bytes: u64, copies: u64) {
        let is_kept = self.under_way() > 1
            && self.phase(from) == Phase::Forward
            && self.phase(to) == Phase::Backward;
        if is_kept {
            self.hold(0, self.graph.nodes.len(), bytes.saturating_mul(copies));
        } else {
            self.hold(from, to, bytes);
        }
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

    fn add_steps(
        &self,
        ty: &TensorType,
        home: &Sharding,
        path: &Path,
        repeats: u32,
        sum: &mut Evaluation,
    ) -> f64 {
        let mut total_us = 0.0;
        let mesh = &self.strategy.mesh;
        let mut before = local_type(ty, home, mesh);
        for (step, after) in path.steps.iter().zip(&path.shardings) {
            let after = local_type(ty, after, mesh);
            let us = self.costs.step_us(step, &before, &after, mesh);
            *sum.communication_us.entry(step.name().to_string()).or_default() +=
                us * f64::from(repeats);
            total_us += us;
            *sum.steps.entry(step.name().to_string()).or_default() += u64::from(repeats);
            before = after;
        }
        total_us
    }
}

fn local_type(ty: &TensorType, sharding: &Sharding, mesh: &Mesh) -> TensorType {
    TensorType::new(ty.dtype, sharding.max_local_shape(&ty.shape, mesh))
}
