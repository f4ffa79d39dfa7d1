//! `cargo bench -p planc --bench plan`: how long importing and searching take, how large the integer
//! programs are, and how far the answers are from the enumerated optimum.
//!
//! Prints tables; each time is the median of a few runs.

#![allow(clippy::print_stdout)] // a benchmark's purpose

use planc::search::evaluate::evaluate;
use planc::search::solver::{Backend, Limits};
use planc::search::{SearchOptions, search};
use planc_cost_model::{Catalogue, Cluster, CostModel};
use planc_ir::graph::{ValueDef, WeightSource};
use planc_ir::onnx::{ImportOptions, export, import, import_bytes};
use planc_ir::ops::matmul::MatMul;
use planc_ir::sharding::{AxisId, Mesh, OpStrategy, Sharding, Strategy};
use planc_ir::{DType, Graph, TensorType, ValueId};
use planc_models::{Config, Size, build};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RUNS: usize = 3;

fn main() {
    imports();
    searches();
    optima();
}

/// The median time of some runs, and the last result.
fn timed<T>(mut f: impl FnMut() -> T) -> (Duration, T) {
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..RUNS {
        let started = Instant::now();
        last = Some(f());
        times.push(started.elapsed());
    }
    times.sort_unstable();
    (times[RUNS / 2], last.expect("there are runs"))
}

fn ms(d: Duration) -> String {
    format!("{:.1} ms", d.as_secs_f64() * 1e3)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Import of the largest full-size model.
fn imports() {
    println!("import");
    let plan = root().join("../shared/models/plan");
    let Ok(entries) = std::fs::read_dir(&plan) else {
        println!("  skipped: ../shared/models/plan is absent\n");
        return;
    };
    let mut files: Vec<(u64, PathBuf)> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "onnx"))
        .filter_map(|p| Some((p.metadata().ok()?.len(), p)))
        .collect();
    files.sort();
    let bind = |names: &[String]| names.iter().map(|n| (n.clone(), 2)).collect();
    for (bytes, path) in files.iter().rev().take(3) {
        let name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
        let first = import(path, &ImportOptions::default());
        let options = match first {
            Err(planc_ir::onnx::ImportError::Unbound { names }) => {
                ImportOptions { bind: bind(&names), ..ImportOptions::default() }
            }
            _ => ImportOptions::default(),
        };
        let (time, model) = timed(|| import(path, &options));
        let what = match model {
            Ok(model) => format!("{} nodes", model.graph.nodes.len()),
            Err(e) => format!("not imported: {}", e.to_string().lines().next().unwrap_or("")),
        };
        println!("  {name:<40} {:>8} kB  {:>10}  {what}", bytes / 1000, ms(time));
    }
    println!();
}

/// Search over all meshes of 8 H100.
fn searches() {
    println!("search, 8 x H100");
    println!(
        "  {:<24} {:>6} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8}  certificate",
        "model", "nodes", "time", "step", "meshes", "repeats", "columns", "rows"
    );
    for (name, graph) in models() {
        let cost = cost_model(8);
        let (time, found) = timed(|| search(&graph, &cost, &SearchOptions::default()));
        match found {
            Ok(found) => {
                let space = |key: &str| found.certificate.space.get(key).copied().unwrap_or(0);
                println!(
                    "  {name:<24} {:>6} {:>10} {:>7.0} µs {:>8} {:>8} {:>8} {:>8}  {}, gap {:.4} %",
                    graph.nodes.len(),
                    ms(time),
                    found.evaluation.total_us,
                    space("meshes"),
                    space("repeats"),
                    space("columns"),
                    space("rows"),
                    found.certificate.status,
                    found.certificate.gap * 100.0,
                );
            }
            Err(e) => println!("  {name:<24} {e}"),
        }
    }
    println!();
}

fn cost_model(devices: u32) -> CostModel {
    let catalogue = Catalogue::shipped().expect("the shipped profiles are valid");
    let cluster = Cluster::homogeneous("H100", devices, &catalogue).expect("a cluster");
    CostModel::new(&cluster, &catalogue).expect("a cost model")
}

fn models() -> Vec<(String, Graph)> {
    let exported = [
        ("gpt2-dynamo", &[("batch", 8), ("seq", 16)][..]),
        ("gpt2-legacy", &[("batch", 8), ("seq", 16)]),
        ("llama-dynamo", &[("batch", 8), ("seq", 16)]),
        ("bert-legacy", &[("batch", 8), ("seq", 16)]),
        ("vit-hf-dynamo", &[("batch", 8)]),
        ("resnet18-dynamo", &[("batch", 64)]),
        ("mobilenetv2-legacy", &[("batch", 64)]),
        ("dlrm-dynamo", &[("batch", 4096)]),
    ];
    let mut models = Vec::new();
    for (name, bind) in exported {
        let path = root().join("tests/data/models").join(name).join("model.onnx");
        let bind = bind.iter().map(|&(n, x)| (n.to_string(), x)).collect();
        let model = import(&path, &ImportOptions { bind, ..ImportOptions::default() })
            .expect("the model imports");
        models.push((name.to_string(), model.graph));
    }
    for layers in [2, 12, 96] {
        models.push((format!("gpt {layers} layers, 4096"), gpt(layers, 4096)));
    }
    models
}

fn gpt(layers: u64, hidden: u64) -> Graph {
    let config = Config { batch: Some(8), ..Config::default() }
        .with(Size::Layers, layers)
        .with(Size::Hidden, hidden)
        .with(Size::Heads, hidden / 128)
        .with(Size::Seq, 1024);
    let proto = build("gpt", &config).expect("the model builds");
    import_bytes(export::encode(&proto), &ImportOptions::default()).expect("it imports").graph
}

/// Graphs small enough to try every strategy: both backends against the enumerated optimum.
fn optima() {
    println!("optimum, {{device: 2}}, gap 0: HiGHS, microlp, every strategy tried");
    for (hidden, batch) in [(256, 64), (4096, 16), (8192, 4096)] {
        let ty = |rows, columns| TensorType::new(DType::F32, [rows, columns]);
        let mut graph = Graph::new("two layers");
        let mut x = graph.input("x", ty(batch, hidden));
        for (i, name) in ["a", "b"].into_iter().enumerate() {
            let weight = ValueDef::Weight(WeightSource::External {
                location: "absent".into(),
                offset: 0,
                bytes: hidden * hidden * 4,
            });
            let weight = graph.add_value(format!("w{i}"), ty(hidden, hidden), weight);
            let product = MatMul { trans_a: false, trans_b: false };
            let y = graph.push(name, product.into(), &[x, weight], &[name]).expect("it fits");
            x = y[0];
        }
        graph.outputs.push(x);
        let cost = cost_model(2);
        let us = |backend| {
            let limits = Limits { relative_gap: 0.0, ..Limits::default() };
            let options = SearchOptions { backend, limits, ..SearchOptions::default() };
            search(&graph, &cost, &options).expect("there is a plan").evaluation.total_us
        };
        let (highs, microlp) = (us(Backend::Highs), us(Backend::Microlp));
        let (count, least) = enumerate(&graph, &cost);
        println!(
            "  {batch} x {hidden} x {hidden} x {hidden}: {highs:.3} µs, {microlp:.3} µs, {least:.3} µs of {count}; ratio {:.9}",
            highs / least
        );
    }
}

/// The number of strategies on one axis of two, and the time of the best.
fn enumerate(graph: &Graph, cost: &CostModel) -> (usize, f64) {
    let mesh = Mesh::new([("device", 2)]);
    let homes = |v: ValueId| -> Vec<Sharding> {
        let whole = Sharding::replicated(graph.ty(v).rank());
        let split = (0..whole.dims.len()).map(|d| {
            let mut s = whole.clone();
            s.dims[d].axes.push(AxisId(0));
            s
        });
        split.chain([whole.clone()]).collect()
    };
    let loaded: Vec<ValueId> = graph
        .value_ids()
        .filter(|&v| !matches!(graph.value(v).def, ValueDef::Node { .. }))
        .collect();
    let ops = graph.node_ids().map(|id| graph.rule(id).axis_uses());
    let ops = ops.fold(vec![vec![]], |all: Vec<Vec<OpStrategy>>, uses| {
        longer(&all, &uses, |u| OpStrategy { axes: vec![*u] })
    });
    let homes = loaded
        .iter()
        .fold(vec![vec![]], |all: Vec<Vec<Sharding>>, &v| longer(&all, &homes(v), Clone::clone));
    let (mut count, mut least) = (0, f64::INFINITY);
    for ops in &ops {
        for homes in &homes {
            let home = |v: ValueId| match loaded.iter().position(|&l| l == v) {
                Some(i) => homes[i].clone(),
                None => Sharding::replicated(graph.ty(v).rank()),
            };
            let strategy = Strategy::from_ops(graph, mesh.clone(), ops.clone(), home);
            let Ok(found) = strategy.map(|s| evaluate(graph, &s, cost)) else { continue };
            count += 1;
            least = found.map_or(least, |e| least.min(e.total_us));
        }
    }
    (count, least)
}

/// Every list with every choice appended.
fn longer<C, T: Clone>(all: &[Vec<T>], choices: &[C], make: impl Fn(&C) -> T) -> Vec<Vec<T>> {
    all.iter().flat_map(|list| choices.iter().map(|c| [&list[..], &[make(c)]].concat())).collect()
}
