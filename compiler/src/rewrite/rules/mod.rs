//! The rules, tried on every node in this order.

mod activation;
mod attention;
mod experts;
mod group_norm;
mod mask;
mod norm;
mod rotary;

use super::pattern::Interior;
use super::rewriter::Rewriter;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;

/// A rule: how an idiom is recognised, and what it is.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name in reports.
    pub name: &'static str,
    /// Looks backwards from a value. It may add nodes that make operands; those that are not used in
    /// the end are dropped.
    pub find: fn(&mut Rewriter, ValueId) -> Option<Raise>,
}

/// What a value is, in one op.
#[derive(Debug)]
pub struct Raise {
    /// The op.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<ValueId>,
    /// What it replaces besides the value itself.
    pub interior: Interior,
}

impl Raise {
    /// From its parts.
    pub fn new(op: impl Into<Op>, inputs: impl Into<Vec<ValueId>>, interior: Interior) -> Self {
        Self { op: op.into(), inputs: inputs.into(), interior }
    }
}

/// All rules.
pub const ALL: &[Rule] = &[
    Rule { name: "gelu", find: activation::gelu },
    Rule { name: "gelu (tanh)", find: activation::gelu_tanh },
    Rule { name: "swish", find: activation::swish },
    Rule { name: "gated activation", find: activation::gated },
    Rule { name: "layer norm", find: norm::layer },
    Rule { name: "rms norm", find: norm::rms },
    Rule { name: "layer norm", find: norm::scaled_layer },
    Rule { name: "rms norm", find: norm::scaled_rms },
    Rule { name: "layer norm", find: norm::reshaped_layer },
    Rule { name: "layer norm", find: norm::biased_layer },
    Rule { name: "layer norm", find: norm::narrow_layer },
    Rule { name: "rms norm", find: norm::narrow_rms },
    Rule { name: "group norm", find: group_norm::of_groups },
    Rule { name: "group norm", find: group_norm::scaled },
    Rule { name: "group norm", find: group_norm::biased },
    Rule { name: "rotary embedding", find: rotary::halves },
    Rule { name: "rotary embedding", find: rotary::neighbours },
    Rule { name: "attention", find: attention::attention },
    Rule { name: "attention", find: attention::refined },
    Rule { name: "mixture of experts", find: experts::batched },
    Rule { name: "mixture of experts", find: experts::dense },
    Rule { name: "mixture of experts", find: experts::dispatched },
    Rule { name: "mixture of experts", find: experts::grouped },
    Rule { name: "mixture of experts", find: experts::masked },
];
