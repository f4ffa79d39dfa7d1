//! Decoding one ONNX node into IR nodes.
//!
//! The importer hands each ONNX node to the entry that the op table has for its name. The entry's
//! function reads inputs and attributes through a [`Decoder`], pushes one or more IR nodes, and
//! returns the values that are the node's outputs. Whatever is pushed with only known inputs is
//! folded: shape arithmetic never reaches the graph.

use super::Build;
use crate::graph::{Graph, TensorType, ValueId};
use crate::{DType, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Results of folding are kept only up to this size, so that folding a weight's transpose does not
/// read the weight and a hostile `ConstantOfShape` does not fill the memory.
pub const MAX_FOLDED_BYTES: u64 = 1 << 20;

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // ONNX's names
pub enum Attribute {
    Int(i64),
    Float(#[serde(with = "crate::number")] f32),
    String(String),
    Tensor(Arc<Tensor>),
    Ints(Vec<i64>),
    Floats(#[serde(with = "crate::number::list")] Vec<f32>),
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
    /// What is known of the outputs' types when the operands' extents are not; the last counts for
    /// all outputs that follow.
    pub results: &'static [ResultType],
}

/// What is known of an output's type while an operand's extents or contents are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// The element type of an input.
    ElementOf(usize),
    /// The element type and the extents of an input.
    SameAs(usize),
    /// This element type.
    Element(DType),
    /// The element type of the first input and the extents that an input lists, if it is known and
    /// lists neither 0 nor -1.
    ShapedBy(usize),
    /// The element type that an attribute names, or that its tensor has; where it is not given that of
    /// an input, or `F32`.
    Attribute(&'static str, Option<usize>),
    /// The element type of an input; that which an attribute names, or this one, where it is left
    /// out.
    ElementOr(usize, &'static str, DType),
}

impl DecoderEntry {
    /// An entry for one of ONNX's own operators.
    pub const fn onnx(
        name: &'static str,
        since: i64,
        decode: fn(&mut Decoder<'_>) -> Result<Vec<ValueId>, OpError>,
    ) -> Self {
        Self { domain: "", name, since, decode, results: &[ResultType::ElementOf(0)] }
    }

    /// An entry for one of ONNX Runtime's contributed operators.
    pub const fn microsoft(
        name: &'static str,
        decode: fn(&mut Decoder<'_>) -> Result<Vec<ValueId>, OpError>,
    ) -> Self {
        Self {
            domain: "com.microsoft",
            name,
            since: 1,
            decode,
            results: &[ResultType::ElementOf(0)],
        }
    }

    /// The same with other result types.
    #[must_use]
    pub const fn results(mut self, results: &'static [ResultType]) -> Self {
        self.results = results;
        self
    }
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
    /// Whether it is a dropout that drops, as in training.
    pub drops: bool,
}

impl Build for Decoder<'_> {
    fn graph(&self) -> &Graph {
        self.graph
    }
    fn graph_mut(&mut self) -> &mut Graph {
        self.graph
    }
    fn name(&self) -> &str {
        self.name
    }
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

    /// The contents of input `index`, which decides a shape or a result and so must be known.
    pub fn known(&self, index: usize, why: &'static str) -> Result<Tensor, OpError> {
        let v = self.input(index)?;
        self.graph.constant_of(v).cloned().ok_or(OpError::NotConstant { index, why })
    }

    /// A list of integers that was an attribute at first and became input `index` later: whichever
    /// is there.
    pub fn ints_or_input(
        &self,
        name: &'static str,
        index: usize,
        why: &'static str,
    ) -> Result<Option<Vec<i64>>, OpError> {
        match self.ints(name)? {
            Some(list) => Ok(Some(list)),
            None => self.optional_ints(index, why),
        }
    }

    /// The numbers `0, step, 2 · step, …` along one of `rank` dimensions, the others 1.
    pub fn count(
        &mut self,
        n: u64,
        step: u64,
        axis: usize,
        rank: usize,
    ) -> Result<ValueId, OpError> {
        if n.saturating_mul(DType::I64.bytes()) > MAX_FOLDED_BYTES {
            return Err(OpError::Unsupported(format!("counting along an axis of extent {n}")));
        }
        let mut along = vec![1; rank];
        along[axis] = n;
        let number = |i| i as i128 * i128::from(step);
        let numbers = Tensor::from_int(TensorType::new(DType::I64, along), number)
            .map_err(|e| OpError::Invalid(e.to_string()))?;
        Ok(self.constant(numbers))
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

    /// A list-of-floats attribute.
    pub fn floats(&self, name: &'static str) -> Result<Option<Vec<f32>>, OpError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Floats(x)) => Ok(Some(x.clone())),
            Some(other) => Err(wrong_type(name, "a list of floats", other)),
        }
    }

    /// A list-of-strings attribute.
    pub fn strings(&self, name: &'static str) -> Result<Option<Vec<String>>, OpError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Strings(x)) => Ok(Some(x.clone())),
            Some(other) => Err(wrong_type(name, "a list of strings", other)),
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

/// The element type that ONNX numbers so.
pub fn element_type(number: i64) -> Result<DType, OpError> {
    Ok(match number {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        other => {
            return Err(OpError::Unsupported(format!("elements of ONNX type number {other}")));
        }
    })
}
