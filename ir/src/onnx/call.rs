//! Operators applied: now, where everything that decides an extent is known, else when the model runs.

use super::build::{Importer, op_error};
use super::error::ImportError;
use super::functions::Item;
use super::types;
use super::wire::TypeProto;
use crate::graph::{Extents, ValueDef, ValueId};
use crate::ops::decode::Attribute;
use crate::ops::deferred::{Deferred, Promise};
use crate::ops::{Decoder, DecoderEntry, Op};
use crate::{OpError, Tensor};
use std::collections::BTreeMap;

/// An operator with its operands.
pub(super) struct Call {
    pub(super) entry: &'static DecoderEntry,
    pub(super) inputs: Vec<Option<ValueId>>,
    /// See [`Decoder::captured`].
    pub(super) captured: usize,
    pub(super) attributes: BTreeMap<String, Attribute>,
    /// How many of its results count.
    pub(super) outputs: usize,
}

impl Call {
    fn has_bodies(&self) -> bool {
        self.attributes.values().any(|a| matches!(a, Attribute::Graph(_)))
    }
}

impl Importer<'_> {
    pub(super) fn is_dynamic(&self, v: ValueId) -> bool {
        self.graphs[self.graphs.len() - 1].graph.value(v).extents == Extents::Dynamic
    }

    /// The results of a node's operator, or of one that stands for it, in the innermost graph; `None`,
    /// and noted, if it is unsupported.
    pub(super) fn call(
        &mut self,
        item: &Item<'_>,
        call: &Call,
    ) -> Result<Option<Vec<ValueId>>, ImportError> {
        let name = item.name();
        let opset = item.opsets.get(call.entry.domain).copied().unwrap_or(call.entry.since);
        // Control flow takes operands of any extents, and Identity never looks.
        let takes_all = call.has_bodies() || call.entry.name == "Identity";
        let dynamic = call.inputs.iter().flatten().any(|&v| self.is_dynamic(v));
        let undecided = self.undecided > 0;
        let drops = self.dropout && matches!(call.entry.name, "Dropout" | "BiasDropout");
        if drops && (dynamic || self.graphs.len() > 1) {
            let why = "planc trains no dropout in the body of a loop or branch, nor of a tensor whose extents \
                       are only known when the model runs; plan without dropout";
            self.note_use(item, why.to_string());
            return Ok(None);
        }
        let graph = self.graph();
        let marks = (graph.nodes.len(), graph.values.len());
        let mut decoder = Decoder {
            graph,
            name: &name,
            op_type: call.entry.name,
            opset,
            inputs: call.inputs.clone(),
            captured: call.captured,
            outputs: call.outputs,
            attributes: call.attributes.clone(),
            drops,
        };
        let result = if dynamic && !takes_all {
            defer(call.entry, &mut decoder)
        } else {
            (call.entry.decode)(&mut decoder)
        };
        let result = match result {
            // What is wrong in a branch is wrong if it is taken.
            Err(e) if !call.has_bodies() && (leaves_open(&e) || undecided && is_wrong(&e)) => {
                decoder.graph.nodes.truncate(marks.0);
                decoder.graph.values.truncate(marks.1);
                defer(call.entry, &mut decoder).map_err(|_| e)
            }
            other => other,
        };
        match result {
            Ok(values) => Ok(Some(values)),
            Err(OpError::Unsupported(why)) => {
                self.note_use(item, why);
                Ok(None)
            }
            Err(source) => Err(op_error(item, source)),
        }
    }

    /// The first result of one of ONNX's own operators that stands for a node, or for a part of it.
    pub(super) fn stand_in(
        &mut self,
        item: &Item<'_>,
        op_type: &'static str,
        inputs: &[ValueId],
        attributes: &[(&str, Attribute)],
    ) -> Result<Option<ValueId>, ImportError> {
        let values = self.stand_ins(item, op_type, inputs, attributes, 1)?;
        Ok(values.and_then(|values| values.first().copied()))
    }

    /// The same with several results.
    pub(super) fn stand_ins(
        &mut self,
        item: &Item<'_>,
        op_type: &'static str,
        inputs: &[ValueId],
        attributes: &[(&str, Attribute)],
        outputs: usize,
    ) -> Result<Option<Vec<ValueId>>, ImportError> {
        let version = item.opsets.get("").copied().unwrap_or(0);
        let Some(entry) = self.entry("", op_type, version) else {
            self.note_use(item, format!("there is no {op_type} in opset {version}"));
            return Ok(None);
        };
        let attributes = attributes.iter().map(|(n, a)| ((*n).to_string(), a.clone())).collect();
        let inputs = inputs.iter().copied().map(Some).collect();
        self.call(item, &Call { entry, inputs, captured: 0, attributes, outputs })
    }

    /// A list of integers that is an attribute of an operator up to an opset and an input from then on.
    pub(super) fn stand_in_with_list(
        &mut self,
        item: &Item<'_>,
        (op_type, name, input_since): (&'static str, &'static str, i64),
        x: ValueId,
        list: Vec<i64>,
        mut attributes: Vec<(&'static str, Attribute)>,
        outputs: usize,
    ) -> Result<Option<Vec<ValueId>>, ImportError> {
        if item.opsets.get("").is_some_and(|&version| version < input_since) {
            attributes.push((name, Attribute::Ints(list)));
            return self.stand_ins(item, op_type, &[x], &attributes, outputs);
        }
        let list = self.constant(item, Tensor::vector(list));
        self.stand_ins(item, op_type, &[x, list], &attributes, outputs)
    }

    /// A constant of the innermost graph.
    pub(super) fn constant(&mut self, item: &Item<'_>, tensor: Tensor) -> ValueId {
        let name = format!("{}:constant{}", item.name(), self.graph().values.len());
        self.graph().constant(name, tensor)
    }

    /// A result with the extents that the file declares, where only the run gives them otherwise. The
    /// run compares. In bodies nothing is gained by it, and what exporters write there is often wrong.
    pub(super) fn promised(
        &mut self,
        graph: usize,
        id: ValueId,
        declared: Option<&TypeProto>,
    ) -> ValueId {
        let is_body = self.graphs.len() > 1;
        let model = &mut self.graphs[graph].graph;
        let value = model.value(id);
        if is_body || value.extents == Extents::Static {
            return id;
        }
        let shape = declared.and_then(|ty| types::declared_shape(ty, self.bindings));
        let Some(shape) = shape else { return id };
        let (name, dtype) = (value.name.clone(), value.ty.dtype);
        if let ValueDef::Node { node, output } = value.def
            && let Op::Deferred(op) = &mut model.nodes[node.index()].op
        {
            op.results[output as usize].shape = Some(shape.clone());
            let value = &mut model.values[id.index()];
            (value.ty.shape, value.extents) = (shape, Extents::Static);
            return id;
        }
        let op = Deferred::identity(Promise { dtype, shape: Some(shape.clone()) });
        let types = vec![crate::TensorType::new(dtype, shape)];
        model.push_typed(name, op.into(), &[id], &[], types, Extents::Static)[0]
    }
}

/// Whether an operator could not be decoded only because the run decides something.
fn leaves_open(e: &OpError) -> bool {
    matches!(e, OpError::NotConstant { .. })
}

/// Whether an operator contradicts its definition, rather than that planc does not know it.
fn is_wrong(e: &OpError) -> bool {
    !matches!(e, OpError::Unsupported(_) | OpError::UnsupportedType { .. })
}

/// Leaves a node to be decoded when the model runs.
fn defer(entry: &DecoderEntry, d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let op = Deferred::new(entry.domain, entry, d)?;
    let inputs: Vec<ValueId> = d.inputs.iter().copied().flatten().collect();
    d.graph.push(d.name, op.into(), &inputs, &[])
}
