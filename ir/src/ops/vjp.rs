//! What an op sees when it is differentiated.

use super::Build;
use super::fill::Fill;
use crate::graph::{Graph, TensorType, ValueId};
use crate::scalar::ScalarFn;
use crate::sharding::ReduceKind;
use crate::{OpError, Tensor};

/// One node being differentiated. What it appends belongs to the backward phase.
///
/// A gradient has the type of the value that it is a gradient of. `inputs` and `outputs` hold what the node
/// read and made; a rule that needs neither keeps neither alive until the backward phase.
#[derive(Debug)]
pub struct Vjp<'a> {
    /// The graph being built.
    pub graph: &'a mut Graph,
    /// The name of the node.
    pub name: &'a str,
    /// The node's operands.
    pub inputs: Vec<ValueId>,
    /// The node's results.
    pub outputs: Vec<ValueId>,
    /// The gradient with respect to each result; `None` where it is zero. At least one is there.
    pub gradients: Vec<Option<ValueId>>,
    /// By operand: whether its gradient is wanted. Only floating-point operands are.
    pub wanted: Vec<bool>,
}

impl Build for Vjp<'_> {
    fn graph(&self) -> &Graph {
        self.graph
    }
    fn graph_mut(&mut self) -> &mut Graph {
        self.graph
    }
    fn name(&self) -> &str {
        self.name
    }
    /// Weights change from step to step, so they are not folded.
    fn constant_of(&self, v: ValueId) -> Option<&Tensor> {
        self.graph.fixed_contents(v)
    }
}

impl Vjp<'_> {
    /// Whether the gradient with respect to operand `index` is wanted.
    pub fn wants(&self, index: usize) -> bool {
        self.wanted.get(index).copied().unwrap_or(false)
    }

    /// The gradient with respect to the only result.
    ///
    /// # Errors
    /// If there is none, which a caller that only differentiates what matters never asks for.
    pub fn gradient(&self) -> Result<ValueId, OpError> {
        let first = self.gradients.first().copied().flatten();
        first.ok_or_else(|| OpError::Invalid("has no gradient to start from".into()))
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// None that are known: any type will do.
    pub fn zeros(&mut self, ty: TensorType) -> Result<ValueId, OpError> {
        self.push(Fill { dtype: ty.dtype, shape: ty.shape, value: 0.0 }, &[])
    }

    /// A gradient where a condition holds, 0 elsewhere.
    ///
    /// # Errors
    /// If the condition's shape does not broadcast to the gradient's.
    pub fn masked(&mut self, condition: ValueId, gradient: ValueId) -> Result<ValueId, OpError> {
        let zero = self.scalar(self.ty(gradient).dtype, 0.0)?;
        self.map(ScalarFn::Where, &[condition, gradient, zero])
    }

    /// Sums a gradient over the dimensions along which an operand of this shape was broadcast.
    ///
    /// # Errors
    /// If the shape does not broadcast to the gradient's.
    pub fn sum_to(&mut self, gradient: ValueId, shape: &[u64]) -> Result<ValueId, OpError> {
        let from = self.shape(gradient);
        let new = from.len().saturating_sub(shape.len());
        let axes: Vec<usize> =
            (0..from.len()).filter(|&d| d < new || (shape[d - new] == 1 && from[d] != 1)).collect();
        let sum =
            if axes.is_empty() { gradient } else { self.reduce(ReduceKind::Sum, gradient, &axes)? };
        self.reshape(sum, shape)
    }
}
