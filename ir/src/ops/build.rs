//! Adding nodes to a graph under one name: what decoding an ONNX node and differentiating an op share.

use super::Op;
use super::decode::MAX_FOLDED_BYTES;
use super::expand::Expand;
use super::map::Map;
use super::reduce::Reduce;
use super::reshape::Reshape;
use super::slice::{Cut, Slice};
use super::transpose::Transpose;
use crate::graph::{Graph, TensorType, ValueId};
use crate::scalar::ScalarFn;
use crate::sharding::ReduceKind;
use crate::{DType, Extents, OpError, Tensor};

/// A graph that grows by nodes that are named after one thing.
pub trait Build {
    /// The graph.
    fn graph(&self) -> &Graph;
    /// The graph, to append to it.
    fn graph_mut(&mut self) -> &mut Graph;
    /// What new nodes are named after.
    fn name(&self) -> &str;
    /// The contents of a value that stays what it is; nodes on such values alone are folded.
    fn constant_of(&self, v: ValueId) -> Option<&Tensor> {
        self.graph().constant_of(v)
    }

    /// A value's type.
    fn ty(&self, v: ValueId) -> TensorType {
        self.graph().ty(v).clone()
    }

    /// A value's shape.
    fn shape(&self, v: ValueId) -> Vec<u64> {
        self.graph().ty(v).shape.clone()
    }

    /// A scalar constant; on integers it must be integral and in range.
    #[allow(clippy::float_cmp)] // exactness is what is asked
    fn scalar(&mut self, dtype: DType, x: f64) -> Result<ValueId, OpError> {
        let exact = Tensor::from_f64(TensorType::new(dtype, []), |_| x)
            .map_err(|e| OpError::Invalid(e.to_string()))?;
        if !dtype.is_float() && exact.f64_at(0) != x {
            return Err(OpError::Invalid(format!("{x} is not a value of type {dtype}")));
        }
        Ok(self.constant(exact))
    }

    /// Appends an elementwise node.
    fn map(&mut self, f: ScalarFn, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        self.push(Map { f }, inputs)
    }

    /// Multiplies by a number; nothing happens for 1.
    #[allow(clippy::float_cmp)] // only exactly 1 changes nothing
    fn scale(&mut self, x: ValueId, by: f64) -> Result<ValueId, OpError> {
        if by == 1.0 {
            return Ok(x);
        }
        let by = self.scalar(self.graph().ty(x).dtype, by)?;
        self.map(ScalarFn::Mul, &[x, by])
    }

    /// Converts to another element type, unless it has it.
    fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, OpError> {
        if self.graph().ty(x).dtype == to { Ok(x) } else { self.map(ScalarFn::Cast(to), &[x]) }
    }

    /// Changes the extents, unless they are these.
    fn reshape(&mut self, x: ValueId, shape: impl Into<Vec<u64>>) -> Result<ValueId, OpError> {
        let shape = shape.into();
        if self.graph().ty(x).shape == shape { Ok(x) } else { self.push(Reshape { shape }, &[x]) }
    }

    /// Permutes dimensions, unless they are in order.
    fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Result<ValueId, OpError> {
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            Ok(x)
        } else {
            self.push(Transpose { perm: perm.to_vec() }, &[x])
        }
    }

    /// Broadcasts to a shape, unless it has it.
    fn expand(&mut self, x: ValueId, shape: impl Into<Vec<u64>>) -> Result<ValueId, OpError> {
        let shape = shape.into();
        if self.graph().ty(x).shape == shape { Ok(x) } else { self.push(Expand { shape }, &[x]) }
    }

    /// Reduces dimensions, keeping them as 1.
    fn reduce(&mut self, kind: ReduceKind, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
        self.push(Reduce { kind, axes: axes.to_vec(), keep: true }, &[x])
    }

    /// The mean over dimensions, keeping them as 1.
    fn mean(&mut self, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
        let shape = self.shape(x);
        let n = axes.iter().fold(1.0, |n, &a| n * shape[a] as f64);
        let sum = self.reduce(ReduceKind::Sum, x, axes)?;
        let n = self.scalar(self.graph().ty(x).dtype, n)?;
        self.map(ScalarFn::Div, &[sum, n])
    }

    /// The part `start..end` of a dimension.
    fn slice(&mut self, x: ValueId, axis: usize, start: u64, end: u64) -> Result<ValueId, OpError> {
        let ty = self.graph().ty(x);
        let rank = ty.rank();
        if start == 0 && end == ty.shape[axis] {
            return Ok(x);
        }
        let mut cuts = vec![None; rank];
        cuts[axis] = Some(Cut { start: start as i64, step: 1, extent: end.saturating_sub(start) });
        self.push(Slice { cuts }, &[x])
    }

    /// Adds a constant.
    fn constant(&mut self, tensor: Tensor) -> ValueId {
        let name = format!("{}:constant{}", self.name(), self.graph().values.len());
        self.graph_mut().constant(name, tensor)
    }

    /// Appends a node with one output, or folds it.
    fn push(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        let outputs = self.push_multi(op, inputs)?;
        outputs.first().copied().ok_or_else(|| OpError::Invalid("has no output".into()))
    }

    /// Appends a node, or folds it if all its inputs are known and its results small.
    fn push_multi(
        &mut self,
        op: impl Into<Op>,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, OpError> {
        let op = op.into();
        let types: Vec<TensorType> = inputs.iter().map(|&v| self.ty(v)).collect();
        let consts: Vec<Option<&Tensor>> = inputs.iter().map(|&v| self.constant_of(v)).collect();
        let out_types = op.infer(&types, &consts)?;
        let bytes = out_types.iter().fold(0u64, |n, t| n.saturating_add(t.bytes()));
        let known: Option<Vec<&Tensor>> = consts.iter().copied().collect();
        if let Some(known) = known.filter(|_| bytes <= MAX_FOLDED_BYTES) {
            // What cannot be evaluated now (an index out of range, say) is left to fail when run.
            if let Ok(results) = op.eval(&known) {
                return Ok(results.into_iter().map(|t| self.constant(t)).collect());
            }
        }
        let name = if self.graph().nodes.last().is_some_and(|n| n.name == self.name()) {
            format!("{}:{}", self.name(), self.graph().nodes.len())
        } else {
            self.name().to_string()
        };
        let names = vec![];
        Ok(self.graph_mut().push_typed(name, op, inputs, &names, out_types, Extents::Static))
    }
}
