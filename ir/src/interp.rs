//! The reference interpreter: evaluates a graph node by node.
//!
//! It is slow and obviously right. Values are dropped after their last use, weights are loaded when
//! a node first reads them.

mod step;

pub use step::{Evaluated, evaluate_step};

use crate::graph::{Extents, Graph, NodeId, TensorType, ValueDef, ValueId};
use crate::ops::Op;
use crate::weights::{WeightError, Weights};
use crate::{EvalError, Tensor};
use std::borrow::Cow;
use thiserror::Error;

/// Why a graph cannot be evaluated.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum InterpError {
    #[error("the graph takes {expected} inputs, got {found}")]
    InputCount { expected: usize, found: usize },
    #[error("a step has {expected} micro-batches, got inputs for {found}")]
    MicroBatches { expected: usize, found: usize },
    #[error("input `{name}` is {expected}, got {found}")]
    InputType { name: String, expected: TensorType, found: TensorType },
    #[error("weight `{name}`: {source}")]
    Weight { name: String, source: WeightError },
    #[error("node `{node}` ({op}): {source}")]
    Node { node: String, op: &'static str, source: EvalError },
    #[error("node `{node}` ({op}) gave {found} for `{value}`, which is {expected}")]
    ResultType { node: String, op: &'static str, value: String, expected: String, found: String },
    #[error("the graph is malformed: {0}; verify it before evaluating")]
    Malformed(&'static str),
}

/// What the results of nodes may take in memory at one time.
pub const MAX_LIVE_BYTES: u64 = 1 << 30;

/// Iterations that all loops of one evaluation may run together.
pub const MAX_ITERATIONS: u64 = 100_000;

/// Evaluates a graph.
///
/// # Errors
/// If the inputs are not those that the graph takes, or a node cannot be evaluated on its operands.
pub fn evaluate(
    graph: &Graph,
    inputs: &[Tensor],
    weights: &dyn Weights,
) -> Result<Vec<Tensor>, InterpError> {
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let mut iterations = MAX_ITERATIONS;
    evaluate_within(graph, &inputs, weights, &mut iterations)
}

/// [`evaluate`] with what is left of the budget of iterations: how control flow runs its bodies.
pub(crate) fn evaluate_within(
    graph: &Graph,
    inputs: &[&Tensor],
    weights: &dyn Weights,
    iterations: &mut u64,
) -> Result<Vec<Tensor>, InterpError> {
    let mut run = Run::new(graph, inputs, weights)?;
    for id in graph.node_ids() {
        run.node(id, iterations)?;
    }
    graph.outputs.iter().map(|&v| run.output(v)).collect()
}

/// The state of an evaluation.
struct Run<'a> {
    graph: &'a Graph,
    weights: &'a dyn Weights,
    values: Vec<Option<Cow<'a, Tensor>>>,
    /// How often each value is still read.
    reads: Vec<usize>,
    /// What the results of nodes take that are still read.
    live_bytes: u64,
}

impl<'a> Run<'a> {
    fn new(
        graph: &'a Graph,
        inputs: &[&'a Tensor],
        weights: &'a dyn Weights,
    ) -> Result<Self, InterpError> {
        if inputs.len() != graph.inputs.len() {
            return Err(InterpError::InputCount {
                expected: graph.inputs.len(),
                found: inputs.len(),
            });
        }
        let n = graph.values.len();
        let mut run =
            Self { graph, weights, values: vec![None; n], reads: vec![0; n], live_bytes: 0 };
        let operands = graph.nodes.iter().flat_map(|node| &node.inputs);
        for v in operands.chain(&graph.outputs) {
            *run.reads.get_mut(v.index()).ok_or(InterpError::Malformed("no such value"))? += 1;
        }
        for (&v, &tensor) in graph.inputs.iter().zip(inputs) {
            let value =
                graph.values.get(v.index()).ok_or(InterpError::Malformed("no such input"))?;
            let fits = match value.extents {
                Extents::Static => value.ty == *tensor.ty(),
                Extents::Dynamic => value.ty.dtype == tensor.dtype(),
            };
            if !fits {
                return Err(InterpError::InputType {
                    name: value.name.clone(),
                    expected: value.ty.clone(),
                    found: tensor.ty().clone(),
                });
            }
            run.values[v.index()] = Some(Cow::Borrowed(tensor));
        }
        Ok(run)
    }

    fn node(&mut self, id: NodeId, iterations: &mut u64) -> Result<(), InterpError> {
        let node = self.graph.node(id);
        for &v in &node.inputs {
            self.fetch(v)?;
        }
        let failed =
            |source| InterpError::Node { node: node.name.clone(), op: node.op.name(), source };
        let results = self.graph.output_types(id);
        let bytes = results.iter().fold(self.live_bytes, |n, t| n.saturating_add(t.bytes()));
        if bytes > MAX_LIVE_BYTES {
            return Err(failed(EvalError::TooLarge { bytes, limit_bytes: MAX_LIVE_BYTES }));
        }
        let operands: Option<Vec<&Tensor>> =
            node.inputs.iter().map(|v| self.values[v.index()].as_deref()).collect();
        let operands =
            operands.ok_or(InterpError::Malformed("a value is read before it is made"))?;
        let results = match &node.op {
            Op::If(op) => op.eval_within(&operands, iterations),
            Op::Loop(op) => op.eval_within(&operands, iterations),
            op => op.eval(&operands),
        };
        let results = results.map_err(failed)?;
        if results.len() != node.outputs.len() {
            return Err(InterpError::Malformed("a node has more or fewer outputs than its op"));
        }
        for (&v, tensor) in node.outputs.iter().zip(results) {
            self.store(id, v, tensor)?;
        }
        for &v in &node.inputs {
            self.release(v);
        }
        Ok(())
    }

    /// Makes sure that a value that no node defines is there.
    fn fetch(&mut self, v: ValueId) -> Result<(), InterpError> {
        if self.values[v.index()].is_some() {
            return Ok(());
        }
        let value = self.graph.value(v);
        self.values[v.index()] =
            match &value.def {
                ValueDef::Constant(t) => Some(Cow::Borrowed(t.as_ref())),
                ValueDef::Weight(source) => {
                    let loaded = self.weights.load(&value.name, &value.ty, source);
                    Some(Cow::Owned(loaded.map_err(|source| InterpError::Weight {
                        name: value.name.clone(),
                        source,
                    })?))
                }
                ValueDef::Accumulator => {
                    Some(Cow::Owned(Tensor::zeros(value.ty.clone()).map_err(|source| {
                        InterpError::Weight { name: value.name.clone(), source: source.into() }
                    })?))
                }
                ValueDef::Input | ValueDef::Node { .. } => None,
            };
        Ok(())
    }

    fn store(&mut self, id: NodeId, v: ValueId, tensor: Tensor) -> Result<(), InterpError> {
        let graph = self.graph;
        let value = graph.values.get(v.index()).ok_or(InterpError::Malformed("no such value"))?;
        let fits = match value.extents {
            Extents::Static => value.ty == *tensor.ty(),
            Extents::Dynamic => value.ty.dtype == tensor.dtype(),
        };
        if !fits {
            return Err(InterpError::ResultType {
                node: graph.node(id).name.clone(),
                op: graph.node(id).op.name(),
                value: value.name.clone(),
                expected: value.ty.to_string(),
                found: tensor.ty().to_string(),
            });
        }
        if self.reads[v.index()] > 0 {
            self.live_bytes = self.live_bytes.saturating_add(tensor.ty().bytes());
            self.values[v.index()] = Some(Cow::Owned(tensor));
        }
        Ok(())
    }

    /// One read less; drops the value after the last.
    fn release(&mut self, v: ValueId) {
        let left = &mut self.reads[v.index()];
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        let value = self.values[v.index()].take();
        if let (Some(tensor), ValueDef::Node { .. }) = (value, &self.graph.value(v).def) {
            self.live_bytes = self.live_bytes.saturating_sub(tensor.ty().bytes());
        }
    }

    /// A graph output. One that is read again, as another output, is copied.
    fn output(&mut self, v: ValueId) -> Result<Tensor, InterpError> {
        self.fetch(v)?;
        let value = self.values[v.index()].take();
        let value = value.ok_or(InterpError::Malformed("an output is never made"))?;
        self.reads[v.index()] -= 1;
        if self.reads[v.index()] > 0 {
            self.values[v.index()] = Some(value.clone());
        }
        Ok(value.into_owned())
    }
}
