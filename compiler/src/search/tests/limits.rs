//! Memory limits on a model with weights too large for one device.

use super::super::baselines::Baseline;
use super::super::{SearchError, SearchOptions, search};
use super::{SmallCosts, graphs};
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::scalar::ScalarFn;
use planc_ir::{DType, Graph, TensorType};

/// Layers of a wide product and an activation on a batch of 16.
fn tower(layers: usize) -> Graph {
    let mut graph = Graph::new("tower");
    let mut x = graph.input("x", TensorType::new(DType::F32, [16, 64]));
    for i in 0..layers {
        let w = graphs::weight(&mut graph, &format!("w{i}"), &[64, 64]);
        x = graphs::apply(&mut graph, MatMul { trans_a: false, trans_b: false }, &[x, w]);
        x = graphs::apply(&mut graph, Map { f: ScalarFn::Relu }, &[x]);
    }
    graph.outputs.push(x);
    graph
}

#[test]
fn weights_are_split_when_they_must_be() {
    let graph = tower(6);
    let weights = 6 * 64 * 64 * 4;
    // Communication is so dear that data parallelism wins while it fits.
    let costs = SmallCosts { latency_us: 1e4, ..SmallCosts::default() };
    let free = search(&graph, &costs, &SearchOptions::default()).unwrap();
    assert_eq!(free.evaluation.weight_bytes, weights);
    assert!(free.evaluation.steps.is_empty(), "{:?}", free.evaluation.steps);

    let options = SearchOptions { memory_bytes: Some(weights / 2), ..SearchOptions::default() };
    let tight = search(&graph, &costs, &options).unwrap();
    assert!(tight.evaluation.memory_bytes <= weights / 2);
    assert!(tight.evaluation.total_us > free.evaluation.total_us);
    assert!(tight.certificate.space["memory_rows"] > 0);
    let data_parallel =
        tight.baselines.iter().find(|b| b.name == Baseline::DataParallel.name()).unwrap();
    assert!(!data_parallel.fits);
}

#[test]
fn what_does_not_fit_says_what_would() {
    let graph = tower(6);
    let costs = SmallCosts::default();
    let options = SearchOptions { memory_bytes: Some(10_000), ..SearchOptions::default() };
    let error = search(&graph, &costs, &options).unwrap_err();
    let SearchError::NothingFits { limit_bytes, least_bytes, weight_bytes, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*limit_bytes, 10_000);
    assert_eq!(*weight_bytes, 6 * 64 * 64);
    assert!(least_bytes > weight_bytes);
    // What it says is true: a little more memory than that is enough.
    let options = SearchOptions { memory_bytes: Some(*least_bytes), ..SearchOptions::default() };
    assert_eq!(search(&graph, &costs, &options).unwrap().evaluation.memory_bytes, *least_bytes);
}
