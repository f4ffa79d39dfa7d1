//! What the search says of a strategy against the program that carries it out.

use super::super::{SearchOptions, search};
use super::transformers::gpt;
use super::{SmallCosts, graphs};
use planc_codegen::MemoryReport;
use planc_ir::Graph;
use planc_ir::program::Instr;
use planc_ir::sharding::Mesh;

fn check(graph: &Graph, costs: &SmallCosts, options: &SearchOptions) {
    let result = search(graph, costs, options).unwrap();
    let program = planc_codegen::partition(graph, &result.strategy, costs).unwrap();
    let held = MemoryReport::of(&program).unwrap();
    let said = &result.evaluation;
    assert_eq!(held.weight_bytes, said.weight_bytes, "{}", graph.name);
    assert!(held.bound_bytes() <= said.memory_bytes, "{}: {held:?} {said:?}", graph.name);
    let steps = program.instrs.iter().filter(|i| matches!(i, Instr::Reshard { .. })).count() as u64;
    assert!(steps <= said.steps.values().sum::<u64>(), "{}: {steps} {said:?}", graph.name);
}

#[test]
fn the_program_holds_no_more_than_the_search_says() {
    let costs = SmallCosts::default();
    for seed in 0..60 {
        let graph = graphs::random(seed, 10);
        for mesh in [Mesh::new([("a", 4)]), Mesh::new([("a", 2), ("b", 2)])] {
            let options = SearchOptions { mesh: Some(mesh), ..SearchOptions::default() };
            check(&graph, &costs, &options);
        }
    }
}

#[test]
fn nor_does_a_transformer() {
    let graph = gpt(3, 256, 4, 64);
    for latency_us in [0.1, 100.0] {
        let costs = SmallCosts { latency_us, ..SmallCosts::default() };
        check(&graph, &costs, &SearchOptions::default());
    }
}
