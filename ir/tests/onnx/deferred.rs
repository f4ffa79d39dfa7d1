//! Extents that only the run decides, and sequences.

use crate::builder::{
    body, graph, import, initializer, int, model, node, refused, tensor, value, with,
};
use crate::vector;
use planc_ir::interp::evaluate;
use planc_ir::onnx::wire::{ModelProto, NodeProto, ValueInfoProto};
use planc_ir::ops::Op;
use planc_ir::text::{parse, print};
use planc_ir::verify::verify;
use planc_ir::weights::InMemory;
use planc_ir::{DType, Extents, Graph, Tensor};

/// A model of `x` (a vector of 4) and `n` (a number) with some constants.
fn computed(nodes: Vec<NodeProto>, outputs: &str) -> ModelProto {
    let inputs = vec![value("x", DType::F32, "4"), value("n", DType::I64, "")];
    let constants = [
        ("zero", Tensor::scalar(0i64)),
        ("one", Tensor::scalar(1i64)),
        ("first", Tensor::vector(vec![0i64])),
        ("square", Tensor::vector(vec![2i64, 2])),
        ("parts", Tensor::vector(vec![1i64, 3])),
    ];
    let constants = constants.iter().map(|(name, t)| initializer(name, t)).collect();
    model(graph(inputs, constants, nodes, outputs))
}

fn imported(m: &ModelProto) -> Graph {
    let g = import(m, &[]).unwrap().graph;
    assert_eq!(verify(&g), []);
    let text = print(&g);
    assert_eq!(parse(&text).unwrap(), g, "{text}");
    g
}

fn run(g: &Graph, n: i64) -> Result<Vec<Tensor>, String> {
    let x = vector(&[1.0, 2.0, 3.0, 4.0]);
    evaluate(g, &[x, Tensor::scalar(n)], &InMemory).map_err(|e| e.to_string())
}

fn outputs(g: &Graph) -> Vec<String> {
    let text = |v| match (g.value(v).extents, g.ty(v)) {
        (Extents::Static, ty) => ty.to_string(),
        (Extents::Dynamic, ty) => format!("{}[*]", ty.dtype),
    };
    g.outputs.iter().map(|&v| text(v)).collect()
}

/// The first `n` of `x` doubled, how many they are, and which are larger than 2.
fn rows() -> Vec<NodeProto> {
    vec![
        node("Range", "zero n one", "at"),
        node("Gather", "x at", "some"),
        node("Add", "some some", "twice"),
        node("Size", "some", "count"),
        node("Greater", "some two", "large"),
    ]
}

fn with_two(mut m: ModelProto) -> ModelProto {
    m.graph.as_mut().unwrap().initializer.push(initializer("two", &Tensor::scalar(2f32)));
    m
}

#[test]
fn computed_bounds_decide_extents() {
    let g = imported(&with_two(computed(rows(), "twice count large")));
    assert_eq!(outputs(&g), ["f32[*]", "i64[*]", "bool[*]"]);
    let results = run(&g, 3).unwrap();
    assert_eq!(results[0], vector(&[2.0, 4.0, 6.0]));
    assert_eq!(results[1], Tensor::scalar(3i64));
    assert_eq!(results[2], Tensor::vector(vec![false, false, true]));
    assert_eq!(run(&g, 0).unwrap()[0].shape(), [0]);
    let e = run(&g, 5).unwrap_err();
    assert!(e.contains("Gather_some") && e.contains("index 4"), "{e}");
}

fn declare(m: &mut ModelProto, info: ValueInfoProto) {
    m.graph.as_mut().unwrap().value_info.push(info);
}

#[test]
fn declared_extents_are_held_against_the_run() {
    let mut m = computed([rows(), vec![node("Neg", "twice", "y")]].concat(), "y");
    m.graph.as_mut().unwrap().node.retain(|n| n.op_type() != "Greater");
    // Of `twice` all is declared, so that what comes after it is static; of `some` not.
    declare(&mut m, value("some", DType::F32, "?"));
    declare(&mut m, value("twice", DType::F32, "2"));
    let g = imported(&m);
    assert_eq!(outputs(&g), ["f32[2]"]);
    assert_eq!(run(&g, 2).unwrap()[0], vector(&[-2.0, -4.0]));
    let e = run(&g, 3).unwrap_err();
    assert!(e.contains("Add_twice") && e.contains("f32[3]") && e.contains("f32[2]"), "{e}");
}

#[test]
fn a_known_target_makes_extents_static_again() {
    let nodes = vec![
        node("Range", "zero n one", "at"),
        node("Gather", "x at", "some"),
        node("Reshape", "some square", "y"),
    ];
    let g = imported(&computed(nodes, "y"));
    assert_eq!(outputs(&g), ["f32[2,2]"]);
    assert_eq!(run(&g, 4).unwrap()[0].f64_at(3), 4.0);
    assert!(run(&g, 3).unwrap_err().contains("Reshape_y"));
}

#[test]
fn what_the_run_decides_is_bounded() {
    let nodes = vec![node("Unsqueeze", "n first", "shape"), node("ConstantOfShape", "shape", "y")];
    let g = imported(&computed(nodes, "y"));
    assert_eq!(run(&g, 3).unwrap()[0], vector(&[0.0; 3]));
    let e = run(&g, 1 << 40).unwrap_err();
    assert!(e.contains("more than the limit"), "{e}");
    assert!(run(&g, -1).is_err());
}

#[test]
fn unknown_operators_are_still_one_error() {
    let inner = graph(vec![], vec![], vec![node("NoSuchOp", "some", "r")], "r");
    let choice = vec![body("then_branch", inner.clone()), body("else_branch", inner)];
    let nodes = vec![
        node("Range", "zero n one", "at"),
        node("Gather", "x at", "some"),
        node("Cast", "n", "c"),
        with(node("If", "c", "y"), choice),
        node("NorThis", "some", "z"),
    ];
    let mut m = computed(nodes, "y z");
    m.graph.as_mut().unwrap().node[2].attribute = vec![int("to", 9)];
    let e = refused(&m, &[]);
    assert!(e.contains("NoSuchOp: `NoSuchOp_r`") && e.contains("NorThis: `NorThis_z`"), "{e}");
}

#[test]
fn sequences_dissolve() {
    let nodes = vec![
        with(node("SplitToSequence", "x parts", "s"), vec![int("axis", 0)]),
        node("SequenceAt", "s one", "tail"),
        node("SequenceInsert", "s tail zero", "longer"),
        node("SequenceErase", "longer one", "shorter"),
        with(node("ConcatFromSequence", "shorter", "y"), vec![int("axis", 0)]),
        node("SequenceLength", "shorter", "length"),
    ];
    let g = imported(&computed(nodes, "tail y length"));
    assert_eq!(outputs(&g), ["f32[3]", "f32[6]", "i64[]"]);
    let results = run(&g, 0).unwrap();
    assert_eq!(results[1], vector(&[2.0, 3.0, 4.0, 2.0, 3.0, 4.0]));
    assert_eq!(results[2], Tensor::scalar(2i64));

    let pairs = vec![
        node("SplitToSequence", "x", "s"),
        with(node("ConcatFromSequence", "s", "y"), vec![int("axis", 1), int("new_axis", 1)]),
    ];
    assert_eq!(outputs(&imported(&computed(pairs, "y"))), ["f32[1,4]"]);
}

/// A loop that grows an empty sequence by `x[i]` in each iteration.
fn collecting(joined: NodeProto) -> ModelProto {
    let inputs = vec![
        value("i", DType::I64, ""),
        value("c", DType::Bool, ""),
        ValueInfoProto { name: Some("held".into()), ..ValueInfoProto::default() },
    ];
    let nodes = vec![
        node("Identity", "c", "c2"),
        node("Unsqueeze", "i first", "index"),
        node("Gather", "x index", "row"),
        node("SequenceInsert", "held row", "grown"),
    ];
    let inner = body("body", graph(inputs, vec![], nodes, "c2 grown"));
    let nodes = vec![
        node("SequenceEmpty", "", "none"),
        with(node("Loop", "n _ none", "all"), vec![inner]),
        node("SequenceLength", "all", "length"),
        node("SequenceAt", "all one", "second"),
        joined,
    ];
    computed(nodes, "y length second")
}

#[test]
fn a_loop_may_grow_a_sequence() {
    let joined = with(node("ConcatFromSequence", "all", "y"), vec![int("axis", 0)]);
    let g = imported(&collecting(joined));
    let results = run(&g, 3).unwrap();
    assert_eq!(results[0], vector(&[1.0, 2.0, 3.0]));
    assert_eq!(results[1], Tensor::scalar(3i64));
    assert_eq!(results[2], vector(&[2.0]));
    let new_axis = vec![int("axis", 1), int("new_axis", 1)];
    let g = imported(&collecting(with(node("ConcatFromSequence", "all", "y"), new_axis)));
    assert_eq!(run(&g, 3).unwrap()[0].shape(), [1, 3]);
}

#[test]
fn other_sequences_are_unsupported() {
    let read_whole = refused(&collecting(node("Relu", "all", "y")), &[]);
    assert!(read_whole.contains("Relu") && read_whole.contains("is a sequence"), "{read_whole}");
    let nodes = vec![node("SplitToSequence", "x", "s"), node("SequenceAt", "s n", "y")];
    let e = refused(&computed(nodes, "y"), &[]);
    assert!(e.contains("SequenceAt") && e.contains("run time"), "{e}");
    let e = refused(&computed(vec![node("SplitToSequence", "x", "s")], "s"), &[]);
    assert!(e.contains("sequence") && e.contains('s'), "{e}");
}

#[test]
fn attributes_of_deferred_nodes_survive_serialisation() {
    let fill = tensor("value", initializer("", &Tensor::vector(vec![f32::NEG_INFINITY])));
    let nodes = vec![
        node("Unsqueeze", "n first", "shape"),
        with(node("ConstantOfShape", "shape", "y"), vec![fill]),
    ];
    let g = imported(&computed(nodes, "y"));
    let Op::Deferred(_) = &g.nodes.last().unwrap().op else { panic!("not deferred") };
    assert_eq!(run(&g, 2).unwrap()[0], vector(&[f32::NEG_INFINITY; 2]));
}
