//! If and Loop.

use crate::builder::{body, graph, import, initializer, model, node, refused, value, with};
use crate::vector;
use planc_ir::interp::evaluate;
use planc_ir::onnx::wire::{GraphProto, ModelProto, NodeProto, TensorProto};
use planc_ir::ops::Op;
use planc_ir::weights::InMemory;
use planc_ir::{DType, Extents, Graph, Tensor};

fn branch(node: NodeProto) -> GraphProto {
    let output = node.output[0].clone();
    graph(vec![], vec![], vec![node], &output)
}

fn if_node(then_branch: GraphProto, else_branch: GraphProto) -> NodeProto {
    let bodies = vec![body("then_branch", then_branch), body("else_branch", else_branch)];
    with(node("If", "c", "y"), bodies)
}

fn with_condition(node: NodeProto, known: Option<bool>) -> ModelProto {
    let x = value("x", DType::F32, "2 3");
    match known {
        None => model(graph(vec![x, value("c", DType::Bool, "")], vec![], vec![node], "y")),
        Some(c) => {
            let c = initializer("c", &Tensor::scalar(c));
            model(graph(vec![x], vec![c], vec![node], "y"))
        }
    }
}

fn matrix() -> Tensor {
    vector(&[1.0, -2.0, 3.0, -4.0, 5.0, -6.0]).reshape([2, 3]).unwrap()
}

fn run(g: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    evaluate(g, inputs, &InMemory).unwrap()
}

#[test]
fn a_known_condition_leaves_only_the_branch_taken() {
    let dead = branch(node("NoSuchOperator", "x", "r"));
    let m = with_condition(if_node(branch(node("Relu", "x", "r")), dead), Some(true));
    let g = import(&m, &[]).unwrap().graph;
    assert!(g.nodes.iter().all(|n| !matches!(n.op, Op::If(_))));
    assert_eq!(g.value(g.outputs[0]).name, "y");
    assert_eq!(run(&g, &[matrix()])[0].f64_at(1), 0.0);
}

#[test]
fn an_unknown_condition_decides_at_run_time() {
    let m = with_condition(
        if_node(branch(node("Relu", "x", "r")), branch(node("Neg", "x", "r"))),
        None,
    );
    let g = import(&m, &[]).unwrap().graph;
    assert_eq!(g.value(g.outputs[0]).extents, Extents::Static);
    for (condition, expected) in [(true, 0.0), (false, 2.0)] {
        let y = run(&g, &[matrix(), Tensor::scalar(condition)]);
        assert_eq!((y[0].shape(), y[0].f64_at(1)), (&[2, 3][..], expected));
    }
}

#[test]
fn branches_of_different_shapes_end_where_they_are() {
    let choice = || if_node(branch(node("Relu", "x", "r")), branch(node("Transpose", "x", "r")));
    let g = import(&with_condition(choice(), None), &[]).unwrap().graph;
    assert_eq!(g.value(g.outputs[0]).extents, Extents::Dynamic);
    assert_eq!(run(&g, &[matrix(), Tensor::scalar(false)])[0].shape(), [3, 2]);

    let mut m = with_condition(choice(), None);
    let g = m.graph.as_mut().unwrap();
    g.node.push(node("Relu", "y", "z"));
    g.output[0].name = Some("z".into());
    let e = refused(&m, &[]);
    assert!(e.contains("`y`") && e.contains("run time") && e.contains("Relu_z"), "{e}");
}

/// `y = x + x` for each trip, and all intermediate sums stacked.
fn doubling(outputs: &str) -> NodeProto {
    let inputs =
        vec![value("i", DType::I64, ""), value("c", DType::Bool, ""), value("s", DType::F32, "2")];
    let nodes =
        vec![node("Identity", "c", "c2"), node("Add", "s s", "s2"), node("Add", "s2 w", "slice")];
    with(
        node("Loop", "n _ x", outputs),
        vec![body("body", graph(inputs, vec![], nodes, "c2 s2 slice"))],
    )
}

fn looped(node: NodeProto, trips: Option<i64>, outputs: &str) -> ModelProto {
    let x = value("x", DType::F32, "2");
    let mut initializers: Vec<TensorProto> = vec![initializer("w", &vector(&[100.0]))];
    let mut inputs = vec![x];
    match trips {
        Some(n) => initializers.push(initializer("n", &Tensor::scalar(n))),
        None => inputs.push(value("n", DType::I64, "")),
    }
    model(graph(inputs, initializers, vec![node], outputs))
}

#[test]
fn loops_carry_and_stack() {
    let x = vector(&[1.0, 2.0]);
    let stacked = Tensor::new([3, 2], vec![102.0f32, 104.0, 104.0, 108.0, 108.0, 116.0]).unwrap();
    let expected = [vector(&[8.0, 16.0]), stacked];

    let g = import(&looped(doubling("y all"), Some(3), "y all"), &[]).unwrap().graph;
    assert_eq!(g.ty(g.outputs[1]).shape, [3, 2]);
    assert_eq!(run(&g, std::slice::from_ref(&x)), expected);

    let g = import(&looped(doubling("y all"), None, "y all"), &[]).unwrap().graph;
    let extents: Vec<Extents> = g.outputs.iter().map(|&v| g.value(v).extents).collect();
    assert_eq!(extents, [Extents::Static, Extents::Dynamic]);
    assert_eq!(run(&g, &[x, Tensor::scalar(3i64)]), expected);
}

#[test]
fn loops_that_do_not_end_are_stopped() {
    let g = import(&looped(doubling("y _"), Some(i64::MAX), "y"), &[]).unwrap().graph;
    let e = evaluate(&g, &[vector(&[1.0, 2.0])], &InMemory).unwrap_err().to_string();
    assert!(e.contains("more than the limit"), "{e}");
}

#[test]
fn bodies_survive_serialisation() {
    let g = import(&looped(doubling("y all"), Some(3), "y all"), &[]).unwrap().graph;
    let json = serde_json::to_string(&g.nodes[0].op).unwrap();
    assert_eq!(serde_json::from_str::<Op>(&json).unwrap(), g.nodes[0].op);
}

#[test]
fn carried_values_must_keep_their_shape() {
    let inputs =
        vec![value("i", DType::I64, ""), value("c", DType::Bool, ""), value("s", DType::F32, "?")];
    let concat = with(node("Concat", "s s", "s2"), vec![crate::builder::int("axis", 0)]);
    let nodes = vec![node("Identity", "c", "c2"), concat];
    let grow =
        with(node("Loop", "n _ x", "y"), vec![body("body", graph(inputs, vec![], nodes, "c2 s2"))]);
    let e = refused(&looped(grow, Some(2), "y"), &[]);
    assert!(e.contains("carried value 0 is f32[2] before an iteration and f32[4]"), "{e}");
}
