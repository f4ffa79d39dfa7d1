//! Node tests on two ranks: for every case and every factor that a rule says can be split, that one node
//! is split so, the program is run on two CPU ranks, and the outputs must be those that the case expects.
//!
//! The cases are ONNX Runtime's, which the project holds, and ONNX's own where they are there (see
//! `ir/tests/node_tests.rs`).
#![allow(clippy::print_stderr)] // says aloud what was split

use onnx_protobuf::{ModelProto, TensorProto};
use planc::verify::{Tolerance, compare};
use planc_cost_model::CostModel;
use planc_ir::graph::ValueDef;
use planc_ir::onnx::tensor::read_tensor;
use planc_ir::onnx::{ImportOptions, import_bytes};
use planc_ir::sharding::{AxisUse, Mesh, OpStrategy, Sharding, Strategy, op_shardings};
use planc_ir::{Graph, NodeId, Tensor};
use planc_tests::{cost_model, root, shared};
use protobuf::Message as _;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// More inputs or outputs than any case has.
const MAX_TENSORS: usize = 1000;

/// A case: its model, and its tensors by the names that the model gives them.
struct Case {
    graph: Graph,
    inputs: BTreeMap<String, Tensor>,
    outputs: Vec<Tensor>,
}

/// What was split, and what never could be.
#[derive(Default)]
struct Tally {
    cases: usize,
    pairs: usize,
    /// Runs in which a node of this op was split, and why one could not be.
    by_op: BTreeMap<&'static str, (usize, Option<String>)>,
    faults: Vec<String>,
}

fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    (0..MAX_TENSORS)
        .map(|i| folder.join(format!("{kind}_{i}.pb")))
        .take_while(|p| p.exists())
        .collect()
}

/// Reads a case; inputs on which shapes depend become constants, so that nothing is decoded only when it
/// runs, which cannot be split. `None` if planc does not import it.
fn read(model: &Path, data: &Path) -> Option<Case> {
    let bytes = std::fs::read(model).expect("the case has a model");
    let mut proto = ModelProto::parse_from_bytes(&bytes).expect("it is one");
    let inputs = files(data, "input");
    let tensors = |paths: &[PathBuf]| -> Option<Vec<Tensor>> {
        paths.iter().map(|p| read_tensor(p).ok().map(|(_, t)| t)).collect()
    };
    let (values, outputs) = (tensors(&inputs)?, tensors(&files(data, "output"))?);
    let names: Vec<String> = proto.graph.input.iter().map(|i| i.name.clone()).collect();
    let options = ImportOptions::default();
    let mut result = import_bytes(bytes, &options);
    let mut constant = vec![false; values.len()];
    let stages: [fn(usize, &Tensor) -> bool; 3] =
        [|_, t| !t.dtype().is_float(), |i, _| i > 0, |_, _| true];
    for fixed in stages {
        if !result.as_ref().is_ok_and(|m| m.graph.nodes.iter().any(|n| n.op.name() == "Deferred")) {
            break;
        }
        for (i, (name, path)) in names.iter().zip(&inputs).enumerate() {
            if !constant[i] && fixed(i, &values[i]) {
                constant[i] = true;
                let bytes = std::fs::read(path).expect("the tensor is there");
                let mut tensor = TensorProto::parse_from_bytes(&bytes).expect("it is one");
                tensor.name.clone_from(name);
                proto.graph.mut_or_insert_default().initializer.push(tensor);
            }
        }
        result = import_bytes(proto.write_to_bytes().expect("it is written"), &options);
    }
    let graph = result.ok()?.graph;
    let inputs = names.into_iter().zip(values).collect::<BTreeMap<_, _>>();
    let inputs = graph.inputs.iter().map(|&v| {
        let name = &graph.value(v).name;
        inputs.get(name).map(|t| (name.clone(), t.clone()))
    });
    let inputs = inputs.collect::<Option<_>>()?;
    Some(Case { graph, inputs, outputs })
}

/// Sums over ranks of a 16-bit type are rounded once more on each: by two units in the last place.
fn tolerance(expected: &Tensor) -> Tolerance {
    let rtol = match (expected.dtype().is_float(), expected.dtype()) {
        (_, planc_ir::DType::BF16) => 4.0 * 2f64.powi(-8),
        (_, planc_ir::DType::F16) => 4.0 * 2f64.powi(-11),
        _ => 1e-3,
    };
    Tolerance { atol: 1e-5, rtol }
}

/// Runs the graph with one node split.
fn run(case: &Case, id: NodeId, usage: AxisUse, mesh: &Mesh, cost: &CostModel) -> Option<String> {
    let graph = &case.graph;
    let mut ops = vec![OpStrategy::replicated(mesh); graph.nodes.len()];
    ops[id.index()] = OpStrategy { axes: vec![usage] };
    let home = |v| Sharding::replicated(graph.ty(v).rank());
    let strategy = match Strategy::from_ops(graph, mesh.clone(), ops, home) {
        Ok(strategy) => strategy,
        Err(e) => return Some(e.to_string()),
    };
    let program = match planc_codegen::partition(graph, &strategy, cost) {
        Ok(program) => program,
        Err(e) => return Some(e.to_string()),
    };
    let faults = planc_ir::program::verify::verify(&program);
    if !faults.is_empty() {
        return Some(format!("{faults:?}"));
    }
    let (mut weights, mut constants) = (BTreeMap::new(), BTreeMap::new());
    for value in &graph.values {
        if let Some(tensor) = match &value.def {
            ValueDef::Weight(_) => case.inputs.get(&value.name).cloned(),
            _ => None,
        } {
            weights.insert(value.name.clone(), tensor);
        }
        if let ValueDef::Constant(tensor) = &value.def {
            constants.insert(value.name.clone(), tensor.as_ref().clone());
        }
    }
    let outputs = match planc_runtime::execute(&program, &weights, &constants, &case.inputs) {
        Ok(outputs) => outputs,
        Err(e) => return Some(e.to_string()),
    };
    outputs.iter().zip(&case.outputs).find_map(|((name, found), expected)| {
        let c = compare(found, expected, tolerance(expected));
        (!c.equal).then(|| format!("`{name}` differs by {} ({})", c.max_abs, c.max_rel))
    })
}

/// Splits each node of a case in each way, one at a time.
fn check(name: &str, case: &Case, mesh: &Mesh, cost: &CostModel, tally: &mut Tally) {
    tally.cases += 1;
    for id in case.graph.node_ids() {
        let rule = case.graph.rule(id);
        let op = case.graph.node(id).op.name();
        let entry = tally.by_op.entry(op).or_default();
        if let Some(why) = &rule.opaque {
            entry.1 = Some(why.clone());
        }
        for usage in rule.axis_uses() {
            let split = matches!(usage, AxisUse::Split(_));
            let strategy = OpStrategy { axes: vec![usage] };
            if !split || op_shardings(&case.graph, id, mesh, &strategy).is_err() {
                continue;
            }
            tally.pairs += 1;
            if let Some((runs, _)) = tally.by_op.get_mut(op) {
                *runs += 1;
            }
            if let Some(why) = run(case, id, usage, mesh, cost) {
                let node = &case.graph.node(id).name;
                tally.faults.push(format!("{name}: `{node}` ({op}) by {usage:?}: {why}"));
            }
        }
    }
}

/// The folders of cases, each with where in a case its tensors lie.
fn folders() -> Vec<(PathBuf, &'static str)> {
    let mut folders = vec![(root().join("ir/tests/microsoft"), "")];
    match shared() {
        Some(shared) => folders.push((shared.join("ops"), "")),
        None => eprintln!("SKIPPED: ../shared/models is absent"),
    }
    let full = std::env::var_os("PLANC_NODE_TESTS").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("onnx-node-tests"),
        PathBuf::from,
    );
    if full.is_dir() {
        folders.push((full, "test_data_set_0"));
    } else {
        eprintln!("SKIPPED: run scripts/fetch-node-tests ({} is absent)", full.display());
    }
    folders
}

#[test]
fn every_split_of_every_case_gives_the_expected_outputs() {
    let mesh = Mesh::new([("a", 2)]);
    let cost = cost_model("H100", 2);
    let mut tally = Tally::default();
    for (folder, data) in folders() {
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .expect("the folder is readable")
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .filter(|name| folder.join(name).join("model.onnx").exists())
            .collect();
        names.sort_unstable();
        for name in names {
            let at = folder.join(&name);
            if let Some(case) = read(&at.join("model.onnx"), &at.join(data)) {
                check(&name, &case, &mesh, &cost, &mut tally);
            }
        }
    }
    let Tally { cases, pairs, by_op, faults } = tally;
    eprintln!("{cases} cases, {pairs} splits of one node of a case on two ranks");
    for (op, (runs, opaque)) in &by_op {
        match opaque {
            Some(why) if *runs == 0 => eprintln!("{op:20} never split: {why}"),
            None if *runs == 0 => eprintln!("{op:20} never split: no factor of 2 or more"),
            _ => eprintln!("{op:20} split {runs} times"),
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(pairs > cases, "a case can be split in one way or more on average");
}
