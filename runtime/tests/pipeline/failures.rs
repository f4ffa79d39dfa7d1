//! What does not fit together is refused before it runs; what fails while it runs ends every stage.

use super::common::f32s;
use super::model::Bytes;
use super::orders::Kind;
use super::steps::{HALVES, Pipeline, pipeline, weights};
use super::tied::{batches, step};
use planc_codegen::{partition, stage};
use planc_ir::ops::{gather::Gather, receive::Receive, send::Send};
use planc_ir::plan::pipeline::{self as stages, Finding as F};
use planc_ir::plan::{Channel, Stage};
use planc_ir::program::verify::{Finding, verify};
use planc_ir::program::{Action, Instr, Pass, Program};
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::{DType, Graph, Tensor, TensorType};
use planc_runtime::{Executor, RunError};
use std::collections::BTreeMap;

fn good() -> Pipeline {
    pipeline(HALVES, Kind::InTurn, 0)
}

/// What is found in the first stage's program after a change.
fn found(change: impl Fn(&mut Program)) -> Vec<Finding> {
    let mut program = good().stages.remove(0).program;
    assert_eq!(verify(&program), []);
    change(&mut program);
    verify(&program)
}

#[test]
fn unsound_programs_of_stages_are_refused() {
    let passes = |f: &[Finding]| matches!(f, [Finding::Passes { .. }]);
    assert!(passes(&found(|p| p.order.truncate(5))));
    assert!(passes(&found(|p| p.order[0].micro_batch = 1)));
    assert!(passes(&found(|p| p.order.swap(0, 1))), "micro-batches out of order");
    assert!(passes(&found(|p| p.order[0].chunk = 9)));
    assert!(passes(&found(|p| p.order[1] = Action { pass: Pass::Weights, ..p.order[1] })));
    assert!(passes(&found(|p| p.micro_batches = None)));
    assert!(passes(&found(|p| p.passes[0].end = usize::MAX)));
    assert!(passes(&found(|p| p.passes.truncate(1))));
    assert!(passes(&found(|p| p.passes.push(p.passes[0]))));
    let swapped = found(|p| {
        let backward = p.order.iter().position(|a| a.pass == Pass::Backward).unwrap();
        let first = p.order.remove(backward);
        p.order.insert(0, first);
    });
    assert!(passes(&swapped), "{swapped:?}");
    // All forward first takes more copies than in turn.
    let fill = found(|p| p.order.sort_by_key(|a| a.pass));
    assert!(fill.iter().all(|f| matches!(f, Finding::Copies { expected: 3, found: 2, .. })));
    assert!(!fill.is_empty());
    for copies in [0, 1, 7, u32::MAX] {
        let fewer = found(|p| {
            for b in p.buffers.iter_mut().filter(|b| b.copies == 2) {
                b.copies = copies;
            }
        });
        assert!(!fewer.is_empty(), "{copies}");
    }
    // What crosses passes may not lie where something else does.
    let moved = found(|p| {
        let crossing = p.buffers.iter().position(|b| b.copies == 2 && b.name == "a").unwrap();
        let other = p.buffers.iter().position(|b| b.name == "w1").unwrap();
        p.buffers[crossing].slot.offset = p.buffers[other].slot.offset;
    });
    assert!(moved.iter().any(|f| matches!(f, Finding::Overlap { .. })), "{moved:?}");
    let without = found(|p| {
        p.passes.clear();
        p.order.clear();
    });
    assert!(without.iter().any(|f| matches!(f, Finding::Copies { expected: 1, found: 2, .. })));
}

#[test]
fn stages_that_do_not_fit_together_are_refused() {
    let found = |change: &dyn Fn(&mut Vec<Stage>, &mut Vec<Channel>)| {
        let Pipeline { mut stages, mut channels } = good();
        assert_eq!(stages::check(&stages, &channels), []);
        change(&mut stages, &mut channels);
        let findings = stages::check(&stages, &channels);
        let given = weights(&step().0);
        let refused = Executor::of_stages(stages, &channels, &given, &given);
        let is_typed = matches!(refused, Err(RunError::Pipeline { .. } | RunError::Program { .. }));
        assert!(is_typed, "{refused:?}");
        findings
    };
    let is = |findings: &[F], is: fn(&F) -> bool| findings.iter().any(is);
    assert_eq!(found(&|s, _| s.clear()), [F::NoStages]);
    assert!(is(&found(&|s, _| s[1].first_rank = 5), |f| matches!(f, F::Ranks { stage: 1, .. })));
    assert!(is(&found(&|_, c| drop(c.pop())), |f| matches!(f, F::UnknownChannel { .. })));
    assert!(is(&found(&|_, c| c[0].to = 7), |f| matches!(f, F::Elsewhere { .. })));
    assert!(is(&found(&|_, c| c.push(c[0].clone())), |f| matches!(f, F::Ends { found: 0, .. })));
    let twice = found(&|s, _| {
        let p = &mut s[0].program;
        let at = p.instrs.iter().position(|i| matches!(i, Instr::Send { .. })).unwrap();
        p.instrs.push(p.instrs[at].clone());
    });
    assert!(is(&twice, |f| matches!(f, F::Ends { found: 2, .. })), "{twice:?}");
}

/// Each of two stages waits for the other.
#[test]
fn stages_that_wait_for_each_other_are_refused() {
    let ty = f32s([4]);
    let relay = |receives: u32, sends: u32| {
        let mut g = Graph::new("relay");
        let x =
            g.push("x", Receive { channel: receives, ty: ty.clone() }.into(), &[], &["x"]).unwrap();
        g.push("send", Send { channel: sends }.into(), &x, &[]).unwrap();
        g
    };
    let stage = |graph: &Graph, first_rank| {
        let strategy = Strategy::replicated(graph, Mesh::new([("a", 2)]));
        let program = partition(graph, &strategy, &Bytes).unwrap();
        Stage { first_rank, strategy: Vec::new(), program }
    };
    let channel = |from, to| Channel { value: "x".into(), from, to };
    let all = vec![stage(&relay(0, 1), 0), stage(&relay(1, 0), 2)];
    let channels = [channel(1, 0), channel(0, 1)];
    let findings = stages::check(&all, &channels);
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings.iter().all(|f| matches!(f, stages::Finding::Deadlock { instr: 0, .. })));
    let given = BTreeMap::new();
    assert!(matches!(
        Executor::of_stages(all, &channels, &given, &given),
        Err(RunError::Pipeline { .. })
    ));
}

/// A rank that fails ends those of its stage and of the stage that waits for it.
#[test]
fn one_failure_ends_all_stages() {
    let mut first = Graph::new("first");
    let x = first.input("x", f32s([4, 6]));
    let i = first.input("i", TensorType::new(DType::I64, [2]));
    let y = first.push("pick", Gather { axis: 0 }.into(), &[x, i], &["y"]).unwrap();
    first.push("send", Send { channel: 0 }.into(), &y, &[]).unwrap();
    let mut second = Graph::new("second");
    let ty = f32s([2, 6]);
    second.outputs = second.push("y", Receive { channel: 0, ty }.into(), &[], &["y"]).unwrap();
    let order = [Action { pass: Pass::Forward, chunk: 0, micro_batch: 0 }];
    let of = |graph: &Graph, first_rank| {
        let strategy = Strategy::replicated(graph, Mesh::new([("a", 2)]));
        let program = stage(graph, &strategy, &Bytes, &[], &order).unwrap();
        Stage { first_rank, strategy: Vec::new(), program }
    };
    let channels = [Channel { value: "y".into(), from: 0, to: 1 }];
    let given = BTreeMap::new();
    let all = vec![of(&first, 0), of(&second, 2)];
    let mut executor = Executor::of_stages(all, &channels, &given, &given).unwrap();
    let x = super::common::numbers(f32s([4, 6]), 3);
    let inputs = |index: i64| -> BTreeMap<String, Tensor> {
        let i = Tensor::new([2], vec![0, index]).unwrap();
        [("x".to_string(), x.clone()), ("i".to_string(), i)].into()
    };
    let rows = executor.run(&inputs(3)).unwrap();
    assert_eq!(rows[0].1.to_f64s()[6..], x.to_f64s()[18..]);
    let failed = executor.run(&inputs(9)).unwrap_err();
    assert!(matches!(failed, RunError::Kernel { rank: 0 | 1, .. }), "{failed}");
    assert_eq!(executor.run(&inputs(3)).unwrap()[0].1, rows[0].1, "and the next run is whole");
}

#[test]
fn a_step_takes_all_its_micro_batches() {
    let Pipeline { stages, channels } = good();
    let given = weights(&step().0);
    let mut executor = Executor::of_stages(stages, &channels, &given, &given).unwrap();
    let failed = executor.step(&batches(0)[..2]).unwrap_err();
    assert!(matches!(failed, RunError::MicroBatches { expected: 3, found: 2 }), "{failed}");
}
