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

fn show(name: &str, graph: &Graph, device: &str, devices: u32, memory: Option<u64>) {
    let t = std::time::Instant::now();
    let catalogue = Catalogue::shipped().unwrap();
    let cluster = Cluster::homogeneous(device, devices, &catalogue).unwrap();
    let costs = CostModel::new(&cluster, &catalogue).unwrap();
    let options = SearchOptions { memory_bytes: memory, ..SearchOptions::default() };
    let result = search(graph, &costs, &options);
    eprintln!(
        "== {name} {} nodes on {devices} {device} {memory:?}: {:?}",
        graph.nodes.len(),
        t.elapsed()
    );
    let result = match result {
        Ok(r) => r,
        Err(e) => {
            eprintln!("{e}");
            return;
        }
    };
    for log in &result.log {
        eprintln!(
            "  {} {:?} total {:?} bound {} posing {:?} solving {:?} pricing {:?}",
            log.mesh, log.size, log.total_us, log.bound_us, log.posing, log.solving, log.pricing
        );
    }
    for b in &result.baselines {
        eprintln!("  {b:?}");
    }
    eprintln!("  {} {:?} {}", result.strategy.mesh, result.evaluation, result.certificate.status);
    eprintln!("  gap {} {:?}", result.certificate.gap, result.certificate.space);
}

#[test]
fn explore() {
    let g = gpt(12, 768, 8, 128);
    show("gpt2 b8", &g, "H100", 8, None);
    let g = gpt(12, 768, 1, 128);
    show("gpt2 b1", &g, "H100", 8, None);
    show("gpt2 b1", &g, "H100", 8, Some(100_000_000));
    let g = gpt(2, 4096, 8, 1024);
    show("gpt 4096", &g, "H100", 8, None);
    show("gpt 4096", &g, "H100", 8, Some(900_000_000));
    show("gpt 4096", &g, "H100", 8, Some(300_000_000));
    show("gpt 4096", &g, "H100", 16, None);
}
