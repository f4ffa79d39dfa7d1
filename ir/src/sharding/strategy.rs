//! Strategies: annotations on a graph. A strategy never edits the graph.

use super::mesh::{Mesh, MeshError};
use super::rule::FactorId;
use super::spec::{ReduceKind, Sharding};
use crate::graph::{Graph, NodeId, Phase, TensorType, ValueDef, ValueId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What one mesh axis does for one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AxisUse {
    /// Every rank along the axis does the same work.
    Replicate,
    /// The axis splits this factor of the op's rule.
    Split(FactorId),
    /// The op carries a partial sum through: the inputs in this set of
    /// [`FactorRule::linear`](super::FactorRule::linear) are partial sums over the axis.
    Linear(u8),
}

/// The strategy of one op: what each mesh axis does for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpStrategy {
    /// One entry a mesh axis.
    pub axes: Vec<AxisUse>,
}

impl OpStrategy {
    /// Every rank does the same work.
    pub fn replicated(mesh: &Mesh) -> Self {
        Self { axes: vec![AxisUse::Replicate; mesh.rank()] }
    }
}

/// The strategy of a graph on one mesh.
///
/// Each value has one *home* sharding: that in which its producer leaves it (for inputs, weights and
/// constants, that in which it is loaded). A consumer that needs another sharding gets it by a
/// reshard on the edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strategy {
    /// The mesh.
    pub mesh: Mesh,
    /// One entry a node of the graph.
    pub ops: Vec<OpStrategy>,
    /// One entry a value of the graph: the home sharding. For a node's output it equals what the
    /// node's strategy yields.
    pub values: Vec<Sharding>,
    /// Whether further forms of weights are dropped after the forward phase and made again for the
    /// backward phase, rather than kept.
    pub gather_again: bool,
}

/// Which readers of a value share its further forms: those of one section. What runs for each micro-batch and
/// what runs once a step never share; whether the forward and the backward phase share the forms of a
/// weight is the strategy's choice. Sections are named after their first phase.
pub fn section(graph: &Graph, v: ValueId, reader: Phase, gather_again: bool) -> Phase {
    let is_weight = matches!(graph.value(v).def, ValueDef::Weight(_));
    match reader {
        Phase::Backward if !(gather_again && is_weight) => Phase::Forward,
        phase => phase,
    }
}

/// The shardings of one op's operands and results under its strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpShardings {
    /// What each input must be in.
    pub inputs: Vec<Sharding>,
    /// What each output is left in.
    pub outputs: Vec<Sharding>,
}

/// A strategy that does not fit its graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum StrategyError {
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error(
        "the strategy has {found} entries for {expected} {what} of the graph; it is for another graph"
    )]
    Length { what: &'static str, expected: usize, found: usize },
    #[error(
        "node `{node}` ({op}): its strategy has {found} entries for {expected} mesh axes; give one an axis"
    )]
    AxisCount { node: String, op: &'static str, expected: usize, found: usize },
    #[error(
        "node `{node}` ({op}) cannot be split by {strategy:?}: {why}; choose among the axis uses of its factor rule"
    )]
    Illegal { node: String, op: &'static str, strategy: OpStrategy, why: String },
    #[error(
        "value `{value}`: {sharding} is no canonical sharding of {rank} dimensions on this mesh"
    )]
    BadHome { value: String, sharding: String, rank: usize },
    #[error("value `{value}` is loaded, so it cannot be partial; it is given as {sharding}")]
    PartialHome { value: String, sharding: String },
    #[error(
        "value `{value}` is said to be {found}, but node `{node}` leaves it {expected}; the two must agree"
    )]
    Home { value: String, node: String, expected: String, found: String },
}

impl Strategy {
    /// The strategy in which each op does as `ops` says and each value that no op yields (input, weight,
    /// constant) is loaded as `loaded` says.
    ///
    /// # Errors
    /// If an op cannot be split so.
    pub fn from_ops(
        graph: &Graph,
        mesh: Mesh,
        ops: Vec<OpStrategy>,
        loaded: impl FnMut(ValueId) -> Sharding,
    ) -> Result<Self, StrategyError> {
        expect("nodes", graph.nodes.len(), ops.len())?;
        mesh.check()?;
        let mut values: Vec<Sharding> = graph.value_ids().map(loaded).collect();
        for (id, op) in graph.node_ids().zip(&ops) {
            let shardings = op_shardings(graph, id, &mesh, op)?;
            for (&v, s) in graph.node(id).outputs.iter().zip(shardings.outputs) {
                values[v.index()] = s;
            }
        }
        Ok(Self { mesh, ops, values, gather_again: false })
    }

    /// Everything on every rank.
    pub fn replicated(graph: &Graph, mesh: Mesh) -> Self {
        let ops = vec![OpStrategy::replicated(&mesh); graph.nodes.len()];
        let values = graph.values.iter().map(|v| Sharding::replicated(v.ty.rank())).collect();
        Self { mesh, ops, values, gather_again: false }
    }

    /// Checks the strategy against its graph: one legal entry a node, one home a value, homes equal to
    /// what the ops yield, nothing loaded as a partial value. Returns what each node's operands and
    /// results are in.
    pub fn check(&self, graph: &Graph) -> Result<Vec<OpShardings>, StrategyError> {
        self.mesh.check()?;
        expect("nodes", graph.nodes.len(), self.ops.len())?;
        expect("values", graph.values.len(), self.values.len())?;
        for (v, home) in graph.values.iter().zip(&self.values) {
            let rank = v.ty.rank();
            if !home.is_valid(rank, &self.mesh)
                || home.clone().canonical(&v.ty.shape, &self.mesh) != *home
            {
                let (value, sharding) = (v.name.clone(), format!("{home:?}"));
                return Err(StrategyError::BadHome { value, sharding, rank });
            }
            // An accumulator is zero at first, whatever sums it is part of.
            let may_be = |kind| kind == ReduceKind::Sum && matches!(v.def, ValueDef::Accumulator);
            let is_partial = home.partial.iter().any(|&(_, kind)| !may_be(kind));
            if !matches!(v.def, ValueDef::Node { .. }) && is_partial {
                let sharding = home.display(&self.mesh).to_string();
                return Err(StrategyError::PartialHome { value: v.name.clone(), sharding });
            }
        }
        let mut all = Vec::with_capacity(graph.nodes.len());
        for (id, op) in graph.node_ids().zip(&self.ops) {
            let shardings = op_shardings(graph, id, &self.mesh, op)?;
            let node = graph.node(id);
            for (&v, expected) in node.outputs.iter().zip(&shardings.outputs) {
                let found = &self.values[v.index()];
                if found != expected {
                    return Err(StrategyError::Home {
                        value: graph.value(v).name.clone(),
                        node: node.name.clone(),
                        expected: expected.display(&self.mesh).to_string(),
                        found: found.display(&self.mesh).to_string(),
                    });
                }
            }
            all.push(shardings);
        }
        Ok(all)
    }
}

/// What a node's operands and results are in under a strategy.
///
/// # Errors
/// If the node cannot be split so.
pub fn op_shardings(
    graph: &Graph,
    id: NodeId,
    mesh: &Mesh,
    strategy: &OpStrategy,
) -> Result<OpShardings, StrategyError> {
    let node = graph.node(id);
    let (name, op) = (|| node.name.clone(), node.op.name());
    if strategy.axes.len() != mesh.rank() {
        let (expected, found) = (mesh.rank(), strategy.axes.len());
        return Err(StrategyError::AxisCount { node: name(), op, expected, found });
    }
    let (ins, outs) = (graph.input_types(id), graph.output_types(id));
    let rule = graph.rule(id);
    let illegal = |why: String| {
        let strategy = strategy.clone();
        StrategyError::Illegal { node: name(), op, strategy, why }
    };
    let shapes =
        |types: &[TensorType]| -> Vec<Vec<u64>> { types.iter().map(|t| t.shape.clone()).collect() };
    let (ins, outs) = (shapes(&ins), shapes(&outs));
    let ins: Vec<&[u64]> = ins.iter().map(Vec::as_slice).collect();
    let outs: Vec<&[u64]> = outs.iter().map(Vec::as_slice).collect();
    let found = rule.shardings(mesh, strategy, &ins, &outs);
    let Some((inputs, outputs)) = found else {
        let why = rule.opaque.clone().unwrap_or_else(|| {
            "no such factor, or an operand cannot express the split".to_string()
        });
        return Err(illegal(why));
    };
    let fits = |shardings: &[Sharding], shapes: &[&[u64]]| {
        shardings.len() == shapes.len()
            && shardings.iter().zip(shapes).all(|(s, shape)| s.is_valid(shape.len(), mesh))
    };
    if !fits(&inputs, &ins) || !fits(&outputs, &outs) {
        return Err(illegal("its factor rule does not describe its operands".to_string()));
    }
    Ok(OpShardings { inputs, outputs })
}

fn expect(what: &'static str, expected: usize, found: usize) -> Result<(), StrategyError> {
    if expected == found { Ok(()) } else { Err(StrategyError::Length { what, expected, found }) }
}
