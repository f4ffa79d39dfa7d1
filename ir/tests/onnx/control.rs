//! If and Loop.

use crate::builder::{body, graph, import, initializer, int, model, node, refused, value, with};
use crate::vector;
use planc_ir::interp::evaluate;
use planc_ir::onnx::wire::{
    AttributeProto, AttributeType, GraphProto, ModelProto, NodeProto, TensorProto,
};
use planc_ir::ops::Op;
use planc_ir::text::{parse, print};
use planc_ir::verify::verify;
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
fn branches_of_different_shapes_can_be_read() {
    let choice = || if_node(branch(node("Relu", "x", "r")), branch(node("Transpose", "x", "r")));
    let g = import(&with_condition(choice(), None), &[]).unwrap().graph;
    assert_eq!(g.value(g.outputs[0]).extents, Extents::Dynamic);
    assert_eq!(run(&g, &[matrix(), Tensor::scalar(false)])[0].shape(), [3, 2]);

    // By an operator that is decoded at run time, and by the branches of another choice.
    let mut m = with_condition(choice(), None);
    let g = m.graph.as_mut().unwrap();
    g.node.push(node("Relu", "y", "z"));
    let bodies = vec![
        body("then_branch", branch(node("Neg", "z", "r"))),
        body("else_branch", branch(node("Transpose", "z", "r"))),
    ];
    g.node.push(with(node("If", "c", "u"), bodies));
    g.output[0].name = Some("u".into());
    let g = import(&m, &[]).unwrap().graph;
    assert_eq!(verify(&g), []);
    let u = run(&g, &[matrix(), Tensor::scalar(false)]);
    assert_eq!(u[0], vector(&[1.0, 0.0, 3.0, 0.0, 5.0, 0.0]).reshape([2, 3]).unwrap());
    assert_eq!(run(&g, &[matrix(), Tensor::scalar(true)])[0].f64_at(2), -3.0);
}

#[test]
fn a_branch_may_be_wrong_for_these_extents_unless_it_is_taken() {
    let wrong = branch(node("MatMul", "x x", "r"));
    let m = with_condition(if_node(branch(node("Relu", "x", "r")), wrong.clone()), None);
    let g = import(&m, &[]).unwrap().graph;
    assert_eq!(run(&g, &[matrix(), Tensor::scalar(true)])[0].f64_at(1), 0.0);
    let e = evaluate(&g, &[matrix(), Tensor::scalar(false)], &InMemory).unwrap_err().to_string();
    assert!(e.contains("MatMul_r") && e.contains("[2, 3]"), "{e}");
    // Where it is known to be taken it is an error of the model.
    let m = with_condition(if_node(branch(node("Relu", "x", "r")), wrong), Some(false));
    assert!(refused(&m, &[]).contains("MatMul_r"));
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
fn carried_values_may_change_their_shape() {
    let inputs =
        vec![value("i", DType::I64, ""), value("c", DType::Bool, ""), value("s", DType::F32, "?")];
    let concat = with(node("Concat", "s s", "s2"), vec![crate::builder::int("axis", 0)]);
    let nodes = vec![node("Identity", "c", "c2"), concat];
    let grow =
        with(node("Loop", "n _ x", "y"), vec![body("body", graph(inputs, vec![], nodes, "c2 s2"))]);
    let g = import(&looped(grow, Some(2), "y"), &[]).unwrap().graph;
    assert_eq!(verify(&g), []);
    assert_eq!(g.value(g.outputs[0]).extents, Extents::Dynamic);
    let y = run(&g, &[vector(&[1.0, 2.0])]);
    assert_eq!(y[0], vector(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]));
}

/// A running sum over the columns of `x` from the back: the sums as columns, in the file's order.
/// The text of an op nests several times as deep as its bodies, and what reads JSON bounds that.
#[test]
fn bodies_nest_no_deeper_than_a_plan_can_hold() {
    let nested = |depth: usize| {
        let leaf = || branch(node("Neg", "x", "y"));
        let outermost = (1..depth).fold(leaf(), |inner, _| branch(if_node(inner, leaf())));
        with_condition(if_node(outermost, leaf()), None)
    };
    let g = import(&nested(20), &[]).unwrap().graph;
    assert_eq!(parse(&print(&g)).unwrap(), g);
    let around_in_a_plan = 12;
    let kernel = serde_json::to_string(&g.nodes[0].op.lower()).unwrap();
    let text = ["[".repeat(around_in_a_plan), kernel, "]".repeat(around_in_a_plan)].concat();
    serde_json::from_str::<serde_json::Value>(&text).unwrap();
    let why = refused(&nested(21), &[]);
    assert!(why.contains("nested deeper than the 20 levels"), "{why}");
}

#[test]
fn a_scan_is_a_loop() {
    let ints = |name: &str, list: &[i64]| AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Ints as i32),
        ints: list.to_vec(),
        ..AttributeProto::default()
    };
    let inputs = vec![value("s", DType::F32, "2"), value("column", DType::F32, "2")];
    let nodes = vec![node("Add", "s column", "t"), node("Identity", "t", "slice")];
    let scan = with(
        node("Scan", "zero x", "last all"),
        vec![
            body("body", graph(inputs, vec![], nodes, "t slice")),
            int("num_scan_inputs", 1),
            ints("scan_input_axes", &[-1]),
            ints("scan_input_directions", &[1]),
            ints("scan_output_axes", &[1]),
            ints("scan_output_directions", &[1]),
        ],
    );
    let zero = initializer("zero", &vector(&[0.0, 0.0]));
    let m = model(graph(vec![value("x", DType::F32, "2 3")], vec![zero], vec![scan], "last all"));
    let mut of_opset_8 = m.clone();
    of_opset_8.opset_import[0].version = Some(8);
    assert!(refused(&of_opset_8, &[]).contains("batch dimension"));
    let mut uneven = m.clone();
    let g = uneven.graph.as_mut().unwrap();
    g.input.push(value("z", DType::F32, "2 4"));
    g.node[0].input.push("z".into());
    g.node[0].attribute.retain(|a| !a.name().starts_with("scan_input"));
    g.node[0].attribute[1].i = Some(2);
    let inner = g.node[0].attribute[0].g.as_deref_mut().unwrap();
    inner.input.push(value("other", DType::F32, "2"));
    g.input[0] = value("x", DType::F32, "3 2");
    assert!(refused(&uneven, &[]).contains("different extents"));
    let g = import(&m, &[]).unwrap().graph;
    assert_eq!(verify(&g), []);
    let [last, all] = &run(&g, &[matrix()])[..] else { panic!("two outputs") };
    assert_eq!(*last, vector(&[2.0, -5.0]));
    let sums = vector(&[2.0, 1.0, 3.0, -5.0, -1.0, -6.0]);
    assert_eq!(*all, sums.reshape([2, 3]).unwrap());
}
