//! The graph being rewritten.

use super::pattern::Interior;
use super::rules::{Raise, Rule};
use planc_ir::finish::{prune, unique_names};
use planc_ir::graph::{Extents, Graph, NodeId, TensorType, ValueDef, ValueId};
use planc_ir::ops::Op;
use planc_ir::ops::decode::MAX_FOLDED_BYTES;
use planc_ir::ops::map::Map;
use planc_ir::ops::reshape::Reshape;
use planc_ir::ops::transpose::Transpose;
use planc_ir::scalar::ScalarFn;
use planc_ir::{DType, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// One idiom that became an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raising {
    /// The rule.
    pub rule: &'static str,
    /// The node that stands for the idiom now, named as the last of the nodes that it replaces.
    pub node: String,
    /// The nodes that it replaces.
    pub from: Vec<String>,
}

/// A graph and what was raised in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Raised {
    /// The graph.
    pub graph: Graph,
    /// In the order of the nodes.
    pub raisings: Vec<Raising>,
}

impl Raised {
    /// How often each rule was applied.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        self.raisings.iter().for_each(|r| *counts.entry(r.rule).or_default() += 1);
        counts
    }
}

/// The copy of a graph, as far as it has come.
#[derive(Debug)]
pub struct Rewriter {
    /// The copy. What rules replaced is still in it.
    pub graph: Graph,
    /// For each value of the original its counterpart.
    counterpart: Vec<Option<ValueId>>,
    /// For each value of the copy, how many nodes of the original read it, outputs of the graph
    /// counting as one.
    readers: Vec<usize>,
    /// For each value of the copy the number that all its elements are known to be.
    uniform: Vec<Option<f64>>,
    /// What was raised, by the value of the copy that stands for it.
    raisings: BTreeMap<ValueId, Raising>,
    /// How many nodes of the original read each of its values.
    original_readers: Vec<usize>,
    /// Nodes that rules added beside the ops that they raised, by first operand: layers share them.
    helpers: BTreeMap<ValueId, Vec<NodeId>>,
    /// Constants that were looked at as triangles.
    pub triangles: BTreeMap<ValueId, Option<Triangle>>,
}

/// A matrix, dimensions of 1 in front, that holds one number on and below a diagonal and another above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Triangle {
    /// Row `i` holds `inside` at `0 ..= i + offset`.
    pub offset: i64,
    /// The number on and below the diagonal.
    pub inside: f64,
    /// The number above it.
    pub outside: f64,
}

impl Rewriter {
    /// A copy that holds the graph's inputs, weights and constants.
    pub fn new(graph: &Graph) -> Self {
        let mut original_readers: Vec<usize> = graph.consumers().iter().map(Vec::len).collect();
        for v in &graph.outputs {
            original_readers[v.index()] += 1;
        }
        let mut new = Self {
            graph: Graph::new(graph.name.clone()),
            counterpart: vec![None; graph.values.len()],
            readers: Vec::new(),
            uniform: Vec::new(),
            raisings: BTreeMap::new(),
            original_readers,
            helpers: BTreeMap::new(),
            triangles: BTreeMap::new(),
        };
        let defined = |v: &ValueId| !matches!(graph.value(*v).def, ValueDef::Node { .. });
        // Inputs first, in the order of the interface.
        let others = graph.value_ids().filter(defined).filter(|v| !graph.inputs.contains(v));
        for v in graph.inputs.iter().copied().chain(others) {
            let value = graph.value(v);
            let copy = new.graph.add_value(value.name.clone(), value.ty.clone(), value.def.clone());
            new.graph.values[copy.index()].extents = value.extents;
            let readers = new.original_readers[v.index()];
            new.known(copy, readers);
            new.counterpart[v.index()] = Some(copy);
        }
        new
    }

    /// Copies a node.
    pub fn copy(&mut self, graph: &Graph, id: NodeId) {
        let node = graph.node(id);
        let inputs: Vec<ValueId> =
            node.inputs.iter().filter_map(|v| self.counterpart[v.index()]).collect();
        let copy = NodeId(self.graph.nodes.len() as u32);
        let mut outputs = Vec::new();
        for (i, &v) in node.outputs.iter().enumerate() {
            let value = graph.value(v);
            let def = ValueDef::Node { node: copy, output: i as u32 };
            let new = self.graph.add_value(value.name.clone(), value.ty.clone(), def);
            self.graph.values[new.index()].extents = value.extents;
            self.known(new, self.original_readers[v.index()]);
            self.counterpart[v.index()] = Some(new);
            outputs.push(new);
        }
        self.graph.nodes.push(planc_ir::Node { inputs, outputs, ..node.clone() });
    }

    /// Tries rules on a value of the original that was just copied.
    pub fn apply(&mut self, rules: &[Rule], original: ValueId) {
        let Some(root) = self.counterpart[original.index()] else { return };
        for rule in rules {
            if let Some(raise) = (rule.find)(self, root)
                && let Some(new) = self.replace(rule, root, raise)
            {
                self.counterpart[original.index()] = Some(new);
                return;
            }
        }
    }

    /// Puts an op in the place of a value, if it has the same type.
    fn replace(&mut self, rule: &Rule, root: ValueId, raise: Raise) -> Option<ValueId> {
        let new = self.add(root, raise.op, &raise.inputs)?;
        let old = self.graph.value(root).clone();
        if self.graph.value(new).ty != old.ty {
            return None;
        }
        let node = self.node(root)?;
        let (name, scope) =
            (self.graph.node(node).name.clone(), self.graph.node(node).scope.clone());
        // The op reads each operand once, however many of the nodes that it replaces did.
        let swallowed: BTreeSet<NodeId> =
            raise.interior.0.iter().chain([&root]).filter_map(|&v| self.node(v)).collect();
        for v in raise.inputs.iter().copied().collect::<BTreeSet<_>>() {
            let reads = |id: &&NodeId| self.graph.node(**id).inputs.contains(&v);
            let inside = swallowed.iter().filter(reads).count();
            self.readers[v.index()] =
                self.readers[v.index()].saturating_sub(inside.saturating_sub(1));
        }
        let mut from: Vec<(NodeId, String)> = Vec::new();
        for &v in raise.interior.0.iter().chain([&root]) {
            match self.raisings.remove(&v) {
                Some(earlier) => {
                    from.extend(
                        self.node(v)
                            .into_iter()
                            .flat_map(|id| earlier.from.iter().map(move |name| (id, name.clone()))),
                    );
                }
                None => from.extend(self.node(v).map(|id| (id, self.graph.node(id).name.clone()))),
            }
        }
        from.sort_by_key(|(id, _)| *id);
        let from = from.into_iter().map(|(_, name)| name).collect();
        self.raisings.insert(new, Raising { rule: rule.name, node: name.clone(), from });
        let replaced = self.node(new)?;
        self.graph.values[new.index()].name = old.name;
        self.readers[new.index()] = self.readers[root.index()];
        let node = &mut self.graph.nodes[replaced.index()];
        (node.name, node.scope) = (name, scope);
        Some(new)
    }

    /// The finished graph: what nothing reads any more is dropped.
    pub fn finish(mut self, original: &Graph) -> Raised {
        let outputs = original.outputs.iter();
        self.graph.outputs = outputs.filter_map(|v| self.counterpart[v.index()]).collect();
        // A raised value may itself have been replaced without being part of what replaced it.
        let mut read = vec![false; self.graph.values.len()];
        self.graph.outputs.iter().for_each(|v| read[v.index()] = true);
        for node in self.graph.nodes.iter().rev() {
            if node.outputs.iter().any(|v| read[v.index()]) {
                node.inputs.iter().for_each(|v| read[v.index()] = true);
            }
        }
        let raisings = std::mem::take(&mut self.raisings);
        let raisings =
            raisings.into_iter().filter(|(v, _)| read[v.index()]).map(|(_, r)| r).collect();
        let mut graph = prune(self.graph);
        unique_names(&mut graph);
        Raised { graph, raisings }
    }

    /// The node that defines a value.
    pub fn node(&self, v: ValueId) -> Option<NodeId> {
        match self.graph.value(v).def {
            ValueDef::Node { node, .. } => Some(node),
            _ => None,
        }
    }

    /// How many nodes of the original read a value.
    pub fn readers(&self, v: ValueId) -> usize {
        self.readers[v.index()]
    }

    /// A value's type.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        self.graph.ty(v)
    }

    /// A value's extents.
    pub fn shape(&self, v: ValueId) -> &[u64] {
        &self.graph.ty(v).shape
    }

    /// Whether a value's extents are known.
    pub fn is_static(&self, v: ValueId) -> bool {
        self.graph.value(v).extents == Extents::Static
    }

    /// The op that gives a value, if it gives nothing else, and its operands.
    pub fn op(&self, v: ValueId) -> Option<(&Op, &[ValueId])> {
        let node = self.graph.node(self.node(v)?);
        (node.outputs.len() == 1).then_some((&node.op, &node.inputs[..]))
    }

    /// The number that all elements of a value are known to be.
    pub fn uniform(&self, v: ValueId) -> Option<f64> {
        self.uniform[v.index()]
    }

    /// Notes what is known of a value that was just added.
    fn known(&mut self, v: ValueId, readers: usize) {
        let uniform = self.graph.constant_of(v).and_then(|tensor| {
            let first = (!tensor.is_empty()).then(|| tensor.f64_at(0))?;
            let same = |i| tensor.f64_at(i).to_bits() == first.to_bits();
            (1..tensor.len()).all(same).then_some(first)
        });
        self.readers.push(readers);
        self.uniform.push(uniform);
    }

    /// The result of a node beside `root`: a constant if its operands are constants, that of an earlier
    /// such node, or of a new one.
    pub fn push(
        &mut self,
        root: ValueId,
        op: impl Into<Op>,
        inputs: &[ValueId],
    ) -> Option<ValueId> {
        let op = op.into();
        if !inputs.iter().all(|&v| self.is_static(v)) {
            return None;
        }
        let known: Option<Vec<&Tensor>> =
            inputs.iter().map(|&v| self.graph.constant_of(v)).collect();
        let small = inputs.iter().all(|&v| self.ty(v).bytes() <= MAX_FOLDED_BYTES);
        if let Some(mut results) = known.filter(|_| small).and_then(|known| op.eval(&known).ok())
            && let Some(result) = results.pop()
            && results.is_empty()
            && result.ty().bytes() <= MAX_FOLDED_BYTES
        {
            return Some(self.constant(root, result));
        }
        let first = *inputs.first()?;
        let same = |id: &&NodeId| {
            let node = self.graph.node(**id);
            node.op == op && node.inputs == inputs
        };
        if let Some(&found) = self.helpers.get(&first).and_then(|ids| ids.iter().find(same)) {
            return self.graph.node(found).outputs.first().copied();
        }
        let new = self.add(root, op, inputs)?;
        let id = self.node(new)?;
        self.helpers.entry(first).or_default().push(id);
        Some(new)
    }

    /// Adds a node under a name made from that of `root`.
    fn add(&mut self, root: ValueId, op: Op, inputs: &[ValueId]) -> Option<ValueId> {
        let node = self.node(root)?;
        let scope = self.graph.node(node).scope.clone();
        let name = format!("{}:{}", self.graph.node(node).name, op.name());
        let value = format!("{}:{}", self.graph.value(root).name, op.name());
        let outputs = self.graph.push(name, op, inputs, &[&value]).ok()?;
        if let Some(node) = self.graph.nodes.last_mut() {
            node.scope = scope;
        }
        for &v in &outputs {
            self.known(v, 1);
        }
        outputs.first().copied()
    }

    /// Adds a constant beside `root`.
    pub fn constant(&mut self, root: ValueId, tensor: Tensor) -> ValueId {
        let name = format!("{}:constant", self.graph.value(root).name);
        let v = self.graph.constant(name, tensor);
        self.known(v, 1);
        v
    }

    /// Adds a constant all of whose elements are `x`; not of a size that nothing should hold.
    pub fn filled(&mut self, root: ValueId, ty: TensorType, x: f64) -> Option<ValueId> {
        let tensor = (ty.bytes() <= MAX_FOLDED_BYTES).then(|| Tensor::from_f64(ty, |_| x))?;
        Some(self.constant(root, tensor.ok()?))
    }

    /// Brings a value to a shape of as many elements.
    pub fn reshape(&mut self, root: ValueId, v: ValueId, shape: &[u64]) -> Option<ValueId> {
        if self.shape(v) == shape {
            return Some(v);
        }
        self.push(root, Reshape { shape: shape.to_vec() }, &[v])
    }

    /// Permutes a value's dimensions.
    pub fn transpose(&mut self, root: ValueId, v: ValueId, perm: Vec<usize>) -> Option<ValueId> {
        if perm.is_sorted() {
            return Some(v);
        }
        self.push(root, Transpose { perm }, &[v])
    }

    /// Adds an elementwise node.
    pub fn map(&mut self, root: ValueId, f: ScalarFn, inputs: &[ValueId]) -> Option<ValueId> {
        self.push(root, Map { f }, inputs)
    }

    /// A value in another element type.
    pub fn cast(&mut self, root: ValueId, v: ValueId, dtype: DType) -> Option<ValueId> {
        if self.ty(v).dtype == dtype {
            return Some(v);
        }
        self.map(root, ScalarFn::Cast(dtype), &[v])
    }

    /// What a rule found, if nothing outside reads what it swallows.
    pub fn closed(&self, root: ValueId, interior: Interior) -> Option<Interior> {
        let mut interior = interior.0;
        interior.retain(|&v| v != root);
        interior.sort_unstable();
        interior.dedup();
        let nodes: Option<BTreeSet<NodeId>> =
            interior.iter().chain([&root]).map(|&v| self.node(v)).collect();
        let mut inside: BTreeMap<ValueId, usize> = BTreeMap::new();
        for id in nodes? {
            let mut operands = self.graph.node(id).inputs.clone();
            operands.sort_unstable();
            operands.dedup();
            for x in operands {
                *inside.entry(x).or_default() += 1;
            }
        }
        let all_inside = |v: &ValueId| inside.get(v).copied().unwrap_or(0) >= self.readers(*v);
        interior.iter().all(all_inside).then_some(Interior(interior))
    }
}
