//! What stages hand on to each other, as ops of their graphs.

use planc_ir::finish::prune;
use planc_ir::interp::{InterpError, evaluate};
use planc_ir::ops::{Op, receive::Receive, send::Send};
use planc_ir::text::{parse, print};
use planc_ir::verify::{Finding, verify};
use planc_ir::weights::InMemory;
use planc_ir::{DType, Graph, TensorType};

/// Receives a value and sends it on.
fn relay() -> Graph {
    let mut g = Graph::new("relay");
    let ty = TensorType::new(DType::F32, [4, 6]);
    let x =
        g.push("in", Receive { channel: 0, ty }.into(), &[], &["x"]).expect("a value is received");
    g.push("out", Send { channel: 7 }.into(), &x, &[]).expect("it is sent");
    g
}

#[test]
fn graphs_hold_print_and_keep_them() {
    let g = relay();
    assert_eq!(verify(&g), []);
    let text = print(&g);
    assert!(text.contains("  Send(%0) {\"channel\":7} @ \"out\"\n"), "{text}");
    assert_eq!(parse(&text), Ok(g.clone()));
    assert_eq!(prune(g.clone()), g, "a send is needed elsewhere");
    for op in g.nodes.iter().map(|n| &n.op) {
        let json = serde_json::to_string(op).unwrap();
        assert_eq!(serde_json::from_str::<Op>(&json).unwrap(), *op);
    }
}

#[test]
fn only_sends_are_without_results() {
    let mut g = relay();
    g.nodes[1].op = Receive { channel: 0, ty: TensorType::new(DType::F32, []) }.into();
    assert!(verify(&g).iter().any(|f| matches!(f, Finding::NoOutputs { .. })));
}

#[test]
fn every_dimension_is_parallel_and_nothing_partial_passes() {
    let g = relay();
    for id in g.node_ids() {
        let rule = g.rule(id);
        let sizes: Vec<u64> = rule.factors.iter().map(|f| f.size).collect();
        assert_eq!(sizes, [4, 6]);
        assert_eq!(rule.axis_uses().len(), 3, "replicate, or split a dimension");
        assert!(rule.linear.is_empty());
    }
}

#[test]
fn a_stage_alone_has_no_value() {
    let found = evaluate(&relay(), &[], &InMemory);
    assert!(matches!(found, Err(InterpError::Node { .. })), "{found:?}");
}
