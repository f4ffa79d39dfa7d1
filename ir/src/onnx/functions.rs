//! Model-local functions: calls are replaced by the bodies before anything else looks at the nodes.
//!
//! Two functions that each call the next one twice make 2^n nodes of n functions, so the number of
//! nodes is computed before any is made.

use super::error::ImportError;
use super::wire::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// The oldest and the newest version of ONNX's own domain that is read.
const MIN_OPSET: i64 = 7;
const MAX_OPSET: i64 = 27;

/// Nodes that inlining may give.
const MAX_NODES: u64 = 100_000;

/// The version of each domain that a node is written for; ONNX's own is the empty text.
pub(super) type Opsets = BTreeMap<String, i64>;

/// A node after inlining.
#[derive(Debug)]
pub(super) struct Item<'a> {
    /// As it is written, or a copy with the caller's names.
    pub(super) node: Cow<'a, NodeProto>,
    /// What it is written for.
    pub(super) opsets: Rc<Opsets>,
    /// How many of its outputs count: those behind the last one that is read do not.
    pub(super) outputs: usize,
}

impl<'a> Item<'a> {
    fn new(node: Cow<'a, NodeProto>, opsets: Rc<Opsets>) -> Self {
        Self { outputs: node.output.len(), node, opsets }
    }

    /// The node's name, or its first output where it has none.
    pub(super) fn name(&self) -> String {
        node_name(&self.node)
    }

    /// The node's domain in its one spelling.
    pub(super) fn domain(&self) -> &str {
        domain(self.node.domain())
    }

    /// The version of the node's domain.
    pub(super) fn version(&self) -> Result<i64, ImportError> {
        let domain = self.domain();
        self.opsets.get(domain).copied().ok_or_else(|| ImportError::UndeclaredDomain {
            node: self.name(),
            op_type: self.node.op_type().to_string(),
            domain: if domain.is_empty() { "ai.onnx" } else { domain }.to_string(),
        })
    }
}

/// Reads an opset list. `ai.onnx` is another name of the empty domain.
pub(super) fn opsets(list: &[OperatorSetIdProto]) -> Result<Rc<Opsets>, ImportError> {
    let mut out = Opsets::new();
    for entry in list {
        let (domain, second) = (domain(entry.domain()).to_string(), entry.version());
        if domain.is_empty() && !(MIN_OPSET..=MAX_OPSET).contains(&second) {
            return Err(ImportError::Opset { found: second, min: MIN_OPSET, max: MAX_OPSET });
        }
        match out.insert(domain.clone(), second) {
            Some(first) if first != second => {
                return Err(ImportError::TwoOpsets { domain, first, second });
            }
            _ => {}
        }
    }
    Ok(Rc::new(out))
}

/// The one spelling of a domain.
pub(super) fn domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

type Key<'a> = (&'a str, &'a str, &'a str);

fn key_of_call(node: &NodeProto) -> Key<'_> {
    (domain(node.domain()), node.op_type(), node.overload())
}

struct Function<'a> {
    proto: &'a FunctionProto,
    opsets: Rc<Opsets>,
    /// Nodes that one call becomes.
    nodes: u64,
}

/// The functions of a model.
pub(super) struct Library<'a> {
    functions: HashMap<Key<'a>, Function<'a>>,
    /// Calls replaced so far: makes the names of inner values unique.
    calls: Cell<u64>,
}

impl<'a> Library<'a> {
    /// Reads a model's functions: none may call itself, even through others.
    pub(super) fn new(model: &'a ModelProto) -> Result<Self, ImportError> {
        let mut functions = HashMap::new();
        let mut keys = Vec::new();
        for proto in &model.functions {
            let key = (domain(proto.domain()), proto.name(), proto.overload());
            let function = Function { proto, opsets: opsets(&proto.opset_import)?, nodes: 0 };
            if functions.insert(key, function).is_some() {
                let text = || "a FunctionProto".to_string();
                return Err(ImportError::Duplicate {
                    what: "function",
                    name: proto.name().to_string(),
                    first: text(),
                    second: text(),
                });
            }
            keys.push(key);
        }
        let mut library = Self { functions, calls: Cell::new(0) };
        for key in keys {
            library.count(key)?;
        }
        Ok(library)
    }

    /// Computes what a function becomes, and before it what those become that it calls.
    fn count(&mut self, root: Key<'a>) -> Result<(), ImportError> {
        let mut path: Vec<(Key<'a>, Vec<Key<'a>>)> = vec![(root, self.callees(root))];
        while let Some((key, callees)) = path.last_mut() {
            let key = *key;
            let Some(callee) = callees.pop() else {
                let proto = self.functions[&key].proto;
                let nodes = self.size(&proto.node);
                if let Some(f) = self.functions.get_mut(&key) {
                    f.nodes = nodes;
                }
                path.pop();
                continue;
            };
            if path.iter().any(|(k, _)| *k == callee) {
                let circle = path.iter().map(|(k, _)| k.1).skip_while(|name| *name != callee.1);
                return Err(ImportError::Recursion {
                    name: callee.1.to_string(),
                    path: circle.chain([callee.1]).map(str::to_string).collect(),
                });
            }
            if self.functions[&callee].nodes == 0 {
                path.push((callee, self.callees(callee)));
            }
        }
        Ok(())
    }

    /// The functions that a function calls, once each.
    fn callees(&self, key: Key<'a>) -> Vec<Key<'a>> {
        let mut callees = Vec::new();
        let mut todo: Vec<&'a [NodeProto]> = vec![&self.functions[&key].proto.node];
        while let Some(nodes) = todo.pop() {
            for node in nodes {
                let callee = key_of_call(node);
                if self.functions.contains_key(&callee) {
                    callees.push(callee);
                }
                todo.extend(bodies(node).map(|g| g.node.as_slice()));
            }
        }
        callees.sort_unstable();
        callees.dedup();
        callees
    }

    /// What nodes become; at least 1, saturating. Those in the bodies of control flow count too.
    fn size(&self, nodes: &[NodeProto]) -> u64 {
        let mut size = 1u64;
        let mut todo = vec![nodes];
        while let Some(nodes) = todo.pop() {
            for node in nodes {
                let one = self.functions.get(&key_of_call(node)).map_or(1, |f| f.nodes);
                size = size.saturating_add(one);
                todo.extend(bodies(node).map(|g| g.node.as_slice()));
            }
        }
        size
    }

    /// A node as an item, unless it is a call.
    pub(super) fn item<'n>(&self, node: &'n NodeProto, opsets: &Rc<Opsets>) -> Option<Item<'n>> {
        let call = self.functions.contains_key(&key_of_call(node));
        (!call).then(|| Item::new(Cow::Borrowed(node), opsets.clone()))
    }

    /// The nodes with all calls replaced. Those in the bodies of control flow are left: they are
    /// inlined when the body is read.
    pub(super) fn inline<'n>(
        &self,
        nodes: &'n [NodeProto],
        opsets: &Rc<Opsets>,
    ) -> Result<Vec<Item<'n>>, ImportError> {
        if !self.functions.is_empty() {
            let size = self.size(nodes);
            if size > MAX_NODES {
                return Err(ImportError::TooManyNodes { nodes: size, limit: MAX_NODES });
            }
        }
        let item = |n| Item::new(Cow::Borrowed(n), opsets.clone());
        let mut todo: Vec<Item<'n>> = nodes.iter().rev().map(item).collect();
        let mut out = Vec::with_capacity(nodes.len());
        while let Some(item) = todo.pop() {
            match self.functions.get(&key_of_call(&item.node)) {
                None => out.push(item),
                Some(f) => {
                    item.version()?;
                    self.calls.set(self.calls.get() + 1);
                    let body = instantiate(f.proto, &item.node, self.calls.get());
                    let body = body.into_iter().rev();
                    todo.extend(body.map(|n| Item::new(Cow::Owned(n), f.opsets.clone())));
                }
            }
        }
        Ok(out)
    }
}

/// A node's name, or its first output where it has none.
fn node_name(node: &NodeProto) -> String {
    let output = || node.output.iter().find(|o| !o.is_empty());
    match node.name() {
        "" => output().map_or_else(|| node.op_type().to_string(), Clone::clone),
        name => name.to_string(),
    }
}

/// The graphs in a node's attributes.
pub(super) fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|a| a.g.as_deref().into_iter().chain(&a.graphs))
}

/// A function's nodes with the names and attributes of the call with this number.
fn instantiate(function: &FunctionProto, call: &NodeProto, number: u64) -> Vec<NodeProto> {
    let mut names: HashMap<&str, String> = HashMap::new();
    let actual = |list: &[String], i: usize| list.get(i).cloned().unwrap_or_default();
    for (i, formal) in function.input.iter().enumerate() {
        names.insert(formal, actual(&call.input, i));
    }
    let mut passed_through = Vec::new();
    for (i, formal) in function.output.iter().enumerate() {
        let to = actual(&call.output, i);
        match names.get(formal.as_str()) {
            Some(from) if !to.is_empty() => passed_through.push((from.clone(), to)),
            Some(_) => {}
            None if to.is_empty() => {}
            None => {
                names.insert(formal, to);
            }
        }
    }
    let instance = Instance { names, call, function, name: node_name(call), number };
    let body = function.node.iter().map(|n| instance.node(n));
    // A function may return one of its inputs.
    let copies = passed_through.into_iter().map(|(from, to)| NodeProto {
        name: Some(format!("{}/{to}", instance.name)),
        op_type: Some("Identity".to_string()),
        input: vec![from],
        output: vec![to],
        ..NodeProto::default()
    });
    body.chain(copies).collect()
}

struct Instance<'a> {
    /// Formal to actual names.
    names: HashMap<&'a str, String>,
    call: &'a NodeProto,
    function: &'a FunctionProto,
    /// The call's name, which the names of its nodes start with.
    name: String,
    /// The call's number, which the names of its inner values end with: other calls of the function
    /// have values of the same names.
    number: u64,
}

impl Instance<'_> {
    fn value(&self, name: &str) -> String {
        match self.names.get(name) {
            _ if name.is_empty() => String::new(),
            Some(actual) => actual.clone(),
            None => format!("{}/{name}@{}", self.name, self.number),
        }
    }

    fn node(&self, inner: &NodeProto) -> NodeProto {
        let mut node = inner.clone();
        if !node.name().is_empty() {
            node.name = Some(format!("{}/{}", self.name, inner.name()));
        }
        for name in node.input.iter_mut().chain(&mut node.output) {
            *name = self.value(name);
        }
        node.attribute.retain_mut(|a| self.attribute(a));
        node
    }

    /// Resolves a reference to an attribute of the call; false if the call leaves it out.
    fn attribute(&self, attribute: &mut AttributeProto) -> bool {
        let reference = attribute.ref_attr_name();
        if !reference.is_empty() {
            let given = self.call.attribute.iter().chain(&self.function.attribute_proto);
            let Some(given) = given.into_iter().find(|a| a.name() == reference) else {
                return false;
            };
            *attribute = AttributeProto { name: attribute.name.take(), ..given.clone() };
            return true;
        }
        for body in attribute.g.as_deref_mut().into_iter().chain(&mut attribute.graphs) {
            self.body(body);
        }
        true
    }

    fn body(&self, body: &mut GraphProto) {
        for node in &mut body.node {
            *node = self.node(node);
        }
        for info in body.input.iter_mut().chain(&mut body.output).chain(&mut body.value_info) {
            info.name = info.name.take().map(|n| self.value(&n));
        }
        for tensor in &mut body.initializer {
            tensor.name = tensor.name.take().map(|n| self.value(&n));
        }
    }
}
