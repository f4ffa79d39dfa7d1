//! Kinds of ops, as a person speaks of a model: attentions, norms, MLPs, embeddings, linear layers.

use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::scalar::{Gate, ScalarFn as F};
use planc_ir::{Graph, Node, ValueDef};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Ops of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Family {
    /// What they are.
    pub name: &'static str,
    /// How many there are.
    pub count: u64,
    /// How many of each form.
    pub forms: BTreeMap<String, u64>,
}

/// The families in the order in which they are told.
const ORDER: [&str; 12] = [
    "attention",
    "rotary embedding",
    "norm",
    "mlp",
    "mixture of experts",
    "embedding",
    "linear",
    "matrix product",
    "convolution",
    "recurrence",
    "softmax",
    "control flow",
];

/// The families that occur in a graph. Ops that only move or combine elements belong to none.
pub fn families(graph: &Graph) -> Vec<Family> {
    let mut found: BTreeMap<&'static str, BTreeMap<String, u64>> = BTreeMap::new();
    let members = graph.nodes.iter().filter_map(|node| family(graph, node));
    for (name, form) in members.chain(mlps(graph)) {
        *found.entry(name).or_default().entry(form).or_insert(0) += 1;
    }
    let family = |name| {
        let forms = found.remove(name)?;
        Some(Family { name, count: forms.values().sum(), forms })
    };
    ORDER.into_iter().filter_map(family).collect()
}

/// The family of a node by itself, and its form.
fn family(graph: &Graph, node: &Node) -> Option<(&'static str, String)> {
    let is_weight = |v: &ValueId| is_parameter(graph, *v);
    Some(match &node.op {
        Op::Attention(a) => {
            let grouped =
                match (&graph.ty(node.inputs[0]).shape[..], &graph.ty(node.inputs[1]).shape[..]) {
                    ([_, heads, ..], [_, kv_heads, ..]) if heads != kv_heads => "grouped-query ",
                    _ => "",
                };
            let seen = match (a.causal, node.inputs.len()) {
                (Some(_), 4) => "causal and masked",
                (Some(_), _) => "causal",
                (None, 4) => "masked",
                (None, _) => "full",
            };
            ("attention", format!("{grouped}{seen}"))
        }
        Op::MixtureOfExperts(m) => {
            let choices = graph.ty(node.inputs[1]).shape.last().copied().unwrap_or(0);
            ("mixture of experts", format!("{choices} of {} experts", m.experts))
        }
        Op::RotaryEmbedding(_) => ("rotary embedding", "cosine and sine".to_string()),
        Op::Normalize(n) => ("norm", if n.rms { "rms" } else { "layer" }.to_string()),
        Op::GroupNorm(_) => ("norm", "group".to_string()),
        Op::Gather(g) if g.axis == 0 && node.inputs.first().is_some_and(is_weight) => {
            let rank = graph.ty(node.inputs[0]).rank();
            if rank != 2 {
                return None;
            }
            ("embedding", "table".to_string())
        }
        Op::MatMul(_) if node.inputs.iter().any(is_weight) => ("linear", "weight".to_string()),
        Op::MatMul(_) | Op::Einsum(_) => ("matrix product", node.op.name().to_string()),
        Op::Conv(_) => ("convolution", "forward".to_string()),
        Op::ConvTranspose(_) => ("convolution", "transposed".to_string()),
        Op::Recurrence(_) => ("recurrence", "cell".to_string()),
        Op::Softmax(_) => ("softmax", "alone".to_string()),
        Op::If(_) | Op::Loop(_) => ("control flow", node.op.name().to_string()),
        _ => return None,
    })
}

/// Two linear layers with an activation between them, by activation.
fn mlps(graph: &Graph) -> impl Iterator<Item = (&'static str, String)> {
    let readers = graph.consumers();
    let is_mlp = move |node: &&Node| {
        activation(&node.op).is_some()
            && node.inputs.iter().all(|&v| from_linear(graph, v))
            && node.outputs.iter().all(|&v| into_linear(graph, &readers, v))
    };
    let form = |node: &Node| activation(&node.op).map(|name| ("mlp", name));
    graph.nodes.iter().filter(is_mlp).filter_map(form)
}

/// The name of an activation.
fn activation(op: &Op) -> Option<String> {
    let Op::Map(map) = op else { return None };
    let name = match map.f {
        F::Relu => "ReLU",
        F::Gelu | F::GeluTanh => "GELU",
        F::Swish { .. } => "SiLU",
        F::Tanh => "tanh",
        F::Sigmoid => "sigmoid",
        F::Gated(Gate::Silu) => "gated SiLU",
        F::Gated(Gate::Gelu | Gate::GeluTanh) => "gated GELU",
        _ => return None,
    };
    Some(name.to_string())
}

/// Whether a value is a linear layer's, its bias added or not.
fn from_linear(graph: &Graph, mut v: ValueId) -> bool {
    for _ in 0..4 {
        let ValueDef::Node { node, .. } = graph.value(v).def else { return false };
        let node = graph.node(node);
        v = match &node.op {
            Op::MatMul(_) => return node.inputs.iter().any(|&w| is_parameter(graph, w)),
            Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) => node.inputs[0],
            Op::Map(map) if matches!(map.f, F::Cast(_)) => node.inputs[0],
            Op::Map(map) if map.f == F::Add => {
                match node.inputs.iter().find(|&&x| !is_parameter(graph, x)) {
                    Some(&x) => x,
                    None => return false,
                }
            }
            _ => return false,
        };
    }
    false
}

/// Whether a linear layer reads a value.
fn into_linear(graph: &Graph, readers: &[Vec<planc_ir::NodeId>], v: ValueId) -> bool {
    let (mut open, mut seen) = (vec![v], BTreeSet::new());
    while let Some(v) = open.pop() {
        if !seen.insert(v) || seen.len() > 8 {
            continue;
        }
        for &id in &readers[v.index()] {
            let node = graph.node(id);
            match &node.op {
                Op::MatMul(_) if node.inputs.iter().any(|&w| is_parameter(graph, w)) => {
                    return true;
                }
                Op::Reshape(_) | Op::Transpose(_) => open.extend(&node.outputs),
                Op::Map(map) if matches!(map.f, F::Cast(_)) => open.extend(&node.outputs),
                _ => {}
            }
        }
    }
    false
}

/// Whether a value is a weight, or a weight brought into another order or type.
fn is_parameter(graph: &Graph, mut v: ValueId) -> bool {
    loop {
        match graph.value(v).def {
            ValueDef::Weight(_) => return true,
            ValueDef::Node { node, .. } => match &graph.node(node).op {
                Op::Transpose(_) | Op::Reshape(_) | Op::Slice(_) => v = graph.node(node).inputs[0],
                Op::Map(map) if matches!(map.f, F::Cast(_) | F::Identity) => {
                    v = graph.node(node).inputs[0];
                }
                _ => return false,
            },
            ValueDef::Constant(_) => return graph.ty(v).rank() > 0,
            ValueDef::Input | ValueDef::Accumulator => return false,
        }
    }
}
