//! Real cost models on transformer blocks: the strategies that experts choose are found.

use super::super::{SearchOptions, SearchResult, search};
use planc_cost_model::{Catalogue, Cluster, CostModel};
use planc_ir::onnx::{ImportOptions, export, import_bytes};
use planc_ir::{DType, Graph};
use planc_models::{Config, Size, build};

fn gpt(layers: u64, hidden: u64, batch: u64, seq: u64) -> Graph {
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

#[test]
fn one_all_reduce_per_attention_and_per_mlp() {
    let graph = gpt(2, 4096, 1, 1024);
    let result = plan(&graph, "H100", 8);
    for log in &result.log {
        eprintln!(
            "{} {:?} total {:?} bound {} posing {:?} solving {:?} pricing {:?}",
            log.mesh, log.size, log.total_us, log.bound_us, log.posing, log.solving, log.pricing
        );
    }
    eprintln!("{:#?}", result.baselines);
    eprintln!("{:#?}", result.certificate);
    eprintln!("{:#?}", result.evaluation);
    for (node, s) in graph.nodes.iter().zip(&result.strategy.ops) {
        eprintln!(
            "{:40} {:10} {:?} -> {}",
            node.name,
            node.op.name(),
            s.axes,
            result.strategy.values[node.outputs[0].index()].display(&result.strategy.mesh)
        );
    }
}
