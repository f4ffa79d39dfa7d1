//! Dropout of models that are run, and of models that are trained.

use crate::builder::{body, graph, initializer, model, node, opset, text, value, with};
use planc_ir::interp::evaluate;
use planc_ir::onnx::wire::{AttributeProto, AttributeType, GraphProto, ModelProto, NodeProto};
use planc_ir::onnx::{ImportError, ImportOptions, import_bytes};
use planc_ir::ops::Op;
use planc_ir::ops::dropout::Dropout;
use planc_ir::weights::InMemory;
use planc_ir::{DType, Graph, Tensor, TensorType};
use prost::Message;

fn imported(model: &ModelProto, dropout: bool) -> Result<Graph, ImportError> {
    let options = ImportOptions { training: dropout, dropout, ..ImportOptions::default() };
    import_bytes(model.encode_to_vec(), &options).map(|m| m.graph)
}

/// The dropout in a graph, in order.
fn found(graph: &Graph) -> Vec<&Dropout> {
    graph
        .nodes
        .iter()
        .filter_map(|node| match &node.op {
            Op::Dropout(op) => Some(op),
            _ => None,
        })
        .collect()
}

fn ratio(r: f32) -> AttributeProto {
    let kind = Some(AttributeType::Float as i32);
    AttributeProto { name: text("ratio"), r#type: kind, f: Some(r), ..AttributeProto::default() }
}

/// Nodes on `x`, with a ratio and two modes to choose from.
fn whole(nodes: Vec<NodeProto>, outputs: &str) -> GraphProto {
    let scalars = vec![
        initializer("r", &Tensor::scalar(0.25f32)),
        initializer("zero", &Tensor::scalar(0.0f32)),
        initializer("one", &Tensor::scalar(1.0f32)),
        initializer("no", &Tensor::scalar(false)),
        initializer("yes", &Tensor::scalar(true)),
    ];
    let inputs = vec![value("x", DType::F32, "40 50"), value("given", DType::F32, "")];
    graph(inputs, scalars, nodes, outputs)
}

fn inputs() -> Vec<Tensor> {
    let x = Tensor::from_f64(TensorType::new(DType::F32, [40, 50]), |i| 1.0 + i as f64).unwrap();
    vec![x, Tensor::scalar(0.5f32)]
}

fn run(graph: &Graph) -> Vec<Tensor> {
    evaluate(graph, &inputs(), &InMemory).unwrap()
}

#[test]
fn it_drops_only_in_training() {
    // Whatever the file says of the mode.
    for operands in ["x", "x r", "x r no", "x r yes"] {
        let m = model(whole(vec![node("Dropout", operands, "y")], "y"));
        let ratio = if operands == "x" { 0.5 } else { 0.25 };
        assert_eq!(found(&imported(&m, true).unwrap()), [&Dropout { ratio, seed: 0 }]);
        if operands == "x r yes" {
            let error = imported(&m, false).unwrap_err().to_string();
            assert!(error.contains("without a seed is random"), "{error}");
            continue;
        }
        let plain = imported(&m, false).unwrap();
        assert!(found(&plain).is_empty());
        assert_eq!(run(&plain), inputs()[..1]);
    }
    let none = model(whole(vec![node("Dropout", "x zero yes", "y")], "y"));
    assert!(found(&imported(&none, true).unwrap()).is_empty());
}

#[test]
fn the_ratio_was_an_attribute() {
    for version in [7, 10, 11] {
        let dropout = with(node("Dropout", "x", "y"), vec![ratio(0.125)]);
        let mut m = model(whole(vec![dropout], "y"));
        m.opset_import = vec![opset("", version)];
        assert_eq!(found(&imported(&m, true).unwrap()), [&Dropout { ratio: 0.125, seed: 0 }]);
    }
}

#[test]
fn each_node_has_a_seed_of_its_own() {
    // Even where nodes have no names.
    let unnamed = |inputs, outputs| NodeProto { name: None, ..node("Dropout", inputs, outputs) };
    let nodes = vec![unnamed("x r", "a"), unnamed("a r", "b"), node("Add", "a b", "y")];
    let graph = imported(&model(whole(nodes, "y")), true).unwrap();
    let seeds: Vec<u64> = found(&graph).iter().map(|d| d.seed).collect();
    assert_eq!(seeds.len(), 2);
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn the_mask_says_what_was_kept() {
    for (version, dtype, operands) in
        [(7, DType::F32, "x"), (10, DType::Bool, "x"), (17, DType::Bool, "x r")]
    {
        let mut m = model(whole(vec![node("Dropout", operands, "y mask")], "y mask"));
        m.opset_import = vec![opset("", version)];
        let graph = imported(&m, true).unwrap();
        let found = run(&graph);
        let (y, mask, x) = (&found[0], &found[1], &inputs()[0]);
        assert_eq!(mask.dtype(), dtype, "opset {version}");
        let ratio = if operands == "x" { 0.5 } else { 0.25 };
        let expected: Vec<f64> =
            (0..x.len()).map(|i| mask.f64_at(i) * x.f64_at(i) / (1.0 - ratio)).collect();
        let far = expected.iter().zip(y.to_f64s()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far < 1e-3, "opset {version}: {far}");
        let kept = mask.to_f64s().iter().sum::<f64>() / mask.len() as f64;
        assert!((kept - (1.0 - ratio)).abs() < 0.05, "opset {version}: {kept}");
    }
}

#[test]
fn a_residual_is_not_dropped() {
    let fused = NodeProto { domain: text("com.microsoft"), ..node("BiasDropout", "x x x r", "y") };
    let mut m = model(whole(vec![fused], "y"));
    m.opset_import.push(opset("com.microsoft", 1));
    let y = run(&imported(&m, true).unwrap()).remove(0);
    let grown = |i: usize| y.f64_at(i) / inputs()[0].f64_at(i);
    let dropped = (0..y.len()).filter(|&i| grown(i) == 1.0).count();
    assert!((400..600).contains(&dropped), "{dropped}");
    assert!((0..y.len()).all(|i| grown(i) == 1.0 || (grown(i) - (1.0 + 2.0 / 0.75)).abs() < 1e-5));
    let plain = run(&imported(&m, false).unwrap()).remove(0);
    assert!((0..y.len()).all(|i| plain.f64_at(i) == 3.0 * inputs()[0].f64_at(i)));
}

#[test]
fn what_cannot_be_trained_is_said() {
    let refused = |nodes: Vec<NodeProto>| imported(&model(whole(nodes, "y")), true).unwrap_err();
    let all = refused(vec![node("Dropout", "x one", "y")]);
    assert!(matches!(all, ImportError::Op { .. }), "{all}");
    assert!(all.to_string().contains("drops a share of 1"), "{all}");
    let open = refused(vec![node("Dropout", "x given", "y")]);
    assert!(matches!(open, ImportError::Unsupported(_)), "{open}");
    assert!(open.to_string().contains("not a constant"), "{open}");

    // Where a step cannot number what is drawn.
    let branch = |op: &str| graph(vec![], vec![], vec![node(op, "x", "branch")], "branch");
    let bodies = vec![body("then_branch", branch("Dropout")), body("else_branch", branch("Neg"))];
    let positive = node("Greater", "given zero", "positive");
    let nodes = vec![positive, with(node("If", "positive", "y"), bodies)];
    let inner = refused(nodes.clone());
    assert!(matches!(inner, ImportError::Unsupported(_)), "{inner}");
    assert!(inner.to_string().contains("body of a loop or branch"), "{inner}");
    imported(&model(whole(nodes, "y")), false).unwrap();
    let counted = vec![node("NonZero", "x", "places"), node("Cast", "places", "numbers")];
    let to = |mut nodes: Vec<NodeProto>| {
        nodes[1].attribute = vec![crate::builder::int("to", 1)];
        nodes.push(node("Dropout", "numbers", "y"));
        nodes
    };
    let dynamic = refused(to(counted));
    assert!(dynamic.to_string().contains("only known when the model runs"), "{dynamic}");
}
