//! Any legal strategy computes what the graph says: random graphs, meshes, strategies and prices,
//! partitioned, verified, and run on as many CPU ranks as the mesh has.

use crate::random;

use planc_codegen::{MemoryReport, partition};
use planc_ir::program::verify::verify;
use planc_ir::program::{Instr, Kernel, Program};
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{AxisUse, Strategy};
use planc_ir::{DType, Tensor};
use proptest::prelude::*;
use random::{Case, Draw, Prices};
use std::collections::BTreeSet;

/// Reordered sums of numbers of this size differ by less.
fn assert_close(name: &str, found: &Tensor, expected: &Tensor) {
    assert_eq!(found.ty(), expected.ty(), "{name}");
    let dtype = expected.dtype();
    let (found, expected) = (found.to_f64s(), expected.to_f64s());
    let rounding = if dtype == DType::F32 { 1e-6 } else { 1e-9 };
    let scale = expected.iter().filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
    for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
        let same = f.to_bits() == e.to_bits()
            || (f.is_nan() && e.is_nan())
            || (f - e).abs() <= rounding * scale;
        assert!(same, "{name}[{i}] is {f}, expected {e}");
    }
}

fn draw(choices: &[u32]) -> (Case, Strategy, Program) {
    let d = &mut Draw::new(choices);
    let mesh = random::mesh(d);
    let prices = Prices::draw(d);
    let case = Case::draw(d);
    let strategy = random::strategy(d, &case.graph, &mesh);

    let program = partition(&case.graph, &strategy, &prices).expect("a legal strategy");
    assert_eq!(program, partition(&case.graph, &strategy, &prices).expect("again"));
    (case, strategy, program)
}

fn check(choices: &[u32]) {
    let (case, _, program) = draw(choices);
    assert_eq!(verify(&program), [], "{program:?}");
    let memory = MemoryReport::of(&program).expect("small");
    assert!(memory.bound_bytes() <= memory.arena_bytes);

    let found = case.run(&program).unwrap_or_else(|e| panic!("{e}\n{program:?}"));
    let expected = case.reference();
    assert_eq!(found.len(), expected.len());
    for ((name, found), expected) in found.iter().zip(&expected) {
        assert_close(name, found, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_strategy_computes_what_the_graph_says(
        choices in prop::collection::vec(any::<u32>(), 0..160)
    ) {
        check(&choices);
    }
}

/// The property is about something: the drawn cases split every op, in every way, and take every step.
#[test]
fn random_cases_reach_everything() {
    let mut splits = BTreeSet::new();
    let mut linear = BTreeSet::new();
    let mut steps = BTreeSet::new();
    let mut updates = BTreeSet::new();
    let mut state = 1u64;
    for _ in 0..800 {
        let choices: Vec<u32> = (0..160)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u32
            })
            .collect();
        let (case, strategy, program) = draw(&choices);
        for (node, op) in case.graph.nodes.iter().zip(&strategy.ops) {
            for usage in &op.axes {
                match usage {
                    AxisUse::Split(_) => splits.insert(node.op.name()),
                    AxisUse::Linear(_) => linear.insert(node.op.name()),
                    AxisUse::Replicate => false,
                };
            }
        }
        for c in &program.carried {
            let makes = |i: &&Instr| matches!(i, Instr::Kernel { outputs, .. } if outputs.contains(&c.next));
            let maker = program.instrs.iter().find(makes);
            updates.insert(match maker {
                Some(Instr::Kernel { kernel: Kernel::OptimizerStep(_), .. }) => "in place",
                _ => "moved",
            });
        }
        for instr in &program.instrs {
            if let Instr::Reshard { step, .. } = instr {
                steps.insert(match step {
                    Step::AllReduce { .. } => "all-reduce",
                    Step::ReduceScatter { .. } => "reduce-scatter",
                    Step::AllGather { .. } => "all-gather",
                    Step::AllToAll { .. } => "all-to-all",
                    Step::Slice { .. } => "slice",
                    Step::ToPartial { .. } => "to-partial",
                });
            }
        }
    }
    let list = |set: BTreeSet<&str>| set.into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(
        list(splits),
        "AttentionGrad Concat Conv ConvTranspose ConvWeightGrad Dropout Expand Fill Gather GatherGrad GatherNd \
         GroupNormGrad Lrn Map MatMul MixtureOfExperts MixtureOfExpertsGrad Normalize NormalizeGrad OptimizerStep \
         Pad Pool PoolGrad Reduce Reshape Slice \
         Softmax Transpose"
    );
    assert_eq!(
        list(linear),
        "AttentionGrad Concat Conv ConvTranspose ConvWeightGrad Dropout Expand Gather GatherGrad GatherNd \
         GroupNormGrad Map MatMul MixtureOfExperts MixtureOfExpertsGrad NormalizeGrad Pad Pool PoolGrad Reduce Reshape Slice Transpose"
    );
    assert_eq!(list(updates), "in place moved");
    assert_eq!(list(steps), "all-gather all-reduce all-to-all reduce-scatter slice to-partial");
}
