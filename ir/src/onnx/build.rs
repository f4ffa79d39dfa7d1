//! From nodes of the file to nodes of the graph.
//!
//! Names live in frames, one a graph or inlined branch, the innermost last; a name is looked up from
//! the inside out. Graphs under construction form a stack too: the model, the body of a loop in it,
//! and so on. A value of an enclosing graph that a body reads becomes an input of the body and of
//! every body between.
//!
//! Where the file uses something that planc has no implementation for, the node's outputs are noted
//! as missing and the walk goes on, so that one error names everything.

use super::attribute::{self, AttributeError};
use super::call::Call;
use super::coverage::{self, Decoders};
use super::error::{ImportError, Unsupported};
use super::functions::{Item, Library, Opsets, bodies};
use super::initializer::Files;
use super::sequence::{Sequence, is_about_sequences};
use super::wire::{GraphProto, TypeProto};
use super::{order, scope, types};
use crate::OpError;
use crate::graph::{Extents, Graph, TensorType, ValueDef, ValueId};
use crate::ops::decode::Attribute;
use crate::ops::deferred::{Deferred, Promise};
use crate::ops::map::Map;
use crate::scalar::ScalarFn;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Named {
    /// A value of one of the graphs under construction.
    Value {
        /// Index into the stack of graphs.
        graph: usize,
        /// The value.
        id: ValueId,
    },
    /// Tensors that exist together only while the model is imported.
    Sequence(Rc<Sequence>),
    /// The result of something unsupported, which is noted already.
    Missing,
}

/// A graph under construction.
#[derive(Debug)]
pub(super) struct Building {
    pub(super) graph: Graph,
    /// The enclosing graph's values that the graph reads, in the order of its inputs for them.
    pub(super) captures: Vec<ValueId>,
    /// What they are here.
    pub(super) captured: HashMap<ValueId, ValueId>,
}

impl Building {
    pub(super) fn new(name: &str) -> Self {
        Self { graph: Graph::new(name), captures: Vec::new(), captured: HashMap::new() }
    }
}

/// The state of an import.
pub(super) struct Importer<'a> {
    pub(super) library: &'a Library<'a>,
    files: Files,
    pub(super) decoders: Decoders,
    pub(super) graphs: Vec<Building>,
    pub(super) frames: Vec<HashMap<String, Named>>,
    pub(super) unsupported: Unsupported,
    /// Values of the symbolic dimensions.
    pub(super) bindings: &'a BTreeMap<String, u64>,
    /// How many branches that may not be taken enclose the innermost graph.
    pub(super) undecided: usize,
    /// For each loop, by its outputs, the carried values that change their extents.
    pub(super) changing: BTreeMap<Vec<String>, BTreeSet<usize>>,
    /// See [`ImportOptions`](super::ImportOptions).
    pub(super) dropout: bool,
}

impl<'a> Importer<'a> {
    pub(super) fn new(
        name: &str,
        library: &'a Library<'a>,
        files: Files,
        bindings: &'a BTreeMap<String, u64>,
    ) -> Self {
        Self {
            library,
            files,
            decoders: coverage::decoders(),
            graphs: vec![Building::new(name)],
            frames: vec![HashMap::new()],
            unsupported: Unsupported::default(),
            bindings,
            undecided: 0,
            changing: BTreeMap::new(),
            dropout: false,
        }
    }

    /// The innermost graph.
    pub(super) fn graph(&mut self) -> &mut Graph {
        let last = self.graphs.len() - 1;
        &mut self.graphs[last].graph
    }

    /// A value of the innermost graph.
    pub(super) fn local(&self, id: ValueId) -> Named {
        Named::Value { graph: self.graphs.len() - 1, id }
    }

    /// Gives a name to something, in the innermost frame.
    pub(super) fn name(&mut self, name: &str, named: Named) {
        if let Some(frame) = self.frames.last_mut() {
            frame.insert(name.to_string(), named);
        }
    }

    /// What a name stands for.
    pub(super) fn find(&self, name: &str) -> Option<Named> {
        self.frames.iter().rev().find_map(|frame| frame.get(name)).cloned()
    }

    /// What a name stands for, as a value of the innermost graph; `None` if it is missing.
    pub(super) fn resolve(&mut self, name: &str) -> Result<Option<ValueId>, UnknownName> {
        let named = self.find(name).ok_or(UnknownName)?;
        if matches!(named, Named::Sequence(_)) {
            let why = "it leaves the graph that makes it, or is read as a tensor".to_string();
            self.note("", "sequence", Some(why), name.to_string());
        }
        Ok(self.tensor(&named))
    }

    /// Something as a value of the innermost graph, if it is a value.
    pub(super) fn tensor(&mut self, named: &Named) -> Option<ValueId> {
        match *named {
            Named::Value { graph, id } => Some(self.capture(graph, id)),
            Named::Sequence(_) | Named::Missing => None,
        }
    }

    /// Makes a value of an enclosing graph one of the innermost graph.
    pub(super) fn capture(&mut self, graph: usize, mut id: ValueId) -> ValueId {
        for inner in graph + 1..self.graphs.len() {
            if let Some(&known) = self.graphs[inner].captured.get(&id) {
                id = known;
                continue;
            }
            let value = self.graphs[inner - 1].graph.value(id).clone();
            let building = &mut self.graphs[inner];
            let here = if let def @ ValueDef::Constant(_) = value.def {
                // A copy, so that shape arithmetic in the body folds.
                building.graph.add_value(value.name, value.ty, def)
            } else {
                building.captures.push(id);
                building.graph.input(value.name, value.ty)
            };
            building.graph.values[here.index()].extents = value.extents;
            building.captured.insert(id, here);
            id = here;
        }
        id
    }

    /// Defines a graph's initializers. Weights always belong to the model, bodies capture them.
    pub(super) fn initializers(&mut self, proto: &GraphProto) -> Result<(), ImportError> {
        let mut seen = HashMap::new();
        for (i, tensor) in proto.initializer.iter().enumerate() {
            let name = tensor.name();
            if let Some(first) = seen.insert(name, i) {
                return Err(ImportError::Duplicate {
                    what: "the initializer",
                    name: name.to_string(),
                    first: format!("initializer {first}"),
                    second: format!("initializer {i}"),
                });
            }
            let (ty, def) = self
                .files
                .define(tensor)
                .map_err(|source| ImportError::Initializer { name: name.to_string(), source })?;
            let named = self.define(name, ty, def);
            self.name(name, named);
        }
        for sparse in &proto.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |v| v.name());
            self.note("", "sparse initializer", Some("store it dense".into()), name.to_string());
            self.name(name, Named::Missing);
        }
        Ok(())
    }

    fn define(&mut self, name: &str, ty: TensorType, def: ValueDef) -> Named {
        let graph = match def {
            ValueDef::Weight(_) => 0,
            _ => self.graphs.len() - 1,
        };
        Named::Value { graph, id: self.graphs[graph].graph.add_value(name, ty, def) }
    }

    /// Adds a graph's nodes. `defined` says what defines each name of the graph that no node does.
    pub(super) fn nodes(
        &mut self,
        proto: &GraphProto,
        opsets: &Rc<Opsets>,
        inputs: &'static str,
    ) -> Result<(), ImportError> {
        let mut defined: HashMap<&str, &'static str> = HashMap::new();
        for input in &proto.input {
            if defined.insert(input.name(), inputs).is_some() {
                return Err(ImportError::Duplicate {
                    what: "the input",
                    name: input.name().to_string(),
                    first: inputs.to_string(),
                    second: inputs.to_string(),
                });
            }
        }
        let sparse = proto.sparse_initializer.iter().filter_map(|s| s.values.as_ref());
        for tensor in proto.initializer.iter().chain(sparse) {
            defined.insert(tensor.name(), "an initializer");
        }
        let items = self.library.inline(&proto.node, opsets)?;
        for item in &items {
            item.version()?;
        }
        let outer = &self.frames[..self.frames.len() - 1];
        let items = order::sort(items, &defined, |name| {
            outer.iter().any(|frame| frame.contains_key(name))
        })?;
        let infos = proto.value_info.iter().chain(&proto.output);
        let declared: HashMap<&str, &TypeProto> =
            infos.filter_map(|v| Some((v.name(), v.r#type.as_ref()?))).collect();
        for item in order::live(items, &proto.output) {
            self.node(&item, &declared)?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        item: &Item<'_>,
        declared: &HashMap<&str, &TypeProto>,
    ) -> Result<(), ImportError> {
        let marks = (self.graph().nodes.len(), self.graph().values.len());
        let results = self.results(item)?;
        let scope = scope::of(&item.node);
        for node in &mut self.graph().nodes[marks.0..] {
            if node.scope.is_empty() {
                node.scope.clone_from(&scope);
            }
        }
        let named = item.node.output.iter().take(item.outputs).enumerate();
        for (i, name) in named.filter(|(_, name)| !name.is_empty()) {
            let mut named = match &results {
                None => Named::Missing,
                Some(results) => results.get(i).cloned().unwrap_or_else(|| {
                    let why = format!("its output {i}, `{name}`, is not produced");
                    self.note_use(item, why);
                    Named::Missing
                }),
            };
            if let Named::Value { graph, id } = named {
                let declared = declared.get(name.as_str()).copied();
                let inferred = self.graphs[graph].graph.ty(id).dtype;
                let dtype = declared.and_then(types::declared_dtype);
                if let Some(declared) = dtype.filter(|d| *d != inferred) {
                    let value = name.clone();
                    return Err(ImportError::DeclaredType { value, declared, inferred });
                }
                let id = self.promised(graph, id, declared);
                if graph + 1 == self.graphs.len() && id.index() >= marks.1 {
                    self.graph().values[id.index()].name.clone_from(name);
                }
                named = Named::Value { graph, id };
            }
            self.name(name, named);
        }
        Ok(())
    }

    /// What a node's outputs are; `None` if something about it is unsupported.
    fn results(&mut self, item: &Item<'_>) -> Result<Option<Vec<Named>>, ImportError> {
        let Some(entry) = self.decoder(item)? else { return Ok(None) };
        let mut operands = Vec::with_capacity(item.node.input.len());
        for name in &item.node.input {
            operands.push(match name.as_str() {
                "" => None,
                name => Some(self.find(name).ok_or_else(|| undefined(item, name))?),
            });
        }
        if operands.iter().flatten().any(|named| matches!(named, Named::Missing)) {
            self.survey(&item.node, &item.opsets);
            return Ok(None);
        }
        if bodies(&item.node).next().is_some() {
            return self.control(item, entry, &operands);
        }
        if is_about_sequences(item) {
            return self.sequence(item, entry, &operands);
        }
        let Some(inputs) = self.tensors(item, &operands) else { return Ok(None) };
        if let Some(weight) = self.constant_node(item)? {
            return Ok(Some(vec![weight]));
        }
        let Some(attributes) = self.attributes(item)? else { return Ok(None) };
        let call = Call { entry, inputs, captured: 0, attributes, outputs: item.outputs };
        let values = self.call(item, &call)?;
        Ok(values.map(|values| values.into_iter().map(|v| self.local(v)).collect()))
    }

    /// A node's operands as values of the innermost graph; `None`, and noted, if one is a sequence.
    pub(super) fn tensors(
        &mut self,
        item: &Item<'_>,
        operands: &[Option<Named>],
    ) -> Option<Vec<Option<ValueId>>> {
        let mut values = Vec::with_capacity(operands.len());
        for (named, name) in operands.iter().zip(&item.node.input) {
            let value = named.as_ref().map(|named| self.tensor(named));
            if value == Some(None) {
                self.note_use(item, format!("its input `{name}` is a sequence"));
                return None;
            }
            values.push(value.flatten());
        }
        Some(values)
    }

    /// The attributes that are no graphs; `None` if one of them is of an unsupported type.
    pub(super) fn attributes(
        &mut self,
        item: &Item<'_>,
    ) -> Result<Option<BTreeMap<String, Attribute>>, ImportError> {
        let mut attributes = BTreeMap::new();
        for a in &item.node.attribute {
            if a.g.is_some() {
                continue;
            }
            let bad = |why: String| ImportError::Attribute {
                node: item.name(),
                op_type: item.node.op_type().to_string(),
                attribute: a.name().to_string(),
                why,
            };
            match attribute::read(a) {
                Ok(value) => {
                    if attributes.insert(a.name().to_string(), value).is_some() {
                        return Err(bad("is given twice".into()));
                    }
                }
                Err(AttributeError::Invalid(why)) => return Err(bad(why)),
                Err(AttributeError::Unsupported(kind)) => {
                    self.note_use(item, format!("attribute `{}` of type {kind:?}", a.name()));
                    return Ok(None);
                }
            }
        }
        Ok(Some(attributes))
    }

    /// A Constant whose value is a tensor is treated like an initializer: exporters that write no
    /// initializers keep their weights so.
    fn constant_node(&mut self, item: &Item<'_>) -> Result<Option<Named>, ImportError> {
        if item.node.op_type() != "Constant" || !item.domain().is_empty() {
            return Ok(None);
        }
        let value = item.node.attribute.iter().find(|a| a.name() == "value");
        let Some(tensor) = value.and_then(|a| a.t.as_deref()) else { return Ok(None) };
        let (ty, def) =
            self.files.tensor(tensor, false).map_err(|source| ImportError::Attribute {
                node: item.name(),
                op_type: "Constant".to_string(),
                attribute: "value".to_string(),
                why: source.to_string(),
            })?;
        let name = item.node.output.first().map_or("", String::as_str);
        Ok(Some(self.define(name, ty, def)))
    }

    /// The innermost graph's outputs. Those of the model get the names that the file gives them; those
    /// of a body are only told apart by their order.
    pub(super) fn outputs(&mut self, proto: &GraphProto) -> Result<(), ImportError> {
        for output in &proto.output {
            let name = output.name();
            let id = match self.resolve(name) {
                Ok(Some(id)) => id,
                Ok(None) => continue,
                Err(UnknownName) => {
                    return Err(ImportError::MissingOutput {
                        graph: proto.name().to_string(),
                        value: name.to_string(),
                    });
                }
            };
            let id = if self.graphs.len() == 1 { self.output(name, id) } else { id };
            self.graph().outputs.push(id);
        }
        Ok(())
    }

    /// The value `id` under the name of an output.
    fn output(&mut self, name: &str, id: ValueId) -> ValueId {
        let graph = self.graph();
        let value = graph.value(id).clone();
        match value.def {
            _ if value.name == name => id,
            ValueDef::Node { .. } if !graph.outputs.contains(&id) => {
                graph.values[id.index()].name = name.to_string();
                id
            }
            def @ ValueDef::Constant(_) => graph.add_value(name, value.ty, def),
            _ => {
                let op = match value.extents {
                    Extents::Static => Map { f: ScalarFn::Identity }.into(),
                    Extents::Dynamic => Deferred::identity(Promise::open(value.ty.dtype)).into(),
                };
                let (types, extents) = (vec![value.ty], value.extents);
                graph.push_typed(name, op, &[id], &[name], types, extents)[0]
            }
        }
    }
}

/// A name that no enclosing graph defines.
#[derive(Debug)]
pub(super) struct UnknownName;

pub(super) fn undefined(item: &Item<'_>, value: &str) -> ImportError {
    ImportError::Undefined {
        node: item.name(),
        op_type: item.node.op_type().to_string(),
        value: value.to_string(),
    }
}

pub(super) fn op_error(item: &Item<'_>, source: OpError) -> ImportError {
    ImportError::Op { node: item.name(), op_type: item.node.op_type().to_string(), source }
}
