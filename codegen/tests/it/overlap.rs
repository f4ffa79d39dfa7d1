//! Communication beside compute changes the order of instructions and nothing else.

use crate::random;

use planc_codegen::{overlap, partition};
use planc_ir::ops::Op;
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::optimizer_step::{OptimizerStep, Rule};
use planc_ir::program::verify::verify;
use planc_ir::program::{Instr, Program};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{
    AxisId, AxisUse, DimSharding, FactorId, Mesh, OpStrategy, Sharding, Strategy,
};
use planc_ir::{Carried, DType, Graph, Phase, Tensor, TensorType, ValueDef, ValueId, WeightSource};
use planc_runtime::Executor;
use proptest::prelude::*;
use random::{Case, Draw, Prices};
use std::collections::BTreeMap;

/// Every kernel takes a microsecond, every step two.
fn time_us(_: &Program, instr: &Instr) -> f64 {
    match instr {
        Instr::Kernel { .. } => 1.0,
        Instr::Reshard { .. } | Instr::Issue { .. } => 2.0,
        Instr::Wait { .. } | Instr::Send { .. } | Instr::Receive { .. } => 0.0,
    }
}

fn issues(program: &Program) -> usize {
    program.instrs.iter().filter(|i| matches!(i, Instr::Issue { .. })).count()
}

/// How many kernels run while an issue is in flight.
fn kernels_beside(program: &Program) -> usize {
    let done = planc_ir::program::streams::done(program);
    let mut until = 0;
    let mut count = 0;
    for (at, instr) in program.instrs.iter().enumerate() {
        match instr {
            Instr::Issue { .. } => until = until.max(done[at]),
            Instr::Kernel { .. } => count += usize::from(at < until),
            _ => {}
        }
    }
    count
}

/// A random case, whose last nodes are an update, with and without overlap.
fn draw(choices: &[u32]) -> (Case, Program, Program) {
    let d = &mut Draw::new(choices);
    let mesh = random::mesh(d);
    let prices = Prices::draw(d);
    let bucket_bytes = d.pick(&[0, 100, 1 << 40]);
    let mut case = Case::draw(d);
    let count = case.graph.nodes.len();
    let update = d.below(count + 1);
    for node in &mut case.graph.nodes[update..] {
        node.phase = Phase::Update;
    }
    let strategy = random::strategy(d, &case.graph, &mesh);
    let program = partition(&case.graph, &strategy, &prices).expect("a legal strategy");
    let overlapped = overlap(&case.graph, &program, bucket_bytes, &time_us).expect("small");
    (case, program, overlapped)
}

fn check(choices: &[u32]) {
    let (case, program, overlapped) = draw(choices);
    assert_eq!(verify(&overlapped), [], "{overlapped:?}");
    let run = |program: &Program| {
        planc_runtime::execute(program, &case.weights, &case.constants, &case.inputs)
            .unwrap_or_else(|e| panic!("{e}\n{program:?}"))
    };
    for ((name, found), (_, expected)) in run(&overlapped).iter().zip(&run(&program)) {
        assert_eq!(found.to_bytes(), expected.to_bytes(), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 800,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_results_stay_bit_by_bit(choices in prop::collection::vec(any::<u32>(), 0..160)) {
        check(&choices);
    }
}

/// The property is about something.
#[test]
fn random_cases_overlap() {
    let mut state = 1u64;
    let mut found = (0, 0);
    for _ in 0..400 {
        let choices: Vec<u32> = (0..160)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u32
            })
            .collect();
        let (_, _, overlapped) = draw(&choices);
        found.0 += issues(&overlapped);
        found.1 += kernels_beside(&overlapped);
    }
    assert!(found.0 > 100 && found.1 > 100, "{found:?}");
}

const LAYERS: usize = 5;
const ROWS: u64 = 4;
const WIDTH: u64 = 8;

/// `x · w0 · w1 …` with its gradients, accumulated over micro-batches if there are several, and momentum.
fn step(micro_batches: u32) -> Graph {
    let mut g = Graph::new("step");
    g.micro_batches = micro_batches;
    let ty = |shape: &[u64]| TensorType::new(DType::F32, shape);
    let square = || ty(&[WIDTH, WIDTH]);
    let push = |g: &mut Graph, phase, name: String, op: Op, operands: &[ValueId]| {
        let made = g.push(&name, op, operands, &[&name]).expect("fits");
        g.nodes.last_mut().expect("pushed").phase = phase;
        made
    };
    let x = g.input("x", ty(&[ROWS, WIDTH]));
    let rate = g.input("rate", ty(&[]));
    let one = g.constant("one", Tensor::scalar(1f32));
    let weight = |g: &mut Graph, name: String| {
        let source = WeightSource::Fill { value: 0.0 };
        g.add_value(&name, square(), ValueDef::Weight(source))
    };
    let weights: Vec<_> = (0..LAYERS).map(|l| weight(&mut g, format!("w{l}"))).collect();
    let moments: Vec<_> = (0..LAYERS).map(|l| weight(&mut g, format!("m{l}"))).collect();
    let product = |trans_a, trans_b| -> Op { MatMul { trans_a, trans_b }.into() };
    let mut hidden = vec![x];
    for (l, &w) in weights.iter().enumerate() {
        let operands = [hidden[l], w];
        hidden.push(
            push(&mut g, Phase::Forward, format!("h{l}"), product(false, false), &operands)[0],
        );
    }
    let mut d = hidden[LAYERS];
    let mut gradients = [x; LAYERS];
    for l in (0..LAYERS).rev() {
        let operands = [hidden[l], d];
        let mut dw =
            push(&mut g, Phase::Backward, format!("dw{l}"), product(true, false), &operands)[0];
        if micro_batches > 1 {
            let sum = g.add_value(format!("sum{l}"), square(), ValueDef::Accumulator);
            let add = Map { f: ScalarFn::Add }.into();
            dw = push(&mut g, Phase::Backward, format!("next{l}"), add, &[sum, dw])[0];
            g.carried.push(Carried { state: sum, next: dw });
        }
        gradients[l] = dw;
        if l > 0 {
            let operands = [d, weights[l]];
            d = push(&mut g, Phase::Backward, format!("d{l}"), product(false, true), &operands)[0];
        }
    }
    let rule = Rule::Sgd { momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false };
    for l in 0..LAYERS {
        let op = OptimizerStep { rule: rule.clone() }.into();
        let operands = [weights[l], gradients[l], rate, one, one, moments[l]];
        let new = push(&mut g, Phase::Update, format!("update{l}"), op, &operands);
        let states = [weights[l], moments[l]];
        g.carried.extend(states.into_iter().zip(new).map(|(state, next)| Carried { state, next }));
    }
    g.outputs = vec![hidden[LAYERS]];
    g
}

const RANKS: u32 = 2;

/// Rows are split; with `sharded`, weights, gradients and state too.
fn data_parallel(g: &Graph, sharded: bool) -> Strategy {
    let ops = g.nodes.iter().map(|n| {
        let usage = match (n.phase, n.op.name()) {
            (Phase::Backward, "MatMul") if n.name.starts_with("dw") => AxisUse::Split(FactorId(2)),
            (_, "MatMul") => AxisUse::Split(FactorId(0)),
            _ if sharded => AxisUse::Split(FactorId(0)),
            _ => AxisUse::Replicate,
        };
        OpStrategy { axes: vec![usage] }
    });
    let home = |v: ValueId| {
        let mut home = Sharding::replicated(g.ty(v).rank());
        let by_rows = sharded || matches!(g.value(v).def, ValueDef::Input);
        if let Some(rows) = home.dims.first_mut().filter(|_| by_rows) {
            *rows = DimSharding::split([AxisId(0)]);
        }
        home
    };
    Strategy::from_ops(g, Mesh::new([("r", RANKS)]), ops.collect(), home).expect("legal")
}

const GRADIENT_BYTES: u64 = WIDTH * WIDTH * 4;

/// A step's program with two gradients a bucket, without and with overlap.
fn programs(g: &Graph, strategy: &Strategy) -> (Program, Program) {
    let program = partition(g, strategy, &Prices::draw(&mut Draw::new(&[]))).expect("legal");
    let overlapped = overlap(g, &program, 2 * GRADIENT_BYTES, &time_us).expect("small");
    assert_eq!(verify(&overlapped), [], "{overlapped:?}");
    (program, overlapped)
}

/// Runs two steps; all that they leave.
fn run(g: &Graph, program: &Program) -> Vec<Vec<u8>> {
    let tensor = |ty: &TensorType, seed: usize| {
        Tensor::from_f64(ty.clone(), |i| ((i * 7 + seed * 5) % 11) as f64 / 8.0 - 0.5)
            .expect("small")
    };
    let weights: BTreeMap<String, Tensor> = g
        .values
        .iter()
        .filter(|v| matches!(v.def, ValueDef::Weight(_)))
        .enumerate()
        .map(|(seed, v)| (v.name.clone(), tensor(&v.ty, seed)))
        .collect();
    let constants = BTreeMap::from([("one".to_string(), Tensor::scalar(1f32))]);
    let mut executor = Executor::new(program.clone(), &weights, &constants).expect("it loads");
    let mut left = Vec::new();
    for step in 0..2 {
        let inputs = |m: u32| {
            let x = tensor(g.ty(g.inputs[0]), step * 10 + m as usize);
            BTreeMap::from([("x".to_string(), x), ("rate".to_string(), Tensor::scalar(0.125f32))])
        };
        let batches: Vec<_> = (0..g.micro_batches).map(inputs).collect();
        let outputs = executor.step(&batches).expect("it runs");
        left.extend(outputs.into_iter().map(|(_, t)| t.to_bytes()));
        left.extend(weights.keys().map(|name| executor.weight_bytes(name).expect("it is there")));
    }
    left
}

#[test]
fn gradients_are_reduced_while_others_are_made() {
    for micro_batches in [1, 3] {
        for sharded in [false, true] {
            let g = step(micro_batches);
            let (program, overlapped) = programs(&g, &data_parallel(&g, sharded));
            let reductions: Vec<usize> = overlapped
                .instrs
                .iter()
                .filter_map(|i| match i {
                    Instr::Issue { steps, .. } if !matches!(steps[0], Step::AllGather { .. }) => {
                        Some(steps.len())
                    }
                    _ => None,
                })
                .collect();
            assert_eq!(reductions, [2, 2, 1], "{micro_batches} {sharded}");
            assert!(kernels_beside(&overlapped) >= LAYERS, "{micro_batches} {sharded}");
            let gathers = issues(&overlapped) - reductions.len();
            assert_eq!(gathers > 0, sharded, "{micro_batches} {sharded}");
            assert_eq!(run(&g, &overlapped), run(&g, &program), "{micro_batches} {sharded}");
        }
    }
}

#[test]
fn steps_under_random_strategies_stay_the_same() {
    let mut state = 5u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32
    };
    let meshes = [
        Mesh::new([("a", 1)]),
        Mesh::new([("a", 2)]),
        Mesh::new([("a", 4)]),
        Mesh::new([("a", 2), ("b", 2)]),
    ];
    let mut found = 0;
    for mesh in &meshes {
        for micro_batches in [1, 2] {
            let g = step(micro_batches);
            for _ in 0..10 {
                let choices: Vec<u32> = (0..800).map(|_| next()).collect();
                let strategy = random::strategy(&mut Draw::new(&choices), &g, mesh);
                let (program, overlapped) = programs(&g, &strategy);
                found += kernels_beside(&overlapped);
                assert_eq!(run(&g, &overlapped), run(&g, &program), "{strategy:?}");
            }
        }
    }
    assert!(found > 100, "{found}");
}

/// What the verifier says of an overlapped step with one thing changed.
fn findings(change: impl FnOnce(&mut Program)) -> String {
    let g = step(3);
    let (_, mut program) = programs(&g, &data_parallel(&g, true));
    change(&mut program);
    verify(&program).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// An issue with a kernel between it and its wait.
fn issue_beside_kernel(p: &Program) -> (usize, usize) {
    let done = planc_ir::program::streams::done(p);
    let is_kernel = |at: &usize| matches!(p.instrs[*at], Instr::Kernel { .. });
    let beside = |at: usize| Some((at, (at..done[at]).find(is_kernel)?));
    let mut issues = (0..p.instrs.len()).filter(|&at| matches!(p.instrs[at], Instr::Issue { .. }));
    issues.find_map(beside).expect("there is one")
}

#[test]
fn what_is_in_flight_is_left_alone() {
    for reads in [true, false] {
        let found = findings(|p| {
            let (issue, kernel) = issue_beside_kernel(p);
            let i = &p.instrs[issue];
            let busy = if reads { i.reads()[0] } else { i.writes()[0] };
            let result = p.instrs[kernel].writes()[0];
            p.buffers[result.index()].slot.offset = p.buffer(busy).slot.offset;
        });
        assert!(found.contains("in the arena, which is live"), "{found}");
    }
    let found = findings(|p| {
        let at =
            p.instrs.iter().position(|i| matches!(i, Instr::Wait { .. })).expect("there is one");
        p.instrs.remove(at);
        if let Some(m) = &mut p.micro_batches {
            m.instrs -= 1;
        }
    });
    assert!(found.contains("which is still in flight"), "{found}");
    let found = findings(|p| {
        let is_kept = |i: &Instr| !matches!(i, Instr::Wait { .. });
        if let Some(m) = &mut p.micro_batches {
            m.instrs = p.instrs[..m.instrs].iter().filter(|i| is_kept(i)).count();
        }
        p.instrs.retain(is_kept);
    });
    assert!(found.contains("nothing waits for it before the micro-batch or step ends"), "{found}");
    let found = findings(|p| p.instrs.push(Instr::Wait { buffer: p.weights[0] }));
    assert!(found.contains("which nothing was issued to fill"), "{found}");
    let issue = |p: &mut Program, change: &dyn Fn(&mut Vec<Step>)| {
        let steps = p.instrs.iter_mut().find_map(|i| match i {
            Instr::Issue { steps, .. } if steps.len() > 1 => Some(steps),
            _ => None,
        });
        change(steps.expect("there is a bucket"));
    };
    let found = findings(|p| issue(p, &|steps| drop(steps.pop())));
    assert!(found.contains("are not equally many"), "{found}");
    let found = findings(|p| {
        issue(p, &|steps| steps[0] = Step::Slice { axes: vec![AxisId(0)], dim: 0, unit: 1 });
    });
    assert!(found.contains("not collectives of one kind"), "{found}");
}
