//! Decoding one ONNX node into IR nodes.
//!
//! The importer hands each ONNX node to the entry that the op table has for its name. The entry's
//! function reads inputs and attributes through a [`Decoder`], pushes one or more IR nodes, and
//! returns the values that are the node's outputs. Whatever is pushed with only known inputs is
//! folded: shape arithmetic never reaches the graph.

use crate::graph::{Graph, TensorType, ValueId};
use crate::ops::Op;
use crate::{OpError, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Results of folding are kept only up to this size, so that folding a weight's transpose does not
/// read the weight and a hostile `ConstantOfShape` does not fill the memory.
pub const MAX_FOLDED_BYTES: u64 = 1 << 20;

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // ONNX's names
pub enum Attribute {
    Int(i64),
    Float(f32),
    String(String),
    Tensor(Arc<Tensor>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strings(Vec<String>),
    Graph(Arc<Graph>),
}

/// How one ONNX operator is decoded.
#[derive(Debug)]
pub struct DecoderEntry {
    /// Operator domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Operator name.
    pub name: &'static str,
    /// First version of the operator that the function reads. An operator may have several entries;
    /// the one with the largest `since` not above the file's opset is used.
    pub since: i64,
    /// Reads the node and returns the values of its outputs, in order; outputs that the file does
    /// not name may be left off the end.
    pub decode: fn(&mut Decoder<'_>) -> Result<Vec<ValueId>, OpError>,
}

/// One ONNX node being decoded.
#[derive(Debug)]
pub struct Decoder<'a> {
    /// The graph being built.
    pub graph: &'a mut Graph,
    /// The node's name.
    pub name: &'a str,
    /// The node's operator name.
    pub op_type: &'a str,
    /// The file's version of the operator's domain.
    pub opset: i64,
    /// Inputs; `None` where the file leaves an optional one out.
    pub inputs: Vec<Option<ValueId>>,
    /// How many of them, at the end, are not the node's own but what the bodies of a control-flow
    /// node read from outside: for each body in turn, the last inputs of its graph.
    pub captured: usize,
    /// Number of outputs that the file names.
    pub outputs: usize,
    /// Attributes.
    pub attributes: BTreeMap<String, Attribute>,
}

impl Decoder<'_> {
    /// Input `index`, which must be there.
    pub fn input(&self, index: usize) -> Result<ValueId, OpError> {
        self.optional(index).ok_or(OpError::MissingInput { index })
    }

    /// Input `index` if it is there.
    pub fn optional(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }

    /// All inputs, none of which may be left out.
    pub fn all_inputs(&self) -> Result<Vec<ValueId>, OpError> {
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// A value's type.
    pub fn ty(&self, v: ValueId) -> TensorType {
        self.graph.ty(v).clone()
    }

    /// A value's shape.
    pub fn shape(&self, v: ValueId) -> Vec<u64> {
        self.graph.ty(v).shape.clone()
    }

    /// The integers in input `index`, which decides a shape and so must be known.
    pub fn known_ints(&self, index: usize, why: &'static str) -> Result<Vec<i64>, OpError> {
        let v = self.input(index)?;
        match self.graph.constant_of(v) {
            Some(t) if t.dtype().is_int() => Ok(t.to_i64s()),
            Some(t) => Err(OpError::UnsupportedType { found: t.dtype() }),
            None => Err(OpError::NotConstant { index, why }),
        }
    }

    /// The same for an input that may be left out.
    pub fn optional_ints(
        &self,
        index: usize,
        why: &'static str,
    ) -> Result<Option<Vec<i64>>, OpError> {
        self.optional(index).map(|_| self.known_ints(index, why)).transpose()
    }

    /// Adds a constant.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        let name = format!("{}:constant{}", self.name, self.graph.values.len());
        self.graph.constant(name, tensor)
    }

    /// Appends a node with one output, or folds it.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        let outputs = self.push_multi(op, inputs)?;
        outputs.first().copied().ok_or_else(|| OpError::Invalid("has no output".into()))
    }

    /// Appends a node, or folds it if all its inputs are known and its results small.
    pub fn push_multi(
        &mut self,
        op: impl Into<Op>,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, OpError> {
        let op = op.into();
        let types: Vec<TensorType> = inputs.iter().map(|&v| self.ty(v)).collect();
        let consts: Vec<Option<&Tensor>> =
            inputs.iter().map(|&v| self.graph.constant_of(v)).collect();
        let out_types = op.infer(&types, &consts)?;
        let bytes = out_types.iter().fold(0u64, |n, t| n.saturating_add(t.bytes()));
        let known: Option<Vec<&Tensor>> = consts.iter().copied().collect();
        if let Some(known) = known.filter(|_| bytes <= MAX_FOLDED_BYTES) {
            // What cannot be evaluated now (an index out of range, say) is left to fail when run.
            if let Ok(results) = op.eval(&known) {
                return Ok(results.into_iter().map(|t| self.constant(t)).collect());
            }
        }
        let name = if self.graph.nodes.last().is_some_and(|n| n.name == self.name) {
            format!("{}:{}", self.name, self.graph.nodes.len())
        } else {
            self.name.to_string()
        };
        let names = vec![];
        Ok(self.graph.push_typed(name, op, inputs, &names, out_types, crate::Extents::Static))
    }

    /// Attribute `name` if it is there.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.get(name)
    }

    /// An integer attribute.
    pub fn int(&self, name: &'static str) -> Result<Option<i64>, OpError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Int(x)) => Ok(Some(*x)),
            Some(other) => Err(wrong_type(name, "an int", other)),
        }
    }

    /// An integer attribute with a default.
    pub fn int_or(&self, name: &'static str, default: i64) -> Result<i64, OpError> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// A float attribute with a default.
    pub fn float_or(&self, name: &'static str, default: f32) -> Result<f32, OpError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Float(x)) => Ok(*x),
            Some(other) => Err(wrong_type(name, "a float", other)),
        }
    }

    /// A list-of-integers attribute.
    pub fn ints(&self, name: &'static str) -> Result<Option<Vec<i64>>, OpError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Ints(x)) => Ok(Some(x.clone())),
            Some(other) => Err(wrong_type(name, "a list of ints", other)),
        }
    }

    /// A string attribute with a default.
    pub fn string_or(&self, name: &'static str, default: &str) -> Result<String, OpError> {
        match self.attribute(name) {
            None => Ok(default.to_string()),
            Some(Attribute::String(x)) => Ok(x.clone()),
            Some(other) => Err(wrong_type(name, "a string", other)),
        }
    }
}

fn wrong_type(name: &'static str, expected: &str, found: &Attribute) -> OpError {
    let found = match found {
        Attribute::Int(_) => "an int",
        Attribute::Float(_) => "a float",
        Attribute::String(_) => "a string",
        Attribute::Tensor(_) => "a tensor",
        Attribute::Ints(_) => "a list of ints",
        Attribute::Floats(_) => "a list of floats",
        Attribute::Strings(_) => "a list of strings",
        Attribute::Graph(_) => "a graph",
    };
    OpError::BadAttribute { name, why: format!("expected {expected}, found {found}") }
}
