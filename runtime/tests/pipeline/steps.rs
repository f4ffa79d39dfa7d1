//! Steps in stages against the reference evaluation of the whole step.

use super::cut::{Cut, cut, places};
use super::model::{Bytes, MICRO_BATCHES, some_strategy};
use super::orders::{Kind, orders};
use super::tied::{PARTS, batches, step};
use planc_codegen::{MemoryReport, overlap, stage};
use planc_ir::interp::evaluate_step;
use planc_ir::plan::{Channel, Stage};
use planc_ir::program::{Instr, Pass};
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::weights::InMemory;
use planc_ir::{Graph, Tensor, ValueDef, WeightSource};
use planc_runtime::Executor;
use std::collections::BTreeMap;

/// The stages of the tied model, and the channels between them.
pub struct Pipeline {
    pub stages: Vec<Stage>,
    pub channels: Vec<Channel>,
}

pub fn mesh(n: u64) -> Mesh {
    match n % 4 {
        0 => Mesh::new([("a", 1)]),
        1 => Mesh::new([("a", 2)]),
        2 => Mesh::new([("a", 3)]),
        _ => Mesh::new([("a", 2), ("b", 2)]),
    }
}

/// For each part of the model the part of the pipeline that it belongs to, and for each of those its stage.
pub type Deal = ([usize; PARTS], &'static [usize]);

/// Two stages that hold half each.
pub const HALVES: Deal = ([0, 0, 1, 1], &[0, 1]);

/// Stages on meshes and with strategies that a seed decides; with communication beside compute where it is odd.
pub fn pipeline((parts, stage_of): Deal, kind: Kind, seed: u64) -> Pipeline {
    let (whole, part_of) = step();
    let part_of: Vec<usize> = part_of.into_iter().map(|part| parts[part]).collect();
    let count = stage_of.iter().max().unwrap() + 1;
    let (cuts, channels) = cut(&whole, &places(&part_of, stage_of), count);
    let orders = orders(kind, stage_of, MICRO_BATCHES);
    let mut first_rank = 0;
    let stages =
        cuts.iter().zip(orders).enumerate().map(|(s, (Cut { graph, chunks, .. }, order))| {
            assert_eq!(planc_ir::verify::verify(graph), []);
            let mesh = mesh(seed.wrapping_mul(7).wrapping_add(s as u64 * (seed % 3)));
            let strategy = match seed {
                0 => Strategy::replicated(graph, mesh.clone()),
                _ => some_strategy(graph, &mesh, seed * 31 + s as u64),
            };
            let mut program = stage(graph, &strategy, &Bytes, chunks, &order).unwrap();
            if seed % 2 == 1 {
                program = overlap(graph, &program, 64, &|_, _| 1.0).unwrap();
            }
            let stage = Stage { first_rank, strategy: Vec::new(), program };
            first_rank += mesh.ranks();
            stage
        });
    Pipeline { stages: stages.collect(), channels }
}

pub fn weights(graph: &Graph) -> BTreeMap<String, Tensor> {
    let inline = |v: &planc_ir::Value| match &v.def {
        ValueDef::Weight(WeightSource::Inline(t)) | ValueDef::Constant(t) => {
            Some((v.name.clone(), (**t).clone()))
        }
        _ => None,
    };
    graph.values.iter().filter_map(inline).collect()
}

fn close(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(found.ty(), expected.ty(), "{what}");
    for (f, e) in found.to_f64s().iter().zip(expected.to_f64s()) {
        assert!((f - e).abs() <= 2e-6 * (1.0 + e.abs()), "{what}: {f} instead of {e}");
    }
}

/// Runs two steps and compares outputs, state and memory.
fn compare(deal: Deal, kind: Kind, seed: u64) {
    let (mut whole, _) = step();
    let Pipeline { stages, channels } = pipeline(deal, kind, seed);
    let given = weights(&whole);
    let arenas: Vec<u64> = stages
        .iter()
        .map(|s| {
            let report = MemoryReport::of(&s.program).unwrap();
            assert!(report.arena_bytes >= report.bound_bytes());
            report.arena_bytes
        })
        .collect();
    let case = format!("{deal:?}, {kind:?}, seed {seed}");
    let mut executor = Executor::of_stages(stages, &channels, &given, &given)
        .unwrap_or_else(|e| panic!("{case}: {e}"));
    for number in 0..2 {
        let batches = batches(number);
        let inputs: Vec<Vec<Tensor>> = batches
            .iter()
            .map(|b| whole.inputs.iter().map(|&v| b[&whole.value(v).name].clone()).collect())
            .collect();
        let expected = evaluate_step(&whole, &inputs, &InMemory).unwrap();
        let found: BTreeMap<String, Tensor> =
            executor.step(&batches).unwrap_or_else(|e| panic!("{case}: {e}")).into_iter().collect();
        for (&v, tensor) in whole.outputs.iter().zip(&expected.outputs) {
            let name = &whole.value(v).name;
            close(&found[name], tensor, &format!("{case}, step {number}: {name}"));
        }
        for (name, tensor) in expected.next {
            let bytes = executor.weight_bytes(&name).unwrap();
            let state = Tensor::from_bytes(tensor.ty().clone(), &bytes).unwrap();
            close(&state, &tensor, &format!("{case}, step {number}: {name}"));
            let value = whole.values.iter_mut().find(|v| v.name == name).unwrap();
            value.def = ValueDef::Weight(WeightSource::Inline(tensor.into()));
        }
    }
    let used: Vec<u64> = executor.memory_of_stages().iter().map(|m| m.arena_bytes).collect();
    assert_eq!(used, arenas, "{case}");
}

/// Ways of dealing out the model: one stage, chains, interleaved, and there and back.
const DEALS: [Deal; 8] = [
    ([0, 0, 0, 0], &[0]),
    HALVES,
    ([0, 1, 1, 1], &[0, 1]),
    ([0, 0, 1, 2], &[0, 1, 2]),
    ([0, 1, 2, 3], &[0, 1, 2, 3]),
    ([0, 1, 2, 3], &[0, 1, 0, 1]),
    ([0, 1, 2, 3], &[0, 1, 1, 0]),
    ([0, 1, 2, 3], &[1, 2, 0, 1]),
];

#[test]
fn known_orders_compute_the_step() {
    for deal in DEALS {
        for kind in [Kind::Sequential, Kind::Fill, Kind::InTurn] {
            for seed in 0..4 {
                compare(deal, kind, seed);
            }
        }
    }
}

#[test]
fn random_orders_compute_the_step() {
    for (n, deal) in (0..12).flat_map(|n| DEALS.map(move |d| (n, d))) {
        for weights in [false, true] {
            compare(deal, Kind::Random { seed: n, weights }, n);
        }
    }
}

/// In turn, the last stage keeps what one micro-batch needs, the first what all under way need.
#[test]
fn copies_are_those_under_way() {
    for (kind, expected) in
        [(Kind::Sequential, [1, 1]), (Kind::Fill, [3, 3]), (Kind::InTurn, [2, 1])]
    {
        let Pipeline { stages, .. } = pipeline(HALVES, kind, 0);
        let most = |s: &Stage| s.program.buffers.iter().map(|b| b.copies).max().unwrap();
        assert_eq!(stages.iter().map(most).collect::<Vec<_>>(), expected, "{kind:?}");
    }
}

/// What makes a gradient of a weight alone is put off to the pass for weights; what others wait for is not.
#[test]
fn gradients_of_weights_are_apart() {
    let kind = Kind::Random { seed: 1, weights: true };
    let Pipeline { stages, .. } = pipeline(([0, 1, 2, 3], &[0, 1, 2, 3]), kind, 0);
    let program = &stages[1].program;
    let mut begin = 0;
    let passes: Vec<(Pass, Vec<&str>)> = program
        .passes
        .iter()
        .map(|p| {
            let instrs = &program.instrs[std::mem::replace(&mut begin, p.end)..p.end];
            let what = instrs.iter().map(|instr| match instr {
                Instr::Kernel { node, .. } => node.as_str(),
                Instr::Send { .. } => "send",
                Instr::Receive { .. } => "receive",
                _ => "other",
            });
            (p.pass, what.collect())
        })
        .collect();
    assert_eq!(
        passes,
        [
            (Pass::Forward, vec!["receive", "y", "send"]),
            (Pass::Backward, vec!["receive", "da", "send"]),
            (Pass::Weights, vec!["raw2", "g2"]),
        ]
    );
}
