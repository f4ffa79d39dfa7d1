//! Operators that are decoded when the model runs.
//!
//! - **ONNX**: any operator without a body, where the extents of an operand are known only then, or
//!   contents of one that decide the extents of a result (the k of TopK, the bounds of Range).
//! - **Semantics**: the operator is decoded on its operands as they are, all known by then, and what it
//!   becomes is evaluated. Results must have the types that were promised when the model was imported.
//! - **Split**: opaque. How a dimension splits follows from its extent.

use super::decode::{Attribute, Decoder, DecoderEntry, element_type};
use super::if_op::opaque;
use super::{OpDef, ResultType, Work, decoder};
use crate::graph::{Extents, Graph, TensorType, ValueId};
use crate::interp::evaluate;
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::weights::InMemory;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An ONNX node that is not decoded yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deferred {
    /// Operator domain; empty for ONNX's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Operator name.
    pub op_type: String,
    /// The file's version of the domain.
    pub opset: i64,
    /// Attributes.
    pub attributes: BTreeMap<String, Attribute>,
    /// Which of the operator's inputs are there.
    pub operands: Vec<bool>,
    /// What is promised of each result.
    pub results: Vec<Promise>,
}

/// What is known of a result before it is computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// Element type.
    pub dtype: DType,
    /// Extents, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
}

/// What operands and results of one deferred node may take together: nothing that was known before the run
/// bounds them.
const MAX_BYTES: u64 = 1 << 27;

/// It stands for ONNX operators that other files decode.
pub const DECODERS: &[DecoderEntry] = &[];

impl Deferred {
    /// The node that a decoder has in hand, with what `entry` says of its results.
    pub fn new(domain: &str, entry: &DecoderEntry, d: &Decoder<'_>) -> Result<Self, OpError> {
        let promise = |i: usize| match entry.results.get(i).or(entry.results.last()) {
            Some(result) => Promise::of(*result, d),
            None => Err(OpError::Invalid("has no result".into())),
        };
        Ok(Self {
            domain: domain.to_string(),
            op_type: d.op_type.to_string(),
            opset: d.opset,
            attributes: d.attributes.clone(),
            operands: d.inputs.iter().map(Option::is_some).collect(),
            results: (0..d.outputs).map(promise).collect::<Result<_, _>>()?,
        })
    }

    /// A value as it is, with a promise.
    pub fn identity(promise: Promise) -> Self {
        Self {
            domain: String::new(),
            op_type: "Identity".into(),
            opset: 1,
            attributes: BTreeMap::new(),
            operands: vec![true],
            results: vec![promise],
        }
    }

    /// Whether the extents of each result are known.
    pub fn extents(&self) -> Vec<Extents> {
        let extents = |p: &Promise| match p.shape {
            Some(_) => Extents::Static,
            None => Extents::Dynamic,
        };
        self.results.iter().map(extents).collect()
    }

    /// The graphs among the attributes; the importer defers no node that has one.
    pub(super) fn bodies(&self) -> impl Iterator<Item = &Graph> {
        self.attributes.values().filter_map(|a| match a {
            Attribute::Graph(body) => Some(&**body),
            _ => None,
        })
    }

    /// The node as a graph on known operands.
    fn decode(&self, operands: &[&Tensor]) -> Result<Graph, OpError> {
        let entry = decoder(&self.domain, &self.op_type, self.opset)
            .ok_or_else(|| OpError::Unsupported("no such operator".into()))?;
        let mut graph = Graph::new(self.op_type.clone());
        let mut rest = operands.iter();
        let inputs: Vec<Option<ValueId>> = self
            .operands
            .iter()
            .enumerate()
            .map(|(i, there)| {
                let tensor = there.then(|| rest.next()).flatten()?;
                Some(graph.constant(format!("operand {i}"), (**tensor).clone()))
            })
            .collect();
        let mut d = Decoder {
            graph: &mut graph,
            name: &self.op_type,
            op_type: &self.op_type,
            opset: self.opset,
            inputs,
            captured: 0,
            outputs: self.results.len(),
            attributes: self.attributes.clone(),
            drops: false,
        };
        let mut outputs = (entry.decode)(&mut d)?;
        outputs.truncate(self.results.len());
        graph.outputs = outputs;
        Ok(graph)
    }
}

impl Promise {
    /// The element type alone.
    pub const fn open(dtype: DType) -> Self {
        Self { dtype, shape: None }
    }

    /// What a decoder's entry says of a result of the node in hand.
    fn of(result: ResultType, d: &Decoder<'_>) -> Result<Self, OpError> {
        let open = |dtype| Ok(Self::open(dtype));
        let element = |i: usize| d.input(i).map(|v| d.graph.ty(v).dtype);
        match result {
            ResultType::Element(dtype) => open(dtype),
            ResultType::ElementOr(i, name, otherwise) => match (d.optional(i), d.int(name)?) {
                (Some(_), _) => open(element(i)?),
                (None, Some(number)) => open(element_type(number)?),
                (None, None) => open(otherwise),
            },
            ResultType::ElementOf(i) => open(element(i)?),
            ResultType::SameAs(i) => {
                let value = d.graph.value(d.input(i)?);
                let is_known = value.extents == Extents::Static;
                let shape = is_known.then(|| value.ty.shape.clone());
                Ok(Self { dtype: value.ty.dtype, shape })
            }
            ResultType::ShapedBy(i) => {
                let listed = d.optional(i).and_then(|v| d.graph.constant_of(v));
                let extent = |n: i64| u64::try_from(n).ok().filter(|&n| n > 0);
                let shape = listed.and_then(|t| t.to_i64s().into_iter().map(extent).collect());
                Ok(Self { dtype: element(0)?, shape })
            }
            ResultType::Attribute(name, otherwise) => match d.attribute(name) {
                Some(Attribute::Int(number)) => open(element_type(*number)?),
                Some(Attribute::Tensor(t)) => open(t.dtype()),
                Some(_) => Err(OpError::BadAttribute { name, why: "names no type".into() }),
                None => open(otherwise.map_or(Ok(DType::F32), element)?),
            },
        }
    }

    /// The type with no extents where they are open.
    fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, self.shape.clone().unwrap_or_default())
    }

    fn check(&self, found: &TensorType) -> Result<(), EvalError> {
        let fits = self.shape.as_ref().is_none_or(|s| *s == found.shape);
        if self.dtype == found.dtype && fits {
            return Ok(());
        }
        let promised = match self.shape {
            Some(_) => self.ty().to_string(),
            None => format!("{}[*]", self.dtype),
        };
        Err(EvalError::Invalid(format!("gives {found}, but the model says {promised}")))
    }
}

/// Refuses tensors that are too large together.
fn bounded<'a>(types: impl Iterator<Item = &'a TensorType>) -> Result<(), EvalError> {
    let bytes = types.map(TensorType::bytes).fold(0, u64::saturating_add);
    if bytes > MAX_BYTES {
        return Err(EvalError::TooLarge { bytes, limit_bytes: MAX_BYTES });
    }
    Ok(())
}

impl OpDef for Deferred {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        super::expect_inputs(inputs, self.operands.iter().filter(|there| **there).count())?;
        Ok(self.results.iter().map(Promise::ty).collect())
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        opaque(inputs, outputs, "extents or contents of its operands are known at run time")
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        bounded(inputs.iter().map(|t| t.ty()))?;
        let failed = |e: String| EvalError::Invalid(format!("{}: {e}", self.op_type));
        let graph = self.decode(inputs).map_err(|e| failed(e.to_string()))?;
        bounded(graph.values.iter().map(|v| &v.ty))?;
        // A broken promise is seen before it is computed, where the extents are known by now.
        for (promise, &v) in self.results.iter().zip(&graph.outputs) {
            let value = graph.value(v);
            if value.extents == Extents::Static {
                promise.check(&value.ty)?;
            }
        }
        let results = evaluate(&graph, &[], &InMemory).map_err(|e| failed(e.to_string()))?;
        if results.len() != self.results.len() {
            let why = format!("has {} results, not {}", results.len(), self.results.len());
            return Err(failed(why));
        }
        for (promise, tensor) in self.results.iter().zip(&results) {
            promise.check(tensor.ty())?;
        }
        Ok(results)
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
