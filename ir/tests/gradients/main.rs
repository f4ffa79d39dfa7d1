//! The gradient of every op against finite differences of its reference semantics, in f64.

#![allow(clippy::unwrap_used)] // a test may

mod difference;
mod functions;
mod kinks;
#[path = "../random/mod.rs"]
mod random;
#[path = "../samples/mod.rs"]
mod samples;
mod shapes;

use difference::{Case, Tally, check, differentiate, in_type};
use planc_ir::ops::Op;
use planc_ir::{DType, OpError, TensorType};
use random::Random;

/// Why an op has no gradient and needs none.
fn refusal(op: &Op) -> Option<&'static str> {
    match op {
        Op::AttentionGrad(_)
        | Op::ConvWeightGrad(_)
        | Op::CumProdGrad(_)
        | Op::DetGrad(_)
        | Op::GridSampleGrad(_)
        | Op::GridSampleGridGrad(_)
        | Op::GroupNormGrad(_)
        | Op::LinearRecurrenceGrad(_)
        | Op::MixtureOfExpertsGrad(_)
        | Op::NormalizeGrad(_)
        | Op::PoolGrad(_)
        | Op::RecurrenceGrad(_)
        | Op::ResizeGrad(_)
        | Op::RoiAlignGrad(_) => Some("second derivatives are not taken"),
        Op::OptimizerStep(_) => Some("a step is not differentiated through its update"),
        _ => None,
    }
}

fn is_slope(op: &Op) -> bool {
    matches!(op, Op::Map(map) if matches!(map.f, planc_ir::scalar::ScalarFn::Slope(_)))
}

/// The samples of all ops that have something to differentiate.
fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        samples::all().into_iter().map(|s| Case::new(s.op, s.inputs)).collect();
    cases.retain(Case::is_continuous);
    // Linear in the gradient alone: second derivatives are not taken.
    cases.iter_mut().filter(|case| is_slope(&case.op)).for_each(|case| case.known.push(0));
    // Tables hold positions: no gradient flows into them.
    let is_rotary = |case: &&mut Case| matches!(case.op, Op::RotaryEmbedding(_));
    cases.iter_mut().filter(is_rotary).for_each(|case| case.known.extend([1, 2]));
    // Regions are taken to be where they are.
    let is_align = |case: &&mut Case| matches!(case.op, Op::RoiAlign(_));
    cases.iter_mut().filter(is_align).for_each(|case| case.known.push(1));
    cases
}

#[test]
fn every_op_has_the_gradient_that_differences_show() {
    let (mut random, mut tally) = (Random(5), Tally::default());
    for case in cases() {
        let name = case.op.name();
        let result = check(&case, &mut random, &mut tally);
        if let Err(e) = result {
            assert!(matches!(e, OpError::NotDifferentiable { .. }), "{case:?}: {e}");
            let excused = refusal(&case.op).is_some();
            assert!(excused, "{name} needs a gradient, or a reason why it has none: {e}");
        } else {
            assert_eq!(refusal(&case.op), None, "{case:?} has a gradient");
        }
    }
    tally.assert_mostly_compared();
}

#[test]
fn gradients_have_the_type_of_their_values() {
    for case in cases() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            if let Some(case) = in_type(&case, dtype) {
                // Compares the types.
                let _ = differentiate(&case, &case.variables());
            }
        }
    }
}

#[test]
fn what_is_linear_keeps_nothing_for_its_gradient() {
    for case in cases() {
        let types: Vec<TensorType> = case.inputs.iter().map(|t| t.ty().clone()).collect();
        let rule = case.op.rule(&types, &case.result_types());
        for together in &rule.linear {
            let wanted: Vec<bool> = (0..types.len()).map(|i| together.contains(&i)).collect();
            let Ok(d) = differentiate(&case, &wanted) else { continue };
            let mut read = d.graph.nodes[d.forward..].iter().flat_map(|n| &n.inputs);
            let needless = |v| d.results.contains(v) || together.iter().any(|&i| d.inputs[i] == *v);
            assert!(!read.any(needless), "linear in {together:?}: {case:?}");
        }
    }
}
