//! Real cost models on transformer blocks: the strategies that experts choose are found.

use super::super::{SearchOptions, SearchResult, search};
use planc_cost_model::{Catalogue, Cluster, CostModel};
use planc_ir::onnx::{ImportOptions, export, import_bytes};
use planc_ir::sharding::AxisUse;
use planc_ir::{DType, Graph, NodeId};
use planc_models::{Config, Size, build};

pub fn gpt(layers: u64, hidden: u64, batch: u64, seq: u64) -> Graph {
    let config = Config { batch: Some(batch), dtype: DType::F16, ..Config::default() }
        .with(Size::Layers, layers)
        .with(Size::Hidden, hidden)
        .with(Size::Heads, hidden / 128)
        .with(Size::Vocab, 50_257)
        .with(Size::Seq, seq);
    let model = build("gpt", &config).unwrap();
    import_bytes(export::encode(&model), &ImportOptions::default()).unwrap().graph
}

fn plan(graph: &Graph, device: &str, devices: u32) -> SearchResult {
    let catalogue = Catalogue::shipped().unwrap();
    let cluster = Cluster::homogeneous(device, devices, &catalogue).unwrap();
    let costs = CostModel::new(&cluster, &catalogue).unwrap();
    search(graph, &costs, &SearchOptions::default()).unwrap()
}

/// What the mesh axis does for the node whose name ends so, in the first block.
fn split<'a>(graph: &'a Graph, result: &SearchResult, node: &str) -> &'a str {
    let at = graph.nodes.iter().position(|n| n.name.ends_with(node)).unwrap();
    let id = NodeId(at as u32);
    let rule = graph.nodes[at].op.rule(&graph.input_types(id), &graph.output_types(id));
    match result.strategy.ops[at].axes[..] {
        [AxisUse::Split(f)] => rule.factors[f.index()].name,
        _ => "whole",
    }
}

#[test]
fn one_all_reduce_per_attention_and_per_mlp() {
    let graph = gpt(2, 4096, 1, 1024);
    let result = plan(&graph, "H100", 8);
    assert_eq!(result.evaluation.steps.get("all-reduce"), Some(&4), "{:?}", result.evaluation);
    let exchanged: Vec<&String> =
        result.evaluation.steps.keys().filter(|k| *k != "slice" && *k != "to-partial").collect();
    assert_eq!(exchanged, ["all-reduce"], "nothing else is exchanged");
    assert_eq!(result.strategy.mesh.to_string(), "{device: 8}");
    for block in 0..2 {
        for (node, factor) in [
            ("attn/q/MatMul", "n"),
            ("attn/k/MatMul", "n"),
            ("attn/v/MatMul", "n"),
            ("attn/proj/MatMul", "k"),
            ("mlp/fc/MatMul", "n"),
            ("mlp/proj/MatMul", "k"),
        ] {
            let node = format!("h.{block}/{node}");
            assert_eq!(split(&graph, &result, &node), factor, "{node}");
        }
    }
    let certificate = &result.certificate;
    assert_eq!(certificate.status, "optimal");
    assert_eq!(certificate.space["repeats"], 2);
}

#[test]
fn the_expert_recipes_stand_beside_it() {
    let graph = gpt(2, 4096, 1, 1024);
    let result = plan(&graph, "H100", 8);
    let us = |name: &str| result.baselines.iter().find(|b| b.name == name).unwrap().total_us;
    let found = result.evaluation.total_us;
    // A batch of one cannot be split.
    assert!((us("data parallel") - us("replicate")).abs() < 1e-9);
    assert!(found <= us("tensor parallel") && us("tensor parallel") < 1.2 * found);
    assert!(us("tensor parallel") < us("replicate") / 2.0);
}

#[test]
fn a_large_batch_is_split_by_data() {
    let graph = gpt(2, 1024, 64, 128);
    let result = plan(&graph, "H100", 8);
    let us = |name: &str| result.baselines.iter().find(|b| b.name == name).unwrap().total_us;
    assert!(result.evaluation.total_us <= us("data parallel"));
    assert!(us("data parallel") < us("tensor parallel"));
    assert!(result.evaluation.resharding_us() < 0.1 * result.evaluation.compute_us);
}

#[test]
fn depth_costs_nothing() {
    let (shallow, deep) = (gpt(3, 512, 8, 128), gpt(48, 512, 8, 128));
    let (few, many) = (plan(&shallow, "A100", 4), plan(&deep, "A100", 4));
    let size = |r: &SearchResult| r.log.iter().map(|l| l.size).collect::<Vec<_>>();
    assert_eq!(size(&few), size(&many));
    assert_eq!(many.certificate.space["repeats"], 48);
}
