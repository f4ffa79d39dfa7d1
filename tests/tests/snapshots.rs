//! The plans of six models on two clusters, as a person reads them: what the search decides shows in
//! review.

use planc::report::plan_report;
use planc::search::SearchOptions;
use planc_cost_model::{Catalogue, Cluster, CostModel};
use planc_ir::plan::Plan;
use planc_models::{Config, Size, build, write};
use planc_tests::{plan, root};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A model of the project's own, its dimensions bound.
fn own(name: &str) -> PathBuf {
    root().join("tests/data/models").join(name).join("model.onnx")
}

fn built(folder: &Path, family: &str, sizes: &[(Size, u64)]) -> PathBuf {
    let config = sizes.iter().fold(Config::default(), |c, &(size, n)| c.with(size, n));
    let path = folder.join(format!("{family}.onnx"));
    write(&build(family, &config).expect("builds"), &path).expect("written");
    path
}

/// The report, and then every node's strategy, equal runs of lines once.
fn snapshot(path: &Path, bind: &[(&str, u64)], cluster: &str) -> String {
    let catalogue = Catalogue::shipped().expect("shipped profiles");
    let cluster = Cluster::preset(cluster, &catalogue).expect("a preset");
    let cost = CostModel::new(&cluster, &catalogue).expect("cost model");
    let bind: Vec<(String, u64)> = bind.iter().map(|&(n, x)| (n.to_string(), x)).collect();
    let options = SearchOptions::default();
    let (_, compiled) = plan(path, &bind, &cost, &options);
    let json = compiled.plan.to_json().expect("JSON");
    let (_, again) = plan(path, &bind, &cost, &options);
    assert_eq!(json, again.plan.to_json().expect("JSON"), "two runs give the same bytes");
    assert_eq!(Plan::from_json(&json).expect("reads back").to_json().expect("JSON"), json);

    let mut text = plan_report(&cost, &compiled, true);
    let program = &compiled.plan.stages[0].program;
    let _ = writeln!(
        text,
        "program     {} buffers, {} instructions, arena {} bytes",
        program.buffers.len(),
        program.instrs.len(),
        program.arena_bytes
    );
    text
}

fn check(name: &str, path: &Path, bind: &[(&str, u64)]) {
    for cluster in ["dgx-a100:1", "dgx-h100:2"] {
        let label = format!("{name}@{}", cluster.replace(':', "x"));
        insta::assert_snapshot!(label, snapshot(path, bind, cluster));
    }
}

#[test]
fn gpt2_exported() {
    check("gpt2-dynamo", &own("gpt2-dynamo"), &[("batch", 8), ("seq", 16)]);
}

#[test]
fn llama_exported() {
    check("llama-dynamo", &own("llama-dynamo"), &[("batch", 8), ("seq", 16)]);
}

#[test]
fn resnet18_exported() {
    check("resnet18-dynamo", &own("resnet18-dynamo"), &[("batch", 64)]);
}

#[test]
fn dlrm_exported() {
    check("dlrm-dynamo", &own("dlrm-dynamo"), &[("batch", 4096)]);
}

#[test]
fn gpt_large_built() {
    let folder = tempfile::tempdir().expect("a folder");
    let sizes = [(Size::Layers, 4), (Size::Hidden, 12288), (Size::Heads, 96), (Size::Seq, 2048)];
    let path = built(folder.path(), "gpt", &sizes);
    check("gpt-12288", &path, &[("batch", 1)]);
}

#[test]
fn mlp_built() {
    let folder = tempfile::tempdir().expect("a folder");
    let sizes = [(Size::Layers, 8), (Size::Hidden, 16384)];
    let path = built(folder.path(), "mlp", &sizes);
    check("mlp-16384", &path, &[("batch", 4096)]);
}
