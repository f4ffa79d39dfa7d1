//! Model-local functions.

use crate::builder::{body, graph, import, initializer, int, model, node, opset, refused, value};
use crate::builder::{text, with};
use crate::vector;
use planc_ir::interp::evaluate;
use planc_ir::onnx::wire::{AttributeProto, FunctionProto, ModelProto, NodeProto};
use planc_ir::weights::InMemory;
use planc_ir::{DType, Tensor};
use std::time::{Duration, Instant};

fn call(name: &str, inputs: &str, outputs: &str) -> NodeProto {
    NodeProto { domain: text("local"), ..node(name, inputs, outputs) }
}

fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        name: text(name),
        domain: text("local"),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: outputs.iter().map(ToString::to_string).collect(),
        node: nodes,
        opset_import: vec![opset("", 17), opset("local", 1)],
        ..FunctionProto::default()
    }
}

fn with_functions(nodes: Vec<NodeProto>, functions: Vec<FunctionProto>) -> ModelProto {
    let mut m = model(graph(vec![value("x", DType::F32, "2")], vec![], nodes, "y"));
    m.opset_import.push(opset("local", 1));
    m.functions = functions;
    m
}

fn run(m: &ModelProto) -> Vec<Tensor> {
    let g = import(m, &[]).unwrap().graph;
    evaluate(&g, &[vector(&[1.0, -2.0])], &InMemory).unwrap()
}

#[test]
fn calls_are_inlined_with_their_own_inner_values() {
    let square = function(
        "Square",
        &["a"],
        &["b"],
        vec![node("Mul", "a a", "t"), node("Identity", "t", "b")],
    );
    let fourth = function(
        "Fourth",
        &["a"],
        &["b"],
        vec![call("Square", "a", "t"), call("Square", "t", "b")],
    );
    let m = with_functions(
        vec![call("Fourth", "x", "t"), node("Add", "t x", "y")],
        vec![fourth, square],
    );
    assert_eq!(run(&m), [vector(&[2.0, 14.0])]);
}

#[test]
fn attributes_are_passed_or_take_their_default() {
    let reference = AttributeProto {
        name: text("axis"),
        ref_attr_name: text("dim"),
        r#type: Some(2),
        ..AttributeProto::default()
    };
    let join = FunctionProto {
        attribute_proto: vec![int("dim", 0)],
        ..function("Join", &["a"], &["b"], vec![with(node("Concat", "a a", "b"), vec![reference])])
    };
    let m = with_functions(vec![call("Join", "x", "y")], vec![join.clone()]);
    assert_eq!(run(&m), [vector(&[1.0, -2.0, 1.0, -2.0])]);
    let e = refused(
        &with_functions(vec![with(call("Join", "x", "y"), vec![int("dim", 1)])], vec![join]),
        &[],
    );
    assert!(e.contains("`Join_y/Concat_b`") && e.contains("axis 1"), "{e}");
}

#[test]
fn bodies_inside_functions_read_the_functions_values() {
    let negate = graph(vec![], vec![], vec![node("Neg", "t", "r")], "r");
    let keep = graph(vec![], vec![], vec![node("Identity", "a", "r")], "r");
    let known = initializer("", &Tensor::scalar(true));
    let nodes = vec![
        with(node("Constant", "", "c"), vec![crate::builder::tensor("value", known)]),
        node("Mul", "a a", "t"),
        with(node("If", "c", "b"), vec![body("then_branch", negate), body("else_branch", keep)]),
    ];
    let f = function("F", &["a"], &["b"], nodes);
    assert_eq!(run(&with_functions(vec![call("F", "x", "y")], vec![f])), [vector(&[-1.0, -4.0])]);
}

#[test]
fn a_function_may_return_its_input() {
    let f = function("Same", &["a"], &["a"], vec![]);
    let m = with_functions(vec![call("Same", "x", "t"), node("Add", "t t", "y")], vec![f]);
    assert_eq!(run(&m), [vector(&[2.0, -4.0])]);
}

#[test]
fn recursion_and_explosion_are_refused_at_once() {
    let calls = |to: &str| vec![call(to, "a", "t"), call(to, "t", "b")];
    let f = |name: &str, to: &str| function(name, &["a"], &["b"], calls(to));
    let m = with_functions(vec![call("A", "x", "y")], vec![f("A", "B"), f("B", "C"), f("C", "B")]);
    let e = refused(&m, &[]);
    assert!(e.contains("calls itself: B -> C -> B"), "{e}");

    let mut bomb: Vec<FunctionProto> =
        (0..60).map(|i| f(&format!("F{i}"), &format!("F{}", i + 1))).collect();
    bomb.push(function("F60", &["a"], &["b"], vec![node("Neg", "a", "b")]));
    let start = Instant::now();
    let e = refused(&with_functions(vec![call("F0", "x", "y")], bomb), &[]);
    assert!(e.contains("inlining") && start.elapsed() < Duration::from_secs(5), "{e}");
}
