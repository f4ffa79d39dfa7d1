//! For a GPT block with a large hidden size on 8 H100 in one node, the search finds by itself what
//! Megatron-LM does by hand: columns then rows, heads split, one all-reduce an attention and one an MLP.

use planc::report::plan_report;
use planc::search::SearchOptions;
use planc_ir::program::Instr;
use planc_ir::sharding::reshard::Step;
use planc_ir::{DType, Graph, NodeId};
use planc_models::{Config, Size, build, write};
use planc_tests::{cost_model, plan};

const LAYERS: u64 = 4;

fn find<'a>(graph: &'a Graph, layer: u64, suffix: &str) -> impl Iterator<Item = NodeId> + 'a {
    let name = format!("/h.{layer}/{suffix}/MatMul");
    graph.node_ids().filter(move |&id| graph.node(id).name == name)
}

#[test]
fn columns_then_rows_with_one_all_reduce_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gpt.onnx");
    let config = Config { batch: Some(1), dtype: DType::F16, ..Config::default() }
        .with(Size::Layers, LAYERS)
        .with(Size::Hidden, 12288)
        .with(Size::Heads, 96)
        .with(Size::Seq, 512);
    write(&build("gpt", &config).expect("builds"), &path).expect("written");
    let cost = cost_model("H100", 8);
    let (_, compiled) = plan(&path, &[], &cost, &SearchOptions::default());
    let (graph, strategy) = (&compiled.raised.graph, &compiled.stages[0].search.strategy);

    // Which factor each axis splits, by name; every axis the same one.
    let split = |layer: u64, suffix: &str| -> Vec<&'static str> {
        let ids: Vec<NodeId> = find(graph, layer, suffix).collect();
        assert_eq!(ids.len(), 1, "{layer} {suffix}");
        let rule = graph.rule(ids[0]);
        let axes = &strategy.ops[ids[0].index()].axes;
        axes.iter()
            .map(|usage| match usage {
                planc_ir::sharding::AxisUse::Split(f) => rule.factors[f.index()].name,
                other => panic!("{layer} {suffix}: {other:?}"),
            })
            .collect()
    };
    for layer in 0..LAYERS {
        for (suffix, factor) in [
            ("attn/q", "n"),
            ("attn/k", "n"),
            ("attn/v", "n"),
            ("attn/proj", "k"),
            ("mlp/fc", "n"),
            ("mlp/proj", "k"),
        ] {
            assert!(split(layer, suffix).iter().all(|&f| f == factor), "{layer} {suffix}");
        }
    }
    let program = &compiled.plan.stages[0].program;
    let mut all_reduces = 0;
    for instr in &program.instrs {
        if let Instr::Reshard { step, input, .. } = instr
            && step.is_collective()
        {
            let value = &program.buffer(*input).name;
            assert!(matches!(step, Step::AllReduce { .. }), "{value}: {step:?}");
            all_reduces += 1;
        }
    }
    // One an attention and one an MLP; one more after the embedding, whose table is split.
    assert_eq!(all_reduces, 2 * LAYERS + 1);
    insta::assert_snapshot!(plan_report(&cost, &compiled, true));
}
