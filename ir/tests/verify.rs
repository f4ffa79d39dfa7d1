//! The verifier: each broken property is found under its own name; random damage is found or harmless.

mod random_graph;

use planc_ir::ops::deferred::{Deferred, Promise};
use planc_ir::ops::{if_op::If, map::Map, matmul::MatMul};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use planc_ir::tensor::Tensor;
use planc_ir::text::print;
use planc_ir::verify::{Finding, RuleFault, check_rule, verify};
use planc_ir::{DType, Extents, Graph, NodeId, TensorType, ValueDef, ValueId, WeightSource};
use proptest::prelude::*;
use std::sync::Arc;

/// `z = exp(x · w)`; values x = %0, w = %1, y = %2, z = %3, c = %4 (not read).
fn example() -> Graph {
    let mut g = Graph::new("example");
    let x = g.input("x", TensorType::new(DType::F32, [2, 4]));
    let source = WeightSource::ModelFile { offset: 8, bytes: 128 };
    let w = g.add_value("w", TensorType::new(DType::F32, [4, 8]), ValueDef::Weight(source));
    let matmul = MatMul { trans_a: false, trans_b: false };
    let y = g.push("first", matmul.into(), &[x, w], &["y"]).expect("fits");
    g.outputs = g.push("second", Map { f: ScalarFn::Exp }.into(), &y, &["z"]).expect("fits");
    g.constant("c", Tensor::vector(vec![1i64, 2]));
    g
}

/// The findings after this damage, as printed, one a line.
fn after(damage: impl FnOnce(&mut Graph)) -> String {
    let mut g = example();
    damage(&mut g);
    let found: Vec<String> = verify(&g).iter().map(Finding::to_string).collect();
    found.join("\n")
}

#[test]
fn a_valid_graph_has_no_findings() {
    assert_eq!(after(|_| ()), "");
    assert_eq!(verify(&Graph::default()), []);
}

#[test]
fn ids_out_of_range() {
    let found = after(|g| {
        g.nodes[0].inputs[1] = ValueId(9);
        g.outputs.push(ValueId(5));
        g.values[3].def = ValueDef::Node { node: NodeId(2), output: 0 };
    });
    assert_eq!(
        found,
        "the list of outputs names %5, which does not exist\n\
         node `first` (inputs) names %9, which does not exist\n\
         value `z` says that node 2 defines it, which does not exist"
    );
}

#[test]
fn definitions_that_disagree() {
    assert_eq!(
        after(|g| g.nodes[1].outputs[0] = ValueId(2)),
        "output 0 of node `second` is value `y`, whose definition says otherwise\n\
         value `z` says that it is output 0 of node `second`, which it is not"
    );
    assert_eq!(
        after(|g| g.nodes[1].outputs.clear()),
        "node `second` has no outputs\n\
         value `z` says that it is output 0 of node `second`, which it is not\n\
         node `second` (Map) has 0 outputs, but the op infers 1"
    );
}

#[test]
fn reading_what_comes_later() {
    assert_eq!(
        after(|g| g.nodes[1].inputs[0] = ValueId(3)),
        "node `second` reads `z`, which only a later node (or itself) defines"
    );
}

#[test]
fn inputs_that_are_not_listed_once() {
    assert_eq!(
        after(|g| g.inputs = vec![ValueId(1), ValueId(0), ValueId(0)]),
        "the list of inputs names `w`, which is not defined as an input\n\
         value `x` is defined as an input, but stands 2 times in the list of inputs"
    );
    assert!(after(|g| g.inputs.clear()).contains("stands 0 times"));
}

#[test]
fn names_that_are_not_names() {
    let found = after(|g| {
        g.values[1].name = "x".into();
        g.values[2].name.clear();
    });
    assert_eq!(found, "%0 and %1 have the same name, `x`\n%2 has no name");
}

#[test]
fn stored_values_of_another_type() {
    let found = after(|g| g.values[4].ty = TensorType::new(DType::I32, [2]));
    assert_eq!(found, "value `c` has type i32[2], but the tensor it holds is i64[2]");
    for (offset, bytes) in [(8, 127), (u64::MAX - 1, 128)] {
        let source = WeightSource::ModelFile { offset, bytes };
        let found = after(|g| g.values[1].def = ValueDef::Weight(source));
        assert!(found.starts_with("weight `w` of type f32[4,8] takes 128 bytes, but"), "{found}");
    }
    let inline = WeightSource::Inline(Arc::new(Tensor::scalar(1f32)));
    let found = after(|g| g.values[1].def = ValueDef::Weight(inline));
    assert_eq!(found, "value `w` has type f32[4,8], but the tensor it holds is f32[]");
}

#[test]
fn dynamic_values() {
    let found = after(|g| g.values[3].extents = Extents::Dynamic);
    let shaped = "value `z` is dynamic, but it has extents or is no node's output\n";
    assert!(found.starts_with(shaped), "{found}");
    // Without extents it is one, but not of an op that leaves them open.
    let found = after(|g| {
        g.values[3].extents = Extents::Dynamic;
        g.values[3].ty.shape.clear();
    });
    assert!(found.starts_with("whether `z` is dynamic is not what node"), "{found}");
    let found = after(|g| g.nodes[0].op = Deferred::identity(Promise::open(DType::F32)).into());
    assert!(found.starts_with("whether") && found.contains("(Deferred) says"), "{found}");
    let found = after(|g| {
        g.values[0].extents = Extents::Dynamic;
        g.values[0].ty.shape.clear();
    });
    let input = "value `x` is dynamic, but it has extents or is no node's output\n";
    assert!(found.starts_with(input), "{found}");
    assert!(
        found.ends_with("node `first` (MatMul) reads `x`, which is dynamic; it needs extents"),
        "{found}"
    );
}

#[test]
fn types_that_do_not_follow() {
    assert_eq!(
        after(|g| g.values[3].ty = TensorType::new(DType::F16, [2, 8])),
        "`z` has type f16[2,8], but node `second` (Map) infers f32[2,8]"
    );
    // The fault is reported where it is, not at every later node.
    assert_eq!(
        after(|g| g.values[0].ty = TensorType::new(DType::F32, [2, 5])),
        "node `first` (MatMul): shapes [2, 5] and [4, 8] do not match: the contracted extents differ"
    );
    assert_eq!(
        after(|g| g.nodes[0].inputs.truncate(1)),
        "node `first` (MatMul): expects 2 inputs, has 1"
    );
}

#[test]
fn bodies_of_control_flow() {
    let body = |damage: fn(&mut Graph)| {
        let mut body = Graph::new("body");
        let x = body.input("captured", TensorType::new(DType::F32, [2]));
        let f = Map { f: ScalarFn::Exp };
        body.outputs = body.push("inside", f.into(), &[x], &["y"]).expect("fits");
        damage(&mut body);
        Arc::new(body)
    };
    let mut g = Graph::new("outer");
    let condition = g.input("condition", TensorType::new(DType::Bool, []));
    let x = g.input("x", TensorType::new(DType::F32, [2]));
    let op = If { then_branch: body(|_| ()), else_branch: body(|_| ()) };
    g.outputs = g.push("if", op.into(), &[condition, x, x], &["z"]).expect("fits");
    assert_eq!(verify(&g), []);
    let then_branch = body(|b| b.outputs = vec![ValueId(7)]);
    g.nodes[0].op = If { then_branch, else_branch: body(|b| b.nodes[0].inputs.clear()) }.into();
    let found: Vec<String> = verify(&g).iter().map(Finding::to_string).collect();
    assert_eq!(
        found,
        [
            "in a body of node `if` (If): the list of outputs names %7, which does not exist",
            "in a body of node `if` (If): node `inside` (Map): expects 1 inputs, has 0",
        ]
    );
}

/// The faults of a rule for `f32[4,6] -> f32[4]`, after this damage to a correct one.
fn faults(damage: impl FnOnce(&mut FactorRule)) -> Vec<RuleFault> {
    let mut b = RuleBuilder::new();
    let m = b.factor("m", 4, FactorKind::Parallel);
    let k = b.factor("k", 6, FactorKind::Reduce(ReduceKind::Sum));
    b.input([Some(m), Some(k)]);
    b.output([Some(m)]);
    b.linear([0]);
    let mut rule = b.build();
    damage(&mut rule);
    check_rule(&rule, &[TensorType::new(DType::F32, [4, 6])], &[TensorType::new(DType::F32, [4])])
}

#[test]
fn rules_that_do_not_fit() {
    use RuleFault as F;
    let (input, output) = (|| "input 0".to_string(), || "output 0".to_string());
    assert_eq!(faults(|_| ()), []);
    let (described, actual) = ("1 and 2".into(), "1 and 1".into());
    assert_eq!(faults(|r| r.outputs.push(vec![])), [F::OperandCount { described, actual }]);
    assert_eq!(
        faults(|r| r.inputs[0].push(vec![])),
        [F::DimCount { operand: input(), rank: 2, described: 3 }]
    );
    let k = faults(|r| r.factors.truncate(1));
    assert!(matches!(k[..], [F::FactorRange { dim: 1, .. }]), "{k:?}");
    assert_eq!(
        faults(|r| r.factors[1].size = 5),
        [F::Product { operand: input(), dim: 1, extent: 6, product: 5 }]
    );
    assert_eq!(
        faults(|r| r.outputs[0][0].clear()),
        [F::ParallelMissing { operand: output(), factor: "m" }]
    );
    assert_eq!(
        faults(|r| r.factors[0].kind = FactorKind::Reduce(ReduceKind::Max)),
        [F::ReducedKept { factor: "m" }]
    );
    assert_eq!(faults(|r| r.inputs[0][1].clear()), [F::FactorUnused { factor: "k" }]);
    let twice = faults(|r| r.inputs[0][1] = r.inputs[0][0].clone());
    assert!(twice.contains(&F::FactorTwice { operand: input(), factor: "m" }), "{twice:?}");
    assert_eq!(faults(|r| r.linear = vec![vec![1], vec![]]).len(), 2);
    assert_eq!(faults(|r| r.opaque = Some("because".into())), [F::Opaque]);
    assert_eq!(faults(|r| *r = FactorRule::opaque(&[2], &[1], "because")), []);
    assert_eq!(faults(|r| *r = FactorRule::opaque(&[2], &[1], "")), [F::Opaque]);
}

/// Damages one thing, chosen at random.
fn damage(g: &mut Graph, (what, i, j, k): (u8, u16, u16, u16)) {
    let (i, j, k) = (usize::from(i), usize::from(j), usize::from(k));
    let (nodes, values) = (g.nodes.len(), g.values.len());
    // One past the end among them.
    let any_value = ValueId((j % (values + 1)) as u32);
    let def = g.values[j % values].def.clone();
    let value = &mut g.values[i % values];
    match what % 16 {
        0 => value.name = format!("{}", j % 3),
        1 => value.ty.dtype = planc_ir::dtype::ALL[j % planc_ir::dtype::ALL.len()],
        2 => value.ty.shape.push(j as u64 % 3),
        3 => drop(value.ty.shape.pop()),
        4 => value.ty.shape.iter_mut().for_each(|d| *d = [0, 1, *d, u64::MAX][j % 4]),
        5 => value.extents = Extents::Dynamic,
        6 => value.def = ValueDef::Input,
        7 => {
            let node = NodeId((j % (nodes + 1)) as u32);
            value.def = ValueDef::Node { node, output: (k % 2) as u32 };
        }
        8 => value.def = def,
        9 => g.nodes.swap(i % nodes, j % nodes),
        10 => g.nodes[i % nodes].inputs.push(any_value),
        11 => drop(g.nodes[i % nodes].inputs.pop()),
        12 => g.nodes[i % nodes].outputs = vec![any_value],
        13 => g.inputs.push(any_value),
        14 => g.outputs.push(any_value),
        _ => g.nodes[i % nodes].op = g.nodes[j % nodes].op.clone(),
    }
}

/// Builds the graph again from its parts through the checked constructors; `None` if they refuse.
/// Knows nothing of the verifier.
fn rebuild(g: &Graph) -> Option<Graph> {
    let mut new = Graph::new(g.name.clone());
    let mut ids: Vec<Option<ValueId>> = vec![None; g.values.len()];
    let sources = g.value_ids().filter(|&v| !matches!(g.value(v).def, ValueDef::Node { .. }));
    let listed = g.inputs.iter().copied();
    for v in listed.chain(sources.filter(|&v| g.value(v).def != ValueDef::Input)) {
        let v_ref = g.value(v);
        ids[v.index()] =
            Some(new.add_value(v_ref.name.clone(), v_ref.ty.clone(), v_ref.def.clone()));
    }
    for n in &g.nodes {
        let inputs = n.inputs.iter().map(|v| ids[v.index()]).collect::<Option<Vec<_>>>()?;
        let names: Vec<&str> = n.outputs.iter().map(|&v| g.value(v).name.as_str()).collect();
        let outputs = new.push(&n.name, n.op.clone(), &inputs, &names).ok()?;
        new.nodes.last_mut()?.scope.clone_from(&n.scope);
        for (&from, to) in n.outputs.iter().zip(outputs) {
            ids[from.index()] = Some(to);
        }
    }
    new.outputs = g.outputs.iter().map(|v| ids[v.index()]).collect::<Option<_>>()?;
    Some(new)
}

/// A graph's text with values called by name instead of by number.
fn named(g: &Graph) -> Vec<String> {
    let types = |ids: &[ValueId]| -> Vec<String> {
        ids.iter()
            .map(|&v| format!("{:?} {} {:?}", g.value(v).name, g.ty(v), g.value(v).extents))
            .collect()
    };
    let mut lines: Vec<String> = g
        .nodes
        .iter()
        .map(|n| format!("{} {:?} {:?} -> {:?}", n.name, n.op, types(&n.inputs), types(&n.outputs)))
        .collect();
    lines.push(format!("{:?} {:?}", types(&g.inputs), types(&g.outputs)));
    lines
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn random_graphs_are_valid(g in random_graph::graph()) {
        prop_assert_eq!(verify(&g), []);
    }

    /// Whatever has no finding can be built again through the checked constructors, the same; and
    /// nothing that verification makes safe panics.
    #[test]
    fn random_damage_is_found_or_harmless(
        mut g in random_graph::graph(),
        all in prop::collection::vec(any::<(u8, u16, u16, u16)>(), 1..4),
    ) {
        for one in all {
            damage(&mut g, one);
        }
        print(&g); // also what is broken can be looked at
        if verify(&g).is_empty() {
            let again = rebuild(&g);
            prop_assert_eq!(again.as_ref().map(named), Some(named(&g)), "{}", print(&g));
            for id in g.node_ids().filter(|&id| !g.is_dynamic(id)) {
                g.node(id).op.work(&g.input_types(id), &g.output_types(id));
            }
        }
    }
}
