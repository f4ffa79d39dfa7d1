//! Raising: what exporters took apart becomes one op again.
//!
//! Attention, norms, gates and rotary embedding reach the importer as matrix products and elementwise
//! ops. The planner's best choices depend on seeing them for what they are, so [`raise`] finds them and
//! puts one op in the place of many. It is the one place for rewrites.
//!
//! The graph is copied node by node, in order. After each node the [`rules`] look backwards from its
//! result; a rule that recognises an idiom says which op gives the same, and that op's result stands for
//! the node's from there on. Small rules build on each other: a layer norm's scale joins the norm that
//! was raised before it. A rule may only swallow values that nothing else reads.
//!
//! - [`rewriter`]: the copy, what is known of values, and the report.
//! - [`pattern`]: walking backwards from a value.
//! - [`layout`]: values that hold the same elements in another order.
//! - [`rules`]: the idioms, one file a theme.
#![allow(clippy::float_cmp)] // masks hold exact numbers, and neutral ones are exact

mod layout;
mod pattern;
mod rewriter;
mod rules;

pub use rewriter::{Raised, Raising};

use planc_ir::Graph;
use rewriter::Rewriter;

/// The graph with idioms as single ops, and what was raised. Inputs, outputs, weights and names stay.
pub fn raise(graph: &Graph) -> Raised {
    let mut rewriter = Rewriter::new(graph);
    for id in graph.node_ids() {
        rewriter.copy(graph, id);
        if let [root] = graph.node(id).outputs[..]
            && !graph.is_dynamic(id)
        {
            rewriter.apply(rules::ALL, root);
        }
    }
    rewriter.finish(graph)
}
