//! Control flow: nodes with bodies.
//!
//! A branch whose condition is known is read in place, as if the file had no If. Other bodies become
//! graphs of their own, whose last inputs are what they read from outside. A branch may be wrong for
//! the extents at hand, if it is there for others and never taken for these.

use super::build::{Building, Importer, Named, op_error};
use super::call::Call;
use super::error::ImportError;
use super::functions::{Item, Opsets};
use super::wire::GraphProto;
use crate::OpError;
use crate::finish::{prune, unique_names};
use crate::graph::ValueId;
use crate::ops::DecoderEntry;
use crate::ops::decode::Attribute;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// How deep bodies may lie in each other: their text in a plan nests several times as deep, and readers
/// of JSON bound that.
const MAX_NESTING: usize = 20;

/// A body that has been read.
pub(super) struct Body {
    pub(super) building: Building,
    /// What its outputs are: values of its graph, or sequences. They are not its graph's outputs yet.
    pub(super) results: Vec<Named>,
}

impl Body {
    /// The graph with these outputs, as an attribute, and what it reads from outside.
    pub(super) fn finish(self, outputs: Vec<ValueId>) -> (Attribute, Vec<ValueId>) {
        let mut graph = self.building.graph;
        graph.outputs = outputs;
        let mut graph = prune(graph);
        unique_names(&mut graph);
        (Attribute::Graph(Arc::new(graph)), self.building.captures)
    }
}

impl Importer<'_> {
    /// The outputs of a node with bodies; `None` if something about it is unsupported.
    pub(super) fn control(
        &mut self,
        item: &Item<'_>,
        entry: &'static DecoderEntry,
        operands: &[Option<Named>],
    ) -> Result<Option<Vec<Named>>, ImportError> {
        match entry.name {
            "If" => self.choice(item, entry, operands),
            "Loop" => self.repeat(item, entry, operands),
            "Scan" => self.scan(item, operands),
            _ => {
                self.note_use(item, "with a graph as an attribute".into());
                Ok(None)
            }
        }
    }

    /// The graph in a node's attribute.
    pub(super) fn proto<'i>(
        item: &'i Item<'_>,
        name: &'static str,
    ) -> Result<&'i GraphProto, ImportError> {
        let attribute = item.node.attribute.iter().find(|a| a.name() == name);
        let proto = attribute.and_then(|a| a.g.as_deref());
        proto.ok_or_else(|| op_error(item, OpError::MissingAttribute { name }))
    }

    fn choice(
        &mut self,
        item: &Item<'_>,
        entry: &'static DecoderEntry,
        operands: &[Option<Named>],
    ) -> Result<Option<Vec<Named>>, ImportError> {
        let branches = ["then_branch", "else_branch"];
        for name in branches {
            let proto = Self::proto(item, name)?;
            if !proto.input.is_empty() {
                let graph = proto.name().to_string();
                return Err(ImportError::BranchInputs { node: item.name(), graph });
            }
        }
        let Some(mut inputs) = self.tensors(item, operands) else { return Ok(None) };
        if let Some(taken) = self.known_condition(&inputs) {
            return self.inline(item, branches[usize::from(!taken)]).map(Some);
        }
        let (mut attributes, mut captured) = (BTreeMap::new(), 0);
        // In the order in which the op lists what its bodies read.
        for name in branches {
            let proto = Self::proto(item, name)?;
            self.undecided += 1;
            let body = self.body(proto, &item.opsets, |_| Ok(true))?;
            self.undecided -= 1;
            let Some(body) = body else { return Ok(None) };
            let outputs = body.results.iter().map(|named| match named {
                Named::Value { id, .. } => Some(*id),
                _ => None,
            });
            let Some(outputs) = outputs.collect() else {
                self.note_use(item, "a branch gives a sequence".into());
                return Ok(None);
            };
            let (graph, captures) = body.finish(outputs);
            attributes.insert(name.to_string(), graph);
            captured += captures.len();
            inputs.extend(captures.into_iter().map(Some));
        }
        let call = Call { entry, inputs, captured, attributes, outputs: item.outputs };
        let values = self.call(item, &call)?;
        Ok(values.map(|values| values.into_iter().map(|v| self.local(v)).collect()))
    }

    fn known_condition(&mut self, inputs: &[Option<ValueId>]) -> Option<bool> {
        let condition = (*inputs.first()?)?;
        match self.graph().constant_of(condition)?.slice::<bool>()? {
            [known] => Some(*known),
            _ => None,
        }
    }

    /// Reads a branch into the innermost graph.
    fn inline(&mut self, item: &Item<'_>, name: &'static str) -> Result<Vec<Named>, ImportError> {
        let branch = Self::proto(item, name)?;
        self.frames.push(HashMap::new());
        self.initializers(branch)?;
        self.nodes(branch, &item.opsets, "an input")?;
        let results = self.results_of(branch)?;
        self.frames.pop();
        Ok(results)
    }

    /// What the outputs of a body are.
    fn results_of(&mut self, proto: &GraphProto) -> Result<Vec<Named>, ImportError> {
        let result = |name: &str| {
            self.find(name).ok_or_else(|| ImportError::MissingOutput {
                graph: proto.name().to_string(),
                value: name.to_string(),
            })
        };
        proto.output.iter().map(|output| result(output.name())).collect()
    }

    /// Reads a body as a graph of its own, whose inputs `open` makes and names; `None` if something
    /// in it is unsupported.
    pub(super) fn body(
        &mut self,
        proto: &GraphProto,
        opsets: &Rc<Opsets>,
        open: impl FnOnce(&mut Self) -> Result<bool, ImportError>,
    ) -> Result<Option<Body>, ImportError> {
        if self.graphs.len() > MAX_NESTING {
            let graph = proto.name().to_string();
            return Err(ImportError::Nesting { graph, limit: MAX_NESTING });
        }
        self.graphs.push(Building::new(proto.name()));
        self.frames.push(HashMap::new());
        let mut results = Vec::new();
        let mut supported = open(self)?;
        if supported {
            self.initializers(proto)?;
            self.nodes(proto, opsets, "an input of the body")?;
            for named in self.results_of(proto)? {
                supported &= !matches!(named, Named::Missing);
                results.push(match named {
                    Named::Value { graph, id } => {
                        let id = self.capture(graph, id);
                        self.local(id)
                    }
                    other => other,
                });
            }
        }
        self.frames.pop();
        let building = self.graphs.pop();
        Ok(building.filter(|_| supported).map(|building| Body { building, results }))
    }
}
