//! The textual form: what is printed parses back equal; what is not a graph is an error, never a panic.

mod random_graph;

use planc_ir::ops::deferred::{Deferred, Promise};
use planc_ir::ops::{map::Map, matmul::MatMul};
use planc_ir::scalar::ScalarFn;
use planc_ir::tensor::Tensor;
use planc_ir::text::{ParseErrorKind as Kind, parse, print};
use planc_ir::{DType, Extents, Graph, TensorType, ValueDef, ValueId, WeightSource};
use proptest::prelude::*;
use std::sync::Arc;

const MLP: &str = r#"graph "mlp" {
  %0 "x" = input : f32[2,8]
  %1 "w" = weight external("mlp.data", 64, 256) : f32[8,8]
  %2 "b" = constant [0.25, -0.0] : f16[2,1]
  %3 "y" = MatMul(%0, %1) {"trans_a":false,"trans_b":true} @ "fc/MatMul" scope "fc" : f32[2,8]
  %4 "z" = Map(%2) {"f":{"LeakyRelu":{"alpha":0.1}}} @ "relu" : f16[2,1]
  output %3
  output %4
}
"#;

#[test]
fn prints_what_it_parsed() {
    let graph = parse(MLP).expect("is a graph");
    assert_eq!(print(&graph), MLP);
    assert_eq!(graph.name, "mlp");
    assert_eq!(graph.inputs, [ValueId(0)]);
    assert_eq!(graph.outputs, [ValueId(3), ValueId(4)]);
    assert_eq!(graph.nodes[0].op, MatMul { trans_a: false, trans_b: true }.into());
    assert_eq!((graph.nodes[0].name.as_str(), graph.nodes[0].scope.as_str()), ("fc/MatMul", "fc"));
    let external = WeightSource::External { location: "mlp.data".into(), offset: 64, bytes: 256 };
    assert_eq!(graph.value(ValueId(1)).def, ValueDef::Weight(external));
}

#[test]
fn space_and_comments_mean_nothing() {
    let spread = MLP.replace('(', " ( ").replace(" : ", "\n:\t").replace("\n  %", "\n// %9 =\n%");
    assert_eq!(parse(&spread), parse(MLP));
}

#[test]
fn keeps_the_order_of_inputs_and_ids_out_of_order() {
    let mut g = Graph::new("swapped");
    let a = g.input("a", TensorType::new(DType::F32, [2, 2]));
    let b = g.input("b", TensorType::new(DType::F32, [2, 2]));
    let y = g
        .push("n", MatMul { trans_a: false, trans_b: false }.into(), &[a, b], &["y"])
        .expect("fits");
    // A source with a larger id than the node's result, as a rewrite leaves it.
    g.constant("late", Tensor::scalar(3i64));
    g.inputs.swap(0, 1);
    g.outputs = y;
    assert_eq!(parse(&print(&g)), Ok(g));
}

#[test]
fn keeps_how_often_a_step_runs_and_what_it_keeps() {
    let step = MLP.replace("  output %4\n", "  output %4\n  micro_batches 8\n  under_way 3\n");
    let graph = parse(&step).expect("is a graph");
    assert_eq!((graph.micro_batches, graph.under_way), (8, 3));
    assert_eq!(print(&graph), step);
    let none = parse(&step.replace("under_way 3", "under_way 0")).expect_err("none under way");
    assert!(none.to_string().contains("at least one micro-batch"), "{none}");
}

#[test]
fn marks_dynamic_extents() {
    let mut g = Graph::new("dynamic");
    let x = g.input("x", TensorType::new(DType::F32, [2]));
    let op = Deferred::identity(Promise::open(DType::F32));
    g.outputs = g.push("n", op.into(), &[x], &["y"]).expect("fits");
    assert_eq!(g.value(g.outputs[0]).extents, Extents::Dynamic);
    assert!(print(&g).contains("@ \"n\" : f32[*]\n"), "{}", print(&g));
    assert_eq!(parse(&print(&g)), Ok(g));
}

#[test]
fn not_a_number_keeps_its_bits() {
    let mut g = Graph::new("nan");
    let odd = f32::from_bits(0x7fc0_1234);
    g.constant("c", Tensor::vector(vec![odd, f32::INFINITY]));
    let parsed = parse(&print(&g)).expect("parses");
    let ValueDef::Constant(t) = &parsed.values[0].def else { panic!("is a constant") };
    let bits: Vec<u32> = t.slice::<f32>().expect("f32").iter().map(|x| x.to_bits()).collect();
    assert_eq!(bits, [0x7fc0_1234, f32::INFINITY.to_bits()]);
}

#[test]
fn infinite_attributes_parse_back() {
    let mut g = parse(MLP).expect("is a graph");
    g.nodes[1].op = Map { f: ScalarFn::LeakyRelu { alpha: f32::NEG_INFINITY } }.into();
    assert_eq!(parse(&print(&g)), Ok(g));
}

/// Replaces `from` in the example by `to` and returns where the parser stops, and why.
fn error(from: &str, to: &str) -> (usize, usize, Kind) {
    assert!(MLP.contains(from), "{from}");
    let e = parse(&MLP.replacen(from, to, 1)).expect_err("is not a graph");
    (e.line, e.column, e.kind)
}

#[test]
fn says_what_is_wrong_and_where() {
    let expected =
        |what: &str, found: &str| Kind::Expected { expected: what.into(), found: found.into() };
    assert_eq!(error("graph", "grape"), (1, 1, expected("`graph`", "`grape`")));
    assert_eq!(error("MatMul(", "MatMull("), (5, 12, Kind::UnknownOp("MatMull".into())));
    assert_eq!(error("(%0, %1)", "(%0, %7)"), (5, 23, Kind::Undefined(ValueId(7))));
    assert_eq!(error("(%0, %1)", "(%0, %3)"), (5, 23, Kind::Undefined(ValueId(3))));
    assert_eq!(error("%1 \"w\"", "%0 \"w\""), (3, 3, Kind::Redefined(ValueId(0))));
    assert_eq!(error("f32[2,8]", "f31[2,8]"), (2, 20, Kind::UnknownType("f31".into())));
    assert_eq!(error("2,8", "2;8"), (2, 25, expected("`,`", "';'")));
    assert_eq!(error("2,8", "2,-8"), (2, 26, expected("a number", "'-'")));
    let huge = "18446744073709551616";
    assert_eq!(error("2,8", huge), (2, 24, Kind::Number(huge.into())));
    let end = expected(
        "a definition, `output`, `carried`, `micro_batches`, `under_way` or `}`",
        "the end of the text",
    );
    assert_eq!(error("  output %4\n}\n", ""), (8, 1, end));
    let (line, column, kind) = error("[0.25, -0.0]", "[0.1]");
    assert_eq!((line, column), (4, 29));
    assert!(matches!(kind, Kind::Tensor(_)), "{kind}");
    let (_, _, kind) = error("[0.25, -0.0]", "[0.1, 70000]");
    assert_eq!(kind, Kind::Tensor("`70000` is not a f16".into()));
    let (line, _, kind) = error("\"trans_a\":false", "\"trans_a\":1");
    assert!(line == 5 && matches!(kind, Kind::Attributes { .. }), "{kind}");
    let (line, _, kind) = error("\"trans_a\":false", "\"trans_a\"");
    assert!(line == 5 && matches!(kind, Kind::Json(_)), "{kind}");
    let (_, _, kind) = error("= MatMul", ", %9 \"q\" = MatMul");
    assert_eq!(kind, Kind::TypeCount { defs: 2, types: 1 });
    assert_eq!(error("%4 \"z\"", "%9 \"z\"").2, Kind::Undefined(ValueId(4)));
    let late = error("output %4", "%9 \"c\" = constant [1] : i64[1]\n output %4");
    assert_eq!(late, (10, 1, Kind::Gap(ValueId(5))));
}

#[test]
fn huge_demands_are_refused_before_they_take_memory() {
    for ty in ["f32[4000000000,4000000000]", "f32[18446744073709551615]", "u8[99999999999]"] {
        for elements in ["base64(\"AAAA\")", "[1]", "[]"] {
            let text = format!("graph \"g\" {{ %0 \"c\" = constant {elements} : {ty} }}");
            let kind = parse(&text).expect_err("is too large").kind;
            assert!(matches!(kind, Kind::Tensor(_)), "{kind}");
        }
    }
    let last = "graph \"g\" { %4294967295 \"c\" = input : f32[] }";
    assert_eq!(parse(last).expect_err("has gaps").kind, Kind::Gap(ValueId(0)));
    let deep = format!(
        "graph \"g\" {{ %0 \"x\" = input : f32[] %1 \"y\" = Map(%0) {}",
        "[".repeat(100_000)
    );
    assert!(matches!(parse(&deep).expect_err("is deep").kind, Kind::Json(_)));
}

#[test]
fn long_tensors_are_base64() {
    let mut g = Graph::new("long");
    let t = Tensor::vector((0..17i32).collect());
    g.add_value("w", t.ty().clone(), ValueDef::Weight(WeightSource::Inline(Arc::new(t))));
    assert!(print(&g).contains("weight base64(\"AAAAAAEAAAACAAAA"), "{}", print(&g));
    assert_eq!(parse(&print(&g)), Ok(g));
}

proptest! {
    #[test]
    fn random_graphs_parse_back_equal(g in random_graph::graph()) {
        let text = print(&g);
        prop_assert_eq!(parse(&text), Ok(g), "{}", text);
    }

    /// Every source and node is one line, whatever its names hold.
    #[test]
    fn one_line_each(g in random_graph::graph()) {
        let sources = g.values.iter().filter(|v| !matches!(v.def, ValueDef::Node { .. })).count();
        let lines = 2 + sources + g.nodes.len() + g.outputs.len();
        prop_assert_eq!(print(&g).matches('\n').count(), lines);
    }

    /// Cutting, doubling and replacing pieces gives an error at a place in the text, or another graph
    /// that prints and parses.
    #[test]
    fn mutated_text_never_panics(
        g in random_graph::graph(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..40usize, 0..4u8, ".{0,3}"), 1..4),
    ) {
        let mut chars: Vec<char> = print(&g).chars().collect();
        for (at, length, kind, insert) in edits {
            let at = at.index(chars.len());
            let end = (at + length).min(chars.len());
            let piece: Vec<char> = chars[at..end].to_vec();
            let new = match kind {
                0 => vec![],
                1 => [piece.clone(), piece].concat(),
                2 => insert.chars().collect(),
                _ => piece.into_iter().rev().collect(),
            };
            chars.splice(at..end, new);
            if chars.is_empty() {
                chars.push('g');
            }
        }
        let text: String = chars.into_iter().collect();
        match parse(&text) {
            Ok(other) => prop_assert_eq!(print(&parse(&print(&other)).expect("was printed")), print(&other)),
            Err(e) => prop_assert!(e.line <= text.matches('\n').count() + 1 && e.column >= 1, "{}", e),
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in ".*", tail in "[\\PC\n]{0,60}") {
        prop_assert!(parse(&text).is_err());
        // It is a graph only if the tail closes it.
        let graph = parse(&format!("graph \"g\" {{ {tail}"));
        let closed = tail.contains('}');
        prop_assert!(graph.is_err() || closed);
    }
}
