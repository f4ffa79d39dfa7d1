//! Control flow: nodes with bodies.
//!
//! A branch whose condition is known is read in place, as if the file had no If. Other bodies become
//! graphs of their own, whose last inputs are what they read from outside.

use super::build::{Building, Importer, Named, op_error};
use super::error::ImportError;
use super::finish::{prune, unique_names};
use super::functions::{Item, Opsets};
use super::types;
use super::wire::GraphProto;
use crate::graph::{TensorType, ValueId};
use crate::ops::decode::Attribute;
use crate::{DType, OpError};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// What became of a node with bodies.
pub(super) enum Control {
    /// It is gone; these are its outputs.
    Inlined(Vec<Named>),
    /// Its bodies, by attribute, and what they read from outside, body by body.
    Bodies { bodies: Vec<(String, Attribute)>, captures: Vec<ValueId> },
    /// Something in a body is unsupported, and noted.
    Unsupported,
}

impl Importer<'_> {
    pub(super) fn control(
        &mut self,
        item: &Item<'_>,
        inputs: &[Option<ValueId>],
    ) -> Result<Control, ImportError> {
        if item.node.op_type() == "If" {
            for branch in item.node.attribute.iter().filter_map(|a| a.g.as_deref()) {
                if !branch.input.is_empty() {
                    let graph = branch.name().to_string();
                    return Err(ImportError::BranchInputs { node: item.name(), graph });
                }
            }
            if let Some(taken) = self.known_condition(inputs) {
                return self.inline(item, if taken { "then_branch" } else { "else_branch" });
            }
        }
        let mut bodies = Vec::new();
        let mut captures = Vec::new();
        // The order in which ops list what their bodies read.
        let mut graphs: Vec<_> = item.node.attribute.iter().filter(|a| a.g.is_some()).collect();
        graphs.sort_by_key(|a| (a.name() != "then_branch", a.name()));
        for attribute in graphs {
            let Some(proto) = attribute.g.as_deref() else { continue };
            let types = self.body_inputs(item, inputs, proto)?;
            let Some(body) = self.body(proto, types, &item.opsets)? else {
                return Ok(Control::Unsupported);
            };
            let graph = Attribute::Graph(Arc::new(body.graph));
            bodies.push((attribute.name().to_string(), graph));
            captures.extend(body.captures);
        }
        Ok(Control::Bodies { bodies, captures })
    }

    fn known_condition(&mut self, inputs: &[Option<ValueId>]) -> Option<bool> {
        let condition = (*inputs.first()?)?;
        match self.graph().constant_of(condition)?.slice::<bool>()? {
            [known] => Some(*known),
            _ => None,
        }
    }

    /// Reads a branch into the innermost graph.
    fn inline(&mut self, item: &Item<'_>, attribute: &'static str) -> Result<Control, ImportError> {
        let branch = item.node.attribute.iter().find(|a| a.name() == attribute);
        let Some(branch) = branch.and_then(|a| a.g.as_deref()) else {
            return Err(op_error(item, OpError::MissingAttribute { name: attribute }));
        };
        self.frames.push(HashMap::new());
        self.initializers(branch)?;
        self.nodes(branch, &item.opsets, "an input")?;
        let mut results = Vec::with_capacity(branch.output.len());
        for output in &branch.output {
            results.push(match self.resolve(output.name()) {
                Ok(Some(id)) => self.local(id),
                Ok(None) => Named::Missing,
                Err(_) => {
                    return Err(ImportError::MissingOutput {
                        graph: branch.name().to_string(),
                        value: output.name().to_string(),
                    });
                }
            });
        }
        self.frames.pop();
        Ok(Control::Inlined(results))
    }

    /// The types of a body's own inputs: those of a loop are the iteration's number, the condition,
    /// and the carried values.
    fn body_inputs(
        &mut self,
        item: &Item<'_>,
        inputs: &[Option<ValueId>],
        body: &GraphProto,
    ) -> Result<Vec<TensorType>, ImportError> {
        if item.node.op_type() != "Loop" {
            return Ok(Vec::new());
        }
        let mut list = vec![TensorType::new(DType::I64, []), TensorType::new(DType::Bool, [])];
        for (index, carried) in inputs.iter().enumerate().skip(2) {
            let Some(v) = *carried else {
                return Err(op_error(item, OpError::MissingInput { index }));
            };
            list.push(self.graph().ty(v).clone());
        }
        if list.len() != body.input.len() {
            let why = format!(
                "its body takes {} inputs; with {} carried values it must be {}",
                body.input.len(),
                list.len() - 2,
                list.len()
            );
            return Err(op_error(item, OpError::Invalid(why)));
        }
        for (info, ty) in body.input.iter().zip(&list) {
            let declared = types::declared_dtype(info.r#type.as_ref());
            if let Some(declared) = declared.filter(|d| *d != ty.dtype) {
                let value = info.name().to_string();
                return Err(ImportError::DeclaredType { value, declared, inferred: ty.dtype });
            }
        }
        Ok(list)
    }

    /// Reads a body as a graph of its own; `None` if something in it is unsupported.
    fn body(
        &mut self,
        proto: &GraphProto,
        inputs: Vec<TensorType>,
        opsets: &Rc<Opsets>,
    ) -> Result<Option<Building>, ImportError> {
        self.graphs.push(Building::new(proto.name()));
        self.frames.push(HashMap::new());
        for (info, ty) in proto.input.iter().zip(inputs) {
            let id = self.graph().input(info.name(), ty);
            let named = self.local(id);
            self.name(info.name(), named);
        }
        self.initializers(proto)?;
        self.nodes(proto, opsets, "an input of the body")?;
        self.outputs(proto)?;
        self.frames.pop();
        let Some(mut body) = self.graphs.pop() else { return Ok(None) };
        if body.graph.outputs.len() != proto.output.len() {
            return Ok(None);
        }
        body.graph = prune(body.graph);
        unique_names(&mut body.graph);
        Ok(Some(body))
    }
}
