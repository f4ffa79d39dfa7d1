//! Checks a graph and lists every finding.
//!
//! A graph without findings has these properties, on which all later stages rely:
//!
//! 1. **Ids** in every list name existing nodes and values.
//! 2. **Definitions.** A value is defined once: output `i` of node `n` is value `v` exactly if `v`'s
//!    definition says so. Every node has an output, but for those that send.
//! 3. **Order.** A node reads only values that are no node's, or an earlier node's.
//! 4. **Interface.** The list of inputs holds exactly the values defined as inputs, each once.
//! 5. **Names** of values are unique and not empty.
//! 6. **Stored values.** A constant's or inline weight's tensor has the value's type; a weight in a
//!    file takes as many bytes as its type, and its range does not overflow.
//! 7. **Dynamic values** are outputs of ops that leave their extents open, and only such ops read them
//!    ([`Op::extents`]); they have no extents.
//! 8. **Types.** A node's outputs have the types that the op infers from its inputs.
//! 9. **Factor rules** of nodes that touch no dynamic value fit: see [`RuleFault`] for what that means.
//! 10. **Bodies** of control flow are graphs with these properties, whose inputs may be dynamic.
//! 11. **Phases** follow one another in the order of the nodes, and there is at least one micro-batch, and one under way.
//! 12. **State** that is carried is a weight or an accumulator, and carried once; what it becomes has its
//!     type, and for an accumulator exists before the update phase. Every accumulator is carried.
//!     Bodies carry none.
//!
//! Later properties are checked only where the earlier ones that they need hold, so that each fault
//! is reported once.

mod rule;

pub use rule::{RuleFault, check_rule};

use crate::graph::{Extents, Graph, NodeId, Phase, TensorType, ValueDef, ValueId, WeightSource};
use crate::ops::Op;
use crate::{OpError, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// A property that does not hold.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum Finding {
    #[error("{place} names {id}, which does not exist")]
    ValueRange { place: String, id: ValueId },
    #[error("value `{value}` says that node {} defines it, which does not exist", node.0)]
    NodeRange { value: String, node: NodeId },
    #[error("node `{node}` has no outputs")]
    NoOutputs { node: String },
    #[error("output {output} of node `{node}` is value `{value}`, whose definition says otherwise")]
    NotDefinedHere { node: String, output: usize, value: String },
    #[error("value `{value}` says that it is output {output} of node `{node}`, which it is not")]
    NotAnOutput { value: String, node: String, output: u32 },
    #[error("node `{node}` reads `{value}`, which only a later node (or itself) defines")]
    Order { node: String, value: String },
    #[error(
        "value `{value}` is defined as an input, but stands {times} times in the list of inputs"
    )]
    InputListed { value: String, times: usize },
    #[error("the list of inputs names `{value}`, which is not defined as an input")]
    NotAnInput { value: String },
    #[error("{id} has no name")]
    NoName { id: ValueId },
    #[error("{first} and {second} have the same name, `{name}`")]
    SameName { name: String, first: ValueId, second: ValueId },
    #[error("value `{value}` has type {declared}, but the tensor it holds is {held}")]
    StoredType { value: String, declared: TensorType, held: TensorType },
    #[error(
        "weight `{value}` of type {ty} takes {expected} bytes, but {bytes} at offset {offset} are given"
    )]
    StoredBytes { value: String, ty: TensorType, expected: u64, offset: u64, bytes: u64 },
    #[error("value `{value}` is dynamic, but it has extents or is no node's output")]
    Dynamic { value: String },
    #[error("node `{node}` ({op}) reads `{value}`, which is dynamic; it needs extents")]
    ReadsDynamic { node: String, op: &'static str, value: String },
    #[error("whether `{value}` is dynamic is not what node `{node}` ({op}) says")]
    Extents { node: String, op: &'static str, value: String },
    #[error("node `{node}` ({op}): {why}")]
    Rejected { node: String, op: &'static str, why: OpError },
    #[error("node `{node}` ({op}) has {found} outputs, but the op infers {expected}")]
    OutputCount { node: String, op: &'static str, expected: usize, found: usize },
    #[error("`{value}` has type {declared}, but node `{node}` ({op}) infers {inferred}")]
    OutputType {
        node: String,
        op: &'static str,
        value: String,
        declared: TensorType,
        inferred: TensorType,
    },
    #[error("the factor rule of node `{node}` ({op}): {fault}")]
    Rule { node: String, op: &'static str, fault: RuleFault },
    #[error(
        "node `{node}` belongs to the {found} phase, but stands behind one of the {after} phase"
    )]
    Phase { node: String, found: &'static str, after: &'static str },
    #[error("the graph has no micro-batch")]
    MicroBatches,
    #[error(
        "`{value}` is carried as state, which only a weight can be, or an accumulator that has its next \
         value before the update phase; or it is an accumulator that nothing carries"
    )]
    NotState { value: String },
    #[error("state `{state}` is {expected}, but `{next}`, which it becomes, is {found}")]
    CarriedType { state: String, next: String, expected: TensorType, found: TensorType },
    #[error("state `{state}` is carried twice, or by a body")]
    CarriedTwice { state: String },
    #[error("in a body of node `{node}` ({op}): {finding}")]
    Body { node: String, op: &'static str, finding: Box<Finding> },
}

/// Every property of the module's list that does not hold; those of single nodes last, node by node. An
/// empty result means that the graph is valid.
pub fn verify(graph: &Graph) -> Vec<Finding> {
    Verifier { graph, is_body: false, findings: Vec::new() }.run()
}

/// The same for a body, whose inputs may be dynamic.
fn verify_body(graph: &Graph) -> Vec<Finding> {
    Verifier { graph, is_body: true, findings: Vec::new() }.run()
}

/// A tensor in memory that is not of its value's type.
fn held(value: &str, ty: &TensorType, t: &Tensor) -> Option<Finding> {
    (t.ty() != ty).then(|| Finding::StoredType {
        value: value.to_string(),
        declared: ty.clone(),
        held: t.ty().clone(),
    })
}

/// A weight whose source does not hold as much as its type.
fn stored(value: &str, ty: &TensorType, source: &WeightSource) -> Option<Finding> {
    match source {
        WeightSource::Inline(t) => held(value, ty, t),
        WeightSource::ModelFile { offset, bytes }
        | WeightSource::External { offset, bytes, .. } => {
            let fits = *bytes == ty.bytes() && offset.checked_add(*bytes).is_some();
            (!fits).then(|| Finding::StoredBytes {
                value: value.to_string(),
                ty: ty.clone(),
                expected: ty.bytes(),
                offset: *offset,
                bytes: *bytes,
            })
        }
        WeightSource::Fill { .. } => None,
        WeightSource::Cast { from, source } => {
            stored(value, &TensorType::new(*from, ty.shape.clone()), source)
        }
    }
}

struct Verifier<'a> {
    graph: &'a Graph,
    is_body: bool,
    findings: Vec<Finding>,
}

impl Verifier<'_> {
    fn run(mut self) -> Vec<Finding> {
        self.ids();
        if !self.findings.is_empty() {
            return self.findings; // without valid ids nothing else can be looked up
        }
        self.definitions();
        self.order();
        self.interface();
        self.names();
        self.stored_values();
        self.dynamic_values();
        self.phases();
        self.carried();
        for id in self.graph.node_ids() {
            let dynamic = self.graph.is_dynamic(id);
            if self.bodies(id) && self.takes_dynamic(id) && self.types(id) && !dynamic {
                self.rule(id);
            }
        }
        self.findings
    }

    fn value_name(&self, id: ValueId) -> String {
        self.graph.value(id).name.clone()
    }

    fn node_name(&self, id: NodeId) -> String {
        self.graph.node(id).name.clone()
    }

    /// Property 1.
    fn ids(&mut self) {
        let g = self.graph;
        let mut check = |place: &dyn Fn() -> String, ids: &[ValueId]| {
            for &id in ids.iter().filter(|id| id.index() >= g.values.len()) {
                self.findings.push(Finding::ValueRange { place: place(), id });
            }
        };
        check(&|| "the list of inputs".to_string(), &g.inputs);
        check(&|| "the list of outputs".to_string(), &g.outputs);
        for c in &g.carried {
            check(&|| "the list of state".to_string(), &[c.state, c.next]);
        }
        for n in &g.nodes {
            check(&|| format!("node `{}` (inputs)", n.name), &n.inputs);
            check(&|| format!("node `{}` (outputs)", n.name), &n.outputs);
        }
        for v in &g.values {
            if let ValueDef::Node { node, .. } = v.def
                && node.index() >= g.nodes.len()
            {
                self.findings.push(Finding::NodeRange { value: v.name.clone(), node });
            }
        }
    }

    /// Property 2.
    fn definitions(&mut self) {
        for id in self.graph.node_ids() {
            let n = self.graph.node(id);
            if n.outputs.is_empty() && !matches!(n.op, Op::Send(_)) {
                self.findings.push(Finding::NoOutputs { node: n.name.clone() });
            }
            for (output, &v) in n.outputs.iter().enumerate() {
                let here = ValueDef::Node { node: id, output: output as u32 };
                if self.graph.value(v).def != here {
                    let value = self.value_name(v);
                    let node = n.name.clone();
                    self.findings.push(Finding::NotDefinedHere { node, output, value });
                }
            }
        }
        for id in self.graph.value_ids() {
            if let ValueDef::Node { node, output } = self.graph.value(id).def
                && self.graph.node(node).outputs.get(output as usize) != Some(&id)
            {
                let (value, node) = (self.value_name(id), self.node_name(node));
                self.findings.push(Finding::NotAnOutput { value, node, output });
            }
        }
    }

    /// Property 3.
    fn order(&mut self) {
        for id in self.graph.node_ids() {
            for &v in &self.graph.node(id).inputs {
                if let ValueDef::Node { node, .. } = self.graph.value(v).def
                    && node >= id
                {
                    let (node, value) = (self.node_name(id), self.value_name(v));
                    self.findings.push(Finding::Order { node, value });
                }
            }
        }
    }

    /// Property 4.
    fn interface(&mut self) {
        let mut times = vec![0; self.graph.values.len()];
        for &v in &self.graph.inputs {
            times[v.index()] += 1;
            if self.graph.value(v).def != ValueDef::Input {
                self.findings.push(Finding::NotAnInput { value: self.value_name(v) });
            }
        }
        for (v, times) in self.graph.values.iter().zip(times) {
            if v.def == ValueDef::Input && times != 1 {
                self.findings.push(Finding::InputListed { value: v.name.clone(), times });
            }
        }
    }

    /// Property 5.
    fn names(&mut self) {
        let mut ids: BTreeMap<&str, ValueId> = BTreeMap::new();
        for second in self.graph.value_ids() {
            let name = self.graph.value(second).name.as_str();
            if name.is_empty() {
                self.findings.push(Finding::NoName { id: second });
            } else if let Some(&first) = ids.get(name) {
                let name = name.to_string();
                self.findings.push(Finding::SameName { name, first, second });
            } else {
                ids.insert(name, second);
            }
        }
    }

    /// Property 6.
    fn stored_values(&mut self) {
        for v in &self.graph.values {
            match &v.def {
                ValueDef::Constant(t) => self.findings.extend(held(&v.name, &v.ty, t)),
                ValueDef::Weight(source) => self.findings.extend(stored(&v.name, &v.ty, source)),
                ValueDef::Input | ValueDef::Accumulator | ValueDef::Node { .. } => {}
            }
        }
    }

    /// Property 11.
    fn phases(&mut self) {
        if self.graph.micro_batches == 0 || self.graph.under_way == 0 {
            self.findings.push(Finding::MicroBatches);
        }
        let pairs = self.graph.nodes.iter().zip(self.graph.nodes.iter().skip(1));
        if let Some((before, node)) = pairs.into_iter().find(|(a, b)| a.phase > b.phase) {
            let (found, after) = (node.phase.name(), before.phase.name());
            self.findings.push(Finding::Phase { node: node.name.clone(), found, after });
        }
    }

    /// Property 12.
    fn carried(&mut self) {
        let mut seen = BTreeSet::new();
        for c in &self.graph.carried {
            let (state, next) = (self.graph.value(c.state), self.graph.value(c.next));
            let name = || state.name.clone();
            match state.def {
                ValueDef::Weight(_) => {}
                ValueDef::Accumulator if self.graph.phase(c.next) < Phase::Update => {}
                _ => self.findings.push(Finding::NotState { value: name() }),
            }
            if state.ty != next.ty || next.extents == Extents::Dynamic {
                let (expected, found) = (state.ty.clone(), next.ty.clone());
                let next = next.name.clone();
                self.findings.push(Finding::CarriedType { state: name(), next, expected, found });
            }
            if self.is_body || !seen.insert(c.state) {
                self.findings.push(Finding::CarriedTwice { state: name() });
            }
        }
        for id in self.graph.value_ids().filter(|id| !seen.contains(id)) {
            if matches!(self.graph.value(id).def, ValueDef::Accumulator) {
                self.findings.push(Finding::NotState { value: self.value_name(id) });
            }
        }
    }

    /// Property 7.
    fn dynamic_values(&mut self) {
        for v in self.graph.values.iter().filter(|v| v.extents == Extents::Dynamic) {
            let is_made = match v.def {
                ValueDef::Node { .. } => true,
                ValueDef::Input => self.is_body,
                _ => false,
            };
            if !v.ty.shape.is_empty() || !is_made {
                self.findings.push(Finding::Dynamic { value: v.name.clone() });
            }
        }
    }

    /// Property 7 for one node.
    fn takes_dynamic(&mut self, id: NodeId) -> bool {
        let n = self.graph.node(id);
        let (node, op) = (|| n.name.clone(), n.op.name());
        let is_dynamic = |v: &&ValueId| self.graph.value(**v).extents == Extents::Dynamic;
        let extents = n.op.extents();
        if extents.is_none()
            && let Some(&v) = n.inputs.iter().find(is_dynamic)
        {
            let value = self.value_name(v);
            self.findings.push(Finding::ReadsDynamic { node: node(), op, value });
            return false;
        }
        let extents = extents.unwrap_or_else(|| vec![Extents::Static; n.outputs.len()]);
        let mut pairs = n.outputs.iter().zip(extents);
        if let Some((&v, _)) = pairs.find(|(v, extents)| self.graph.value(**v).extents != *extents)
        {
            let value = self.value_name(v);
            self.findings.push(Finding::Extents { node: node(), op, value });
            return false;
        }
        true
    }

    /// Property 10; whether it holds for this node.
    fn bodies(&mut self, id: NodeId) -> bool {
        let n = self.graph.node(id);
        let before = self.findings.len();
        let found = n.op.bodies().into_iter().flat_map(verify_body).map(|finding| Finding::Body {
            node: n.name.clone(),
            op: n.op.name(),
            finding: Box::new(finding),
        });
        self.findings.extend(found);
        self.findings.len() == before
    }

    /// Property 8; whether it holds for this node.
    fn types(&mut self, id: NodeId) -> bool {
        let n = self.graph.node(id);
        let (node, op) = (n.name.clone(), n.op.name());
        let consts: Vec<Option<&Tensor>> =
            n.inputs.iter().map(|&v| self.graph.constant_of(v)).collect();
        let inferred = match n.op.infer(&self.graph.input_types(id), &consts) {
            Ok(inferred) => inferred,
            Err(why) => {
                self.findings.push(Finding::Rejected { node, op, why });
                return false;
            }
        };
        if inferred.len() != n.outputs.len() {
            let (expected, found) = (inferred.len(), n.outputs.len());
            self.findings.push(Finding::OutputCount { node, op, expected, found });
            return false;
        }
        let before = self.findings.len();
        for (&v, inferred) in n.outputs.iter().zip(inferred) {
            let declared = self.graph.ty(v);
            if *declared != inferred {
                self.findings.push(Finding::OutputType {
                    node: node.clone(),
                    op,
                    value: self.value_name(v),
                    declared: declared.clone(),
                    inferred,
                });
            }
        }
        self.findings.len() == before
    }

    /// Property 9.
    fn rule(&mut self, id: NodeId) {
        let n = self.graph.node(id);
        let (inputs, outputs) = (self.graph.input_types(id), self.graph.output_types(id));
        let faults = check_rule(&n.op.rule(&inputs, &outputs), &inputs, &outputs);
        self.findings.extend(faults.into_iter().map(|fault| Finding::Rule {
            node: n.name.clone(),
            op: n.op.name(),
            fault,
        }));
    }
}

/// The first fault of the graphs that an op holds.
pub(crate) fn body_fault(op: &Op) -> Option<Finding> {
    op.bodies().into_iter().flat_map(verify_body).next()
}
