//! Appending to a training step by hand.

use super::TrainError;
use planc_ir::graph::{Graph, Phase, ValueDef, WeightSource};
use planc_ir::ops::Build;
use planc_ir::scalar::ScalarFn;
use planc_ir::{DType, OpError, Tensor, TensorType, ValueId};

/// Appends nodes of one phase that are named after one thing.
pub struct Append<'a> {
    pub graph: &'a mut Graph,
    pub name: String,
    phase: Phase,
}

impl Build for Append<'_> {
    fn graph(&self) -> &Graph {
        self.graph
    }
    fn graph_mut(&mut self) -> &mut Graph {
        self.graph
    }
    fn name(&self) -> &str {
        &self.name
    }
    /// Weights change from step to step, so they are not folded.
    fn constant_of(&self, v: ValueId) -> Option<&Tensor> {
        self.graph.fixed_contents(v)
    }
}

impl<'a> Append<'a> {
    pub fn new(graph: &'a mut Graph, phase: Phase, name: impl Into<String>) -> Self {
        Self { graph, name: name.into(), phase }
    }

    /// Runs what appends nodes, which then belong to the phase.
    pub fn run<T>(
        &mut self,
        append: impl FnOnce(&mut Self) -> Result<T, OpError>,
    ) -> Result<T, TrainError> {
        let first = self.graph.nodes.len();
        let result =
            append(self).map_err(|why| TrainError::Build { at: self.name.clone(), why })?;
        for node in &mut self.graph.nodes[first..] {
            node.phase = self.phase;
        }
        Ok(result)
    }

    /// State that no file holds.
    pub fn state(&mut self, name: String, ty: TensorType, value: f64) -> ValueId {
        self.graph.add_value(name, ty, ValueDef::Weight(WeightSource::Fill { value }))
    }

    /// A number in the element type of another value.
    pub fn like(&mut self, x: ValueId, number: f64) -> Result<ValueId, OpError> {
        let dtype = self.graph.ty(x).dtype;
        self.scalar(dtype, number)
    }

    /// A function of a value and a number.
    pub fn with(&mut self, f: ScalarFn, x: ValueId, number: f64) -> Result<ValueId, OpError> {
        let number = self.like(x, number)?;
        self.map(f, &[x, number])
    }

    /// An input that the model does not have, under this name or, if that is taken, one like it.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[u64]) -> (ValueId, String) {
        let is_taken = |name: &str| self.graph.values.iter().any(|v| v.name == name);
        let mut free = name.to_string();
        let mut number = 1;
        while is_taken(&free) {
            number += 1;
            free = format!("{name}#{number}");
        }
        (self.graph.input(free.clone(), TensorType::new(dtype, shape)), free)
    }
}
