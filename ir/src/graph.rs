//! The graph: nodes and values in arenas, in topological order by construction.

use crate::ops::Op;
use crate::sharding::FactorRule;
use crate::{DType, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// An index into [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValueId(pub u32);

/// An index into [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl ValueId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Element type and extents. Sizes saturate: a hostile model may ask for 2^65 elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Vec<u64>>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements; `u64::MAX` when it would overflow.
    pub fn elements(&self) -> u64 {
        elements(&self.shape)
    }

    /// Size in bytes; `u64::MAX` when it would overflow.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.bytes())
    }

    /// Checks that a dimension exists.
    pub fn dim(&self, dim: usize) -> Result<usize, OpError> {
        let rank = self.rank();
        if dim < rank {
            Ok(dim)
        } else {
            Err(OpError::Axis { axis: i64::try_from(dim).unwrap_or(i64::MAX), rank })
        }
    }

    /// Turns an ONNX axis (negative counts from the back) into an index below `rank`.
    pub fn axis(&self, axis: i64) -> Result<usize, OpError> {
        resolve_axis(axis, self.rank())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

/// Product of extents, saturating (and 0 whenever one extent is 0).
pub fn elements(shape: &[u64]) -> u64 {
    if shape.contains(&0) {
        return 0;
    }
    shape.iter().fold(1, |n: u64, &d| n.saturating_mul(d))
}

/// Turns an ONNX axis (negative counts from the back) into an index below `rank`.
pub fn resolve_axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let r = rank as i64;
    let a = if axis < 0 { axis.saturating_add(r) } else { axis };
    if a < 0 || a >= r { Err(OpError::Axis { axis, rank }) } else { Ok(a as usize) }
}

/// Whether a value's extents are facts or only decided at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Extents {
    /// `TensorType::shape` is what the value has.
    Static,
    /// Only the element type is known (a loop's or a branch's result, say); `shape` is empty. Nodes
    /// that touch such a value are opaque to sharding.
    Dynamic,
}

/// Where a weight's bytes lie. Nothing is read before a program loads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WeightSource {
    /// `bytes` bytes, little-endian, row-major, at `offset` of the model file itself.
    ModelFile {
        /// Offset from the start of the file.
        offset: u64,
        /// Length.
        bytes: u64,
    },
    /// The same in another file, named relative to the model's folder.
    External {
        /// Path relative to the model's folder, as the model writes it.
        location: String,
        /// Offset from the start of the file.
        offset: u64,
        /// Length.
        bytes: u64,
    },
    /// Held in memory: the file stores it in a typed field or the graph was built in a program.
    Inline(Arc<Tensor>),
    /// Every element is `value`: what state that no file holds starts from.
    Fill {
        /// The value.
        #[serde(with = "crate::number")]
        value: f64,
    },
    /// The contents of another source, which hold elements of type `from`, converted.
    Cast {
        /// The element type that `source` holds.
        from: DType,
        /// Where its bytes lie.
        source: Box<WeightSource>,
    },
}

/// What defines a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ValueDef {
    /// A graph input.
    Input,
    /// A model parameter: an initializer.
    Weight(WeightSource),
    /// A small constant known at import.
    Constant(Arc<Tensor>),
    /// Zero at the beginning of each step, and carried from one micro-batch to the next: a sum over the
    /// micro-batches.
    Accumulator,
    /// Output number `output` of `node`.
    Node {
        /// The defining node.
        node: NodeId,
        /// Which of its outputs.
        output: u32,
    },
}

/// A tensor in the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The name that the user's file gives it; unique in the graph.
    pub name: String,
    /// Element type and extents.
    pub ty: TensorType,
    /// Whether the extents are facts.
    pub extents: Extents,
    /// What defines it.
    pub def: ValueDef,
}

/// The part of a training step that a node belongs to. Inference is all forward.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Computes the model and the loss.
    #[default]
    Forward,
    /// Computes gradients, and again what is needed for them and was not kept.
    Backward,
    /// Computes the next state from gradients; once a step, whatever the number of micro-batches.
    Update,
}

impl Phase {
    /// The printed name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Update => "update",
        }
    }
}

/// State that lasts from one run to the next: a weight from step to step, an accumulator from micro-batch
/// to micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// What the state is while the nodes run.
    pub state: ValueId,
    /// What it is afterwards, of the same type. An accumulator's is made before the update phase.
    pub next: ValueId,
}

/// An application of an op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The name that the user's file gives it, or one derived from its first output.
    pub name: String,
    /// Module path if the exporter wrote one (`model.layers.0.mlp`), else empty.
    pub scope: String,
    /// The part of a training step that it belongs to.
    #[serde(default, skip_serializing_if = "is_default")]
    pub phase: Phase,
    /// What is applied.
    pub op: Op,
    /// Operands; optional inputs that are absent are simply not listed (the op's attributes say
    /// which are there).
    pub inputs: Vec<ValueId>,
    /// Results.
    pub outputs: Vec<ValueId>,
}

/// A model: a directed acyclic graph of ops over values.
///
/// Built by appending: [`Graph::push`] only accepts inputs that exist, so `nodes` is always in
/// topological order.
///
/// A training step is a graph whose nodes are in [`Phase`]s, in this order, and whose state is
/// [`Carried`]. Its forward and backward nodes run once for each micro-batch, its update nodes once after
/// the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// The model's name.
    pub name: String,
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// Values; each node output, input, weight and constant once.
    pub values: Vec<Value>,
    /// Inputs in the file's order.
    pub inputs: Vec<ValueId>,
    /// Outputs in the file's order.
    pub outputs: Vec<ValueId>,
    /// State, each at most once.
    #[serde(default, skip_serializing_if = "is_default")]
    pub carried: Vec<Carried>,
    /// How often a step runs the forward and backward phase, each time on inputs of its own; 1 or more.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub micro_batches: u32,
    /// For how many of them at once what the forward phase makes for the backward phase is kept: in a stage of a
    /// pipeline, as many as are under way there; 1 or more.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub under_way: u32,
}

fn is_default<T: Default + PartialEq>(x: &T) -> bool {
    *x == T::default()
}

const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes it so
const fn is_one(n: &u32) -> bool {
    *n == 1
}

impl Default for Graph {
    fn default() -> Self {
        Self::new("")
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            nodes: Vec::new(),
            values: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            carried: Vec::new(),
            micro_batches: 1,
            under_way: 1,
        }
    }

    /// The phase in which a value is there: that of the node that makes it, the first for all others.
    pub fn phase(&self, id: ValueId) -> Phase {
        match self.value(id).def {
            ValueDef::Node { node, .. } => self.node(node).phase,
            _ => Phase::Forward,
        }
    }

    /// How often a step runs the nodes of a phase.
    pub const fn repeats(&self, phase: Phase) -> u32 {
        match phase {
            Phase::Forward | Phase::Backward => self.micro_batches,
            Phase::Update => 1,
        }
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// A value's type.
    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.values[id.index()].ty
    }

    /// All node ids, in topological order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// All value ids.
    pub fn value_ids(&self) -> impl DoubleEndedIterator<Item = ValueId> + use<> {
        (0..self.values.len() as u32).map(ValueId)
    }

    /// The types of a node's inputs.
    pub fn input_types(&self, id: NodeId) -> Vec<TensorType> {
        self.node(id).inputs.iter().map(|&v| self.ty(v).clone()).collect()
    }

    /// The types of a node's outputs.
    pub fn output_types(&self, id: NodeId) -> Vec<TensorType> {
        self.node(id).outputs.iter().map(|&v| self.ty(v).clone()).collect()
    }

    /// Whether a node touches a value whose extents are only known at run time.
    pub fn is_dynamic(&self, id: NodeId) -> bool {
        let n = self.node(id);
        n.inputs.iter().chain(&n.outputs).any(|&v| self.value(v).extents == Extents::Dynamic)
    }

    /// How a node may be split. A node that touches a value of unknown extents is opaque.
    pub fn rule(&self, id: NodeId) -> FactorRule {
        let (inputs, outputs) = (self.input_types(id), self.output_types(id));
        if self.is_dynamic(id) {
            let ranks =
                |types: &[TensorType]| types.iter().map(TensorType::rank).collect::<Vec<_>>();
            let why = "the extents of an operand are only known when the model runs";
            return FactorRule::opaque(&ranks(&inputs), &ranks(&outputs), why);
        }
        self.node(id).op.rule(&inputs, &outputs)
    }

    /// Adds a value that no node defines.
    pub fn add_value(&mut self, name: impl Into<String>, ty: TensorType, def: ValueDef) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        if matches!(def, ValueDef::Input) {
            self.inputs.push(id);
        }
        self.values.push(Value { name: name.into(), ty, extents: Extents::Static, def });
        id
    }

    /// Adds a graph input.
    pub fn input(&mut self, name: impl Into<String>, ty: TensorType) -> ValueId {
        self.add_value(name, ty, ValueDef::Input)
    }

    /// Adds a constant.
    pub fn constant(&mut self, name: impl Into<String>, tensor: Tensor) -> ValueId {
        let ty = tensor.ty().clone();
        self.add_value(name, ty, ValueDef::Constant(Arc::new(tensor)))
    }

    /// Appends a node whose output types are inferred; output `i` is called `names[i]`. Outputs whose
    /// extents the op leaves open are dynamic.
    ///
    /// # Errors
    /// What the op says of its inputs.
    pub fn push(
        &mut self,
        name: impl Into<String>,
        op: Op,
        inputs: &[ValueId],
        names: &[&str],
    ) -> Result<Vec<ValueId>, OpError> {
        let types: Vec<TensorType> = inputs.iter().map(|&v| self.ty(v).clone()).collect();
        let consts: Vec<Option<&Tensor>> = inputs.iter().map(|&v| self.constant_of(v)).collect();
        let out_types = op.infer(&types, &consts)?;
        let extents = op.extents().unwrap_or_default();
        let outputs = self.push_typed(name, op, inputs, names, out_types, Extents::Static);
        for (v, extents) in outputs.iter().zip(extents) {
            self.values[v.index()].extents = extents;
        }
        Ok(outputs)
    }

    /// Appends a node with given output types.
    pub fn push_typed(
        &mut self,
        name: impl Into<String>,
        op: Op,
        inputs: &[ValueId],
        names: &[&str],
        out_types: Vec<TensorType>,
        extents: Extents,
    ) -> Vec<ValueId> {
        let name = name.into();
        let node = NodeId(self.nodes.len() as u32);
        let outputs: Vec<ValueId> = out_types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| {
                let id = ValueId(self.values.len() as u32);
                let name = match names.get(i) {
                    Some(n) if !n.is_empty() => (*n).to_string(),
                    _ => format!("{name}:{i}"),
                };
                let def = ValueDef::Node { node, output: i as u32 };
                self.values.push(Value { name, ty, extents, def });
                id
            })
            .collect();
        self.nodes.push(Node {
            name,
            scope: String::new(),
            phase: self.nodes.last().map_or(Phase::Forward, |n| n.phase),
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
        });
        outputs
    }

    /// The value's contents if they are known at import and in memory.
    pub fn constant_of(&self, id: ValueId) -> Option<&Tensor> {
        match &self.value(id).def {
            ValueDef::Constant(t) | ValueDef::Weight(WeightSource::Inline(t)) => Some(t),
            _ => None,
        }
    }

    /// The same for a value that training does not change either: weights do not count.
    pub fn fixed_contents(&self, id: ValueId) -> Option<&Tensor> {
        match &self.value(id).def {
            ValueDef::Constant(t) => Some(t),
            _ => None,
        }
    }

    /// For each value, the nodes that read it, in order, once each.
    pub fn consumers(&self) -> Vec<Vec<NodeId>> {
        let mut readers = vec![Vec::new(); self.values.len()];
        for id in self.node_ids() {
            for &v in &self.node(id).inputs {
                let r: &mut Vec<NodeId> = &mut readers[v.index()];
                if r.last() != Some(&id) {
                    r.push(id);
                }
            }
        }
        readers
    }
}
