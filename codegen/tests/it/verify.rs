//! The verifier finds what is wrong, and a program in which it finds nothing never makes the runtime
//! panic, however it came about.

use crate::random;

use planc_codegen::partition;
use planc_ir::program::verify::{Finding, verify};
use planc_ir::program::{BufferId, Instr, Kernel, Program};
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{AxisId, Mesh, ReduceKind};
use planc_runtime::RunError;
use proptest::prelude::*;
use random::{Case, Draw, Prices};
use serde_json::Value;

fn draw(d: &mut Draw<'_>) -> (Case, Program) {
    let mesh = random::mesh(d);
    let prices = Prices::draw(d);
    let case = Case::draw(d);
    let strategy = random::strategy(d, &case.graph, &mesh);
    let program = partition(&case.graph, &strategy, &prices).expect("a legal strategy");
    (case, program)
}

/// Every place of a JSON document, as what is reached by following object values and array elements.
fn places(v: &Value, at: &mut Vec<String>, all: &mut Vec<String>) {
    all.push(at.concat());
    let children: Vec<(String, &Value)> = match v {
        Value::Array(a) => a.iter().enumerate().map(|(i, v)| (format!("/{i}"), v)).collect(),
        Value::Object(o) => o.iter().map(|(k, v)| (format!("/{k}"), v)).collect(),
        _ => Vec::new(),
    };
    for (step, child) in children {
        at.push(step);
        places(child, at, all);
        at.pop();
    }
}

/// Changes one place of the document in one of the ways in which an edited file is wrong.
fn damage(d: &mut Draw<'_>, document: &mut Value) {
    let mut all = Vec::new();
    places(document, &mut Vec::new(), &mut all);
    let other = document.pointer(&d.pick(&all)).cloned().unwrap_or_default();
    let Some(place) = document.pointer_mut(&d.pick(&all)) else { return };
    match place {
        _ if d.one_in(6) => *place = other,
        Value::Number(n) => {
            let old = n.as_i64().unwrap_or(0);
            let new = d.pick(&[
                0,
                1,
                2,
                3,
                5,
                256,
                old.saturating_add(1),
                old.saturating_sub(1),
                -1,
                1 << 33,
                i64::MAX,
            ]);
            *place = if d.one_in(12) { u64::MAX.into() } else { new.into() };
        }
        Value::Array(a) if !a.is_empty() => {
            let (i, j) = (d.below(a.len()), d.below(a.len()));
            match d.below(4) {
                0 => drop(a.remove(i)),
                1 => a.swap(i, j),
                2 => a[i] = a[j].clone(),
                _ => a.push(a[i].clone()),
            }
        }
        Value::Bool(b) => *b = !*b,
        _ => *place = other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_passes_never_panics(
        choices in prop::collection::vec(any::<u32>(), 0..160),
        damages in prop::collection::vec(any::<u32>(), 4..40),
    ) {
        let (case, program) = draw(&mut Draw::new(&choices));
        let mut document = serde_json::to_value(&program).expect("programs are documents");
        let d = &mut Draw::new(&damages);
        for _ in 0..=d.below(3) {
            damage(d, &mut document);
        }
        let Ok(program) = serde_json::from_value::<Program>(document) else { return Ok(()) };
        // Large arenas are refused by the runtime or given by the system; neither is at stake here.
        if !verify(&program).is_empty() || program.arena_bytes > 1 << 24 {
            return Ok(());
        }
        let run = planc_runtime::execute(&program, &case.weights, &case.constants, &case.inputs);
        if let Err(e @ RunError::Panic { .. }) = run {
            panic!("{e}\n{program:?}");
        }
    }
}

/// Two ranks; a matrix product split in its contraction, reduced, viewed under other extents, and one
/// more that is not.
fn sample() -> Program {
    use planc_ir::ops::matmul::MatMul;
    use planc_ir::ops::reshape::Reshape;
    use planc_ir::sharding::{AxisUse, FactorId, OpStrategy, Sharding, Strategy};
    use planc_ir::{DType, Graph, TensorType, ValueDef, WeightSource};

    let ty = |shape: [u64; 2]| TensorType::new(DType::F32, shape);
    let mut g = Graph::new("sample");
    let x = g.input("x", ty([4, 6]));
    let weight = |location: &str| {
        let location = location.to_string();
        ValueDef::Weight(WeightSource::External { location, offset: 0, bytes: 24 })
    };
    let a = g.add_value("a", ty([6, 1]), weight("a"));
    let b = g.add_value("b", ty([1, 64]), weight("b"));
    let matmul = || MatMul { trans_a: false, trans_b: false }.into();
    let y = g.push("product", matmul(), &[x, a], &["y"]).expect("fits")[0];
    let z = g.push("view", Reshape { shape: vec![2, 2, 1] }.into(), &[y], &["z"]).expect("fits")[0];
    let u = g.push("outer", matmul(), &[z, b], &["u"]).expect("fits")[0];
    g.outputs.push(u);
    let mesh = Mesh::new([("t", 2)]);
    let whole = OpStrategy::replicated(&mesh);
    let by_k = OpStrategy { axes: vec![AxisUse::Split(FactorId(2))] };
    let ops = vec![by_k, whole.clone(), whole];
    let rank = |v: planc_ir::ValueId| g.ty(v).rank();
    let strategy =
        Strategy::from_ops(&g, mesh, ops, |v| Sharding::replicated(rank(v))).expect("legal");
    let prices = Prices::draw(&mut Draw::new(&[]));
    partition(&g, &strategy, &prices).expect("legal")
}

/// What the verifier says of the sample with one thing changed.
fn findings(change: impl FnOnce(&mut Program)) -> Vec<String> {
    let mut program = sample();
    change(&mut program);
    verify(&program).iter().map(Finding::to_string).collect()
}

fn index_of(p: &Program, is: impl Fn(&Instr) -> bool) -> usize {
    p.instrs.iter().position(is).expect("the sample has such an instruction")
}

fn is_all_reduce(i: &Instr) -> bool {
    matches!(i, Instr::Reshard { step: Step::AllReduce { .. }, .. })
}

fn is_matmul(i: &Instr) -> bool {
    matches!(i, Instr::Kernel { kernel: Kernel::MatMul { .. }, .. })
}

#[test]
fn a_sound_program_has_no_findings() {
    assert_eq!(findings(|_| {}), [""; 0]);
}

#[test]
fn every_kind_of_finding() {
    type Change = Box<dyn FnOnce(&mut Program)>;
    let cases: Vec<(&str, Change)> = vec![
        ("mesh axis `t` has no coordinates", Box::new(|p| p.mesh.axes[0].size = 0)),
        ("more than 65536 ranks", Box::new(|p| p.mesh.axes[0].size = u32::MAX)),
        ("has 1 shares for 2", Box::new(|p| p.mesh.axes[0].shares = Some(vec![1]))),
        ("share of 0", Box::new(|p| p.mesh.axes[0].shares = Some(vec![1, 0]))),
        ("called `t`", Box::new(|p| p.mesh = Mesh::new([("t", 2), ("t", 2)]))),
        ("too many dimensions or elements", Box::new(|p| p.buffers[0].ty.shape[0] = u64::MAX)),
        ("its sharding is not one", Box::new(|p| drop(p.buffers[0].sharding.dims.pop()))),
        ("its sharding is not one", Box::new(|p| p.buffers[0].sharding.dims[0].unit = 2)),
        ("is not a multiple of 256", Box::new(|p| p.buffers[0].slot.offset += 1)),
        ("slot has 7 bytes, its largest part 96", Box::new(|p| p.buffers[0].slot.bytes = 7)),
        ("ends beyond the arena", Box::new(|p| p.arena_bytes -= 256)),
        ("ends beyond the arena", Box::new(|p| p.buffers[0].slot.offset = u64::MAX - 255)),
        ("the outputs of the program: there is no buffer 99", Box::new(|p| p.outputs[0].0 = 99)),
        (
            "the constants of the program: fills buffer 0 (`x`) a second time",
            Box::new(|p| p.constants.push(BufferId(0))),
        ),
        ("reads buffer 0 (`x`), which nothing has filled", Box::new(|p| p.inputs.clear())),
        ("(`y`), which nothing has filled", Box::new(|p| p.instrs.reverse())),
        (
            "the outputs of the program: buffer",
            Box::new(|p| {
                let at = index_of(p, is_all_reduce);
                p.outputs = p.instrs[at].reads().to_vec();
            }),
        ),
        (
            "are of different types",
            Box::new(|p| {
                let at = index_of(p, is_all_reduce);
                if let Instr::Reshard { input, .. } = &mut p.instrs[at] {
                    *input = BufferId(0);
                }
            }),
        ),
        (
            "does not lead from the sharding",
            Box::new(|p| {
                let at = index_of(p, is_all_reduce);
                let wrong = Step::AllReduce { axes: vec![AxisId(0)], kind: ReduceKind::Max };
                if let Instr::Reshard { step, .. } = &mut p.instrs[at] {
                    *step = wrong;
                }
            }),
        ),
        (
            "(node `product`): on the rank at [0], ",
            Box::new(|p| {
                let at = index_of(p, is_matmul);
                if let Instr::Kernel { kernel, .. } = &mut p.instrs[at] {
                    *kernel = Kernel::MatMul { trans_a: true, trans_b: false };
                }
            }),
        ),
        (
            "expects 2 inputs",
            Box::new(|p| {
                let at = index_of(p, is_matmul);
                if let Instr::Kernel { inputs, .. } = &mut p.instrs[at] {
                    inputs.clear();
                }
            }),
        ),
        (
            "overlaps buffer 0 (`x`) in the arena",
            Box::new(|p| {
                let weight = p.weights[0];
                p.buffers[weight.index()].slot.offset = p.buffers[0].slot.offset;
            }),
        ),
    ];
    for (expected, change) in cases {
        let found = findings(change);
        assert!(found.iter().any(|f| f.contains(expected)), "{expected:?} is not in {found:#?}");
    }
}

/// A copy may lie where its input lies, even if both are read later; anything else may not.
#[test]
fn only_copies_share_storage() {
    let p = sample();
    let at = index_of(&p, |i| matches!(i, Instr::Kernel { kernel: Kernel::Copy, .. }));
    let slot = |b: BufferId| p.buffer(b).slot;
    let (input, output) = (p.instrs[at].reads()[0], p.instrs[at].writes()[0]);
    assert_eq!(slot(input), slot(output));
    let found = findings(|p| {
        if let Instr::Kernel { kernel, .. } = &mut p.instrs[at] {
            *kernel = Kernel::Transpose { perm: vec![0, 1] };
        }
    });
    assert!(!found.is_empty());
    let found = findings(|p| {
        let at = index_of(p, is_all_reduce);
        let (from, to) = (p.instrs[at].reads()[0], p.instrs[at].writes()[0]);
        p.buffers[from.index()].slot = p.buffers[to.index()].slot;
    });
    assert!(found.iter().any(|f| f.contains("overlaps")), "{found:#?}");
}
