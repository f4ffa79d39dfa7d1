//! What a model is: its size, its layers, what planc recognised in it, and what it cannot split.

pub mod assume;
mod families;
mod layers;
mod memory;
mod report;

pub use families::Family;
pub use layers::Layers;
pub use report::report;

use crate::rewrite::Raised;
use planc_ir::onnx::Model;
use planc_ir::{Graph, ValueDef};
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that `planc inspect` tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// What wrote the file, with its version.
    pub producer: String,
    /// Version of ONNX's own operators.
    pub opset: i64,
    /// Version of the file format.
    pub ir_version: i64,
    /// Values of the symbolic dimensions.
    pub symbols: BTreeMap<String, u64>,
    /// Those that follow from the others, as expressions.
    pub relations: BTreeMap<String, String>,
    /// Those that nobody gave, so that sizes were assumed.
    pub assumed: Vec<String>,
    /// Nodes after import: functions inlined, shape arithmetic folded.
    pub imported_nodes: u64,
    /// Nodes after raising.
    pub nodes: u64,
    /// Elements of floating-point and 8-bit weights.
    pub parameters: u64,
    /// Bytes of weights by element type, as the graph uses them.
    pub weight_bytes: BTreeMap<String, u64>,
    /// Floating-point operations of matrix products as the file writes them, by op.
    pub matrix_flops: BTreeMap<String, f64>,
    /// Bytes of all results of nodes together.
    pub activation_bytes: u64,
    /// The most that is live at once in one pass, node by node.
    pub peak_activation_bytes: u64,
    /// Distinct blocks and how often they repeat, in model order; the rest is one entry without repeats.
    pub layers: Vec<Layers>,
    /// Kinds of ops.
    pub families: Vec<Family>,
    /// What was raised: how often each rule applied.
    pub raised: BTreeMap<String, u64>,
    /// What cannot be split.
    pub opaque: Vec<Opaque>,
}

/// Nodes that cannot be split, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Opaque {
    /// The op.
    pub op: String,
    /// Why.
    pub why: String,
    /// The nodes.
    pub nodes: Vec<String>,
}

/// Inspects a model; `raised` is its graph after raising.
pub fn inspect(model: &Model, raised: &Raised) -> Inspection {
    let relations = model.relations.iter().map(|(n, r)| (n.clone(), r.expression.clone()));
    let applied = raised.counts().into_iter().map(|(rule, n)| (rule.to_string(), n as u64));
    let applied = applied.collect();
    let raised = &raised.graph;
    Inspection {
        producer: model.producer.clone(),
        opset: model.opset,
        ir_version: model.ir_version,
        symbols: model.bindings.clone(),
        relations: relations.collect(),
        assumed: Vec::new(),
        imported_nodes: model.graph.nodes.len() as u64,
        nodes: raised.nodes.len() as u64,
        parameters: model.parameters,
        weight_bytes: weight_bytes(&model.graph),
        matrix_flops: matrix_flops(&model.graph),
        activation_bytes: memory::total_bytes(raised),
        peak_activation_bytes: memory::peak_bytes(raised),
        layers: layers::layers(raised),
        families: families::families(raised),
        raised: applied,
        opaque: opaque(raised),
    }
}

fn weight_bytes(graph: &Graph) -> BTreeMap<String, u64> {
    let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
    for value in graph.values.iter().filter(|v| matches!(v.def, ValueDef::Weight(_))) {
        let sum = bytes.entry(value.ty.dtype.to_string()).or_default();
        *sum = sum.saturating_add(value.ty.bytes());
    }
    bytes
}

/// Floating-point operations of matrix products, convolutions and attentions, by op.
fn matrix_flops(graph: &Graph) -> BTreeMap<String, f64> {
    let mut flops = BTreeMap::new();
    for id in graph.node_ids().filter(|&id| !graph.is_dynamic(id)) {
        let op = &graph.node(id).op;
        let work = op.work(&graph.input_types(id), &graph.output_types(id));
        if work.kind.is_matrix() {
            *flops.entry(op.name().to_string()).or_insert(0.0) += work.flops;
        }
    }
    flops
}

fn opaque(graph: &Graph) -> Vec<Opaque> {
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for id in graph.node_ids() {
        if let Some(why) = graph.rule(id).opaque {
            let node = graph.node(id);
            let key = (node.op.name().to_string(), why);
            found.entry(key).or_default().push(node.name.clone());
        }
    }
    found.into_iter().map(|((op, why), nodes)| Opaque { op, why, nodes }).collect()
}
