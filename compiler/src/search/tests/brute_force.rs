//! The search against all strategies there are, priced by the evaluator.

use super::super::evaluate::evaluate;
use super::super::solver::{Backend, Limits};
use super::super::{SearchError, SearchOptions, SearchResult, search};
use super::{SmallCosts, graphs};
use planc_ir::sharding::{AxisUse, Mesh, OpStrategy, Sharding, Strategy};
use planc_ir::{Graph, ValueDef, ValueId};

/// The most strategies that are tried.
const MOST: usize = 3_000;

/// Every strategy of a graph on a mesh: each legal use of each axis by each node, each home that some
/// reader could need for each loaded value. Its own enumeration, from the factor rules alone.
/// Returns false, having visited none, if there are more than [`MOST`].
fn all_strategies(graph: &Graph, mesh: &Mesh, mut visit: impl FnMut(&Strategy)) -> bool {
    let mut lists: Vec<Vec<OpStrategy>> = Vec::new();
    let mut homes: Vec<Vec<Sharding>> =
        graph.values.iter().map(|v| vec![Sharding::replicated(v.ty.rank())]).collect();
    let mut yields: Vec<Vec<Vec<Sharding>>> = Vec::new();
    for id in graph.node_ids() {
        let (ins, outs) = (graph.input_types(id), graph.output_types(id));
        let rule = graph.node(id).op.rule(&ins, &outs);
        let in_shapes: Vec<&[u64]> = ins.iter().map(|t| t.shape.as_slice()).collect();
        let out_shapes: Vec<&[u64]> = outs.iter().map(|t| t.shape.as_slice()).collect();
        let uses = rule.axis_uses();
        let combinations = uses.len().pow(mesh.rank() as u32);
        let (mut list, mut results) = (Vec::new(), Vec::new());
        for mut n in 0..combinations {
            let axes: Vec<AxisUse> = (0..mesh.rank())
                .map(|_| {
                    let u = uses[n % uses.len()];
                    n /= uses.len();
                    u
                })
                .collect();
            let strategy = OpStrategy { axes };
            let parts = |f: usize| -> u64 {
                mesh.axis_ids()
                    .zip(&strategy.axes)
                    .filter(|(_, u)| matches!(u, AxisUse::Split(g) if g.index() == f))
                    .map(|(a, _)| u64::from(mesh.size(a)))
                    .product()
            };
            if (0..rule.factors.len()).any(|f| parts(f) > rule.factors[f].size) {
                continue;
            }
            let Some((ins, outs)) = rule.shardings(mesh, &strategy, &in_shapes, &out_shapes) else {
                continue;
            };
            for (v, s) in graph.node(id).inputs.iter().zip(ins) {
                let home = Sharding { dims: s.dims, partial: Vec::new() };
                if !homes[v.index()].contains(&home) {
                    homes[v.index()].push(home);
                }
            }
            list.push(strategy);
            results.push(outs);
        }
        lists.push(list);
        yields.push(results);
    }
    let loaded: Vec<ValueId> = graph
        .value_ids()
        .filter(|&v| !matches!(graph.value(v).def, ValueDef::Node { .. }))
        .collect();
    let sizes: Vec<usize> =
        lists.iter().map(Vec::len).chain(loaded.iter().map(|v| homes[v.index()].len())).collect();
    let mut strategy = Strategy::replicated(graph, mesh.clone());
    let total: usize = sizes.iter().product();
    if total > MOST {
        return false;
    }
    for mut n in 0..total {
        for (i, &size) in sizes.iter().enumerate() {
            let pick = n % size;
            n /= size;
            if i < lists.len() {
                strategy.ops[i] = lists[i][pick].clone();
                for (v, s) in graph.nodes[i].outputs.iter().zip(&yields[i][pick]) {
                    strategy.values[v.index()] = s.clone();
                }
            } else {
                let v = loaded[i - lists.len()];
                strategy.values[v.index()] = homes[v.index()][pick].clone();
            }
        }
        visit(&strategy);
    }
    true
}

/// Price and memory of every strategy that has a price; `None` if there are too many to try.
fn all_prices(graph: &Graph, mesh: &Mesh, costs: &SmallCosts) -> Option<Vec<(f64, u64)>> {
    let mut prices = Vec::new();
    let complete = all_strategies(graph, mesh, |strategy| {
        if let Ok(e) = evaluate(graph, strategy, costs) {
            prices.push((e.total_us, e.memory_bytes));
        }
    });
    complete.then_some(prices)
}

fn best(prices: &[(f64, u64)], limit_bytes: u64) -> Option<f64> {
    let fitting = prices.iter().filter(|p| p.1 <= limit_bytes).map(|p| p.0);
    fitting.min_by(f64::total_cmp)
}

fn options(mesh: &Mesh, backend: Backend, memory_bytes: u64) -> SearchOptions {
    SearchOptions {
        mesh: Some(mesh.clone()),
        backend,
        limits: Limits { relative_gap: 0.0, ..Limits::default() },
        memory_bytes: Some(memory_bytes),
        solver_only: true,
        ..SearchOptions::default()
    }
}

fn agrees(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * b.abs().max(1.0)
}

fn check_certificate(result: &SearchResult, seed: u64) {
    let c = &result.certificate;
    assert!(agrees(c.objective_us, c.evaluated_us), "seed {seed}: {c:?}");
    assert!(agrees(c.evaluated_us, result.evaluation.total_us), "seed {seed}");
    assert!(
        c.bound_us <= c.objective_us && agrees(c.bound_us, c.objective_us),
        "seed {seed}: {c:?}"
    );
}

/// Checks `count` graphs without a limit, then with limits between the least and the most memory.
fn check(first_seed: u64, count: usize, nodes: usize, mesh: &Mesh, backend: Backend) {
    let costs = SmallCosts { devices: mesh.ranks(), ..SmallCosts::default() };
    let (mut tightened, mut better_than_baselines) = (0, 0);
    let graphs = (first_seed..first_seed + 1000).filter_map(|seed| {
        let graph = graphs::random(seed, nodes);
        let prices = all_prices(&graph, mesh, &costs)?;
        Some((seed, graph, prices))
    });
    for (seed, graph, prices) in graphs.take(count) {
        let free = best(&prices, u64::MAX).unwrap();
        let unlimited = options(mesh, backend, u64::MAX);
        let result = search(&graph, &costs, &unlimited).unwrap();
        assert!(agrees(result.evaluation.total_us, free), "seed {seed}: {result:?} against {free}");
        check_certificate(&result, seed);
        assert_eq!(result.certificate.solver, backend.name());
        let eliminated = SearchOptions { solver_only: false, ..unlimited };
        let eliminated = search(&graph, &costs, &eliminated).unwrap();
        assert!(agrees(eliminated.evaluation.total_us, free), "seed {seed}: {eliminated:?}");
        assert_eq!(eliminated.certificate.solver, "elimination");
        let quickest = result.baselines.iter().map(|b| b.total_us).min_by(f64::total_cmp).unwrap();
        assert!(result.evaluation.total_us <= quickest * (1.0 + 1e-9), "seed {seed}");
        better_than_baselines += usize::from(result.evaluation.total_us < quickest - 1e-6);

        let least = prices.iter().map(|p| p.1).min().unwrap();
        for limit in [least, least + (result.evaluation.memory_bytes.saturating_sub(least)) / 2] {
            let expected = best(&prices, limit).unwrap();
            let result = search(&graph, &costs, &options(mesh, backend, limit)).unwrap();
            let found = result.evaluation.total_us;
            assert!(
                agrees(found, expected),
                "seed {seed}, {limit} bytes: {found} against {expected}"
            );
            assert!(result.evaluation.memory_bytes <= limit, "seed {seed}");
            check_certificate(&result, seed);
            let priced = SearchOptions { solver_only: false, ..options(mesh, backend, limit) };
            let result = search(&graph, &costs, &priced).unwrap();
            let found = result.evaluation.total_us;
            assert!(agrees(found, expected), "seed {seed}, priced: {found} against {expected}");
            check_certificate(&result, seed);
            tightened += usize::from(expected > free);
        }
        let error = search(&graph, &costs, &options(mesh, backend, least - 1)).unwrap_err();
        let SearchError::NothingFits { least_bytes, .. } = error else {
            panic!("seed {seed}: {error}")
        };
        assert_eq!(least_bytes, least, "seed {seed}");
    }
    assert!(tightened > 0, "some limit changes the answer");
    assert!(
        better_than_baselines > count / 10,
        "answers often beat all baselines: {better_than_baselines}"
    );
}

#[test]
fn one_axis_of_two() {
    check(0, 120, 3, &Mesh::new([("a", 2)]), Backend::Highs);
}

#[test]
fn one_axis_of_four() {
    check(1000, 100, 3, &Mesh::new([("a", 4)]), Backend::Highs);
}

#[test]
fn two_axes() {
    check(2000, 60, 2, &Mesh::new([("a", 2), ("b", 2)]), Backend::Highs);
}

#[test]
fn microlp() {
    check(3000, 40, 3, &Mesh::new([("a", 2)]), Backend::Microlp);
}

/// Renames nodes and values and appends nodes in another order that respects their operands.
fn permuted(graph: &Graph, seed: u64) -> Graph {
    let mut rng = super::super::request::random::Rng(seed);
    let mut out = Graph::new(graph.name.clone());
    let mut ids: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let mut loaded: Vec<ValueId> = graph
        .value_ids()
        .filter(|&v| !matches!(graph.value(v).def, ValueDef::Node { .. }))
        .collect();
    while !loaded.is_empty() {
        let v = loaded.remove(rng.below(loaded.len()));
        let value = graph.value(v);
        ids[v.index()] = Some(out.add_value(&value.name, value.ty.clone(), value.def.clone()));
    }
    let mut left: Vec<usize> = (0..graph.nodes.len()).collect();
    while !left.is_empty() {
        let ready: Vec<usize> = (0..left.len())
            .filter(|&i| graph.nodes[left[i]].inputs.iter().all(|v| ids[v.index()].is_some()))
            .collect();
        let node = &graph.nodes[left.remove(ready[rng.below(ready.len())])];
        let inputs: Vec<ValueId> = node.inputs.iter().map(|v| ids[v.index()].unwrap()).collect();
        let outputs = out.push(&node.name, node.op.clone(), &inputs, &[]).unwrap();
        for (v, new) in node.outputs.iter().zip(outputs) {
            ids[v.index()] = Some(new);
        }
    }
    out.outputs = graph.outputs.iter().rev().map(|v| ids[v.index()].unwrap()).collect();
    out
}

#[test]
fn the_order_of_nodes_does_not_matter() {
    let mesh = Mesh::new([("a", 2), ("b", 2)]);
    let costs = SmallCosts::default();
    for seed in 500..540 {
        let graph = graphs::random(seed, 8);
        let options = options(&mesh, Backend::Highs, u64::MAX);
        let result = search(&graph, &costs, &options).unwrap();
        let other = search(&permuted(&graph, seed), &costs, &options).unwrap();
        let (a, b) = (result.evaluation.total_us, other.evaluation.total_us);
        assert!(agrees(a, b), "seed {seed}: {a} against {b}");
    }
}

#[test]
fn the_same_input_gives_the_same_answer() {
    let costs = SmallCosts::default();
    for seed in 600..610 {
        let graph = graphs::random(seed, 10);
        let run = || search(&graph, &costs, &SearchOptions::default()).unwrap();
        let (a, b) = (run(), run());
        assert_eq!(a.strategy, b.strategy, "seed {seed}");
        assert_eq!(a.certificate, b.certificate, "seed {seed}");
    }
}
