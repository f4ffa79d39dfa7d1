//! ONNX's own node tests: each is a model of one node with inputs and expected outputs.
//!
//! They lie in the optional model folder; without it the test says so and passes. Cases that planc
//! does not support are listed in `node_tests_unsupported.txt`, which may only get shorter.

#![allow(clippy::float_cmp, clippy::print_stderr, clippy::unwrap_used)] // a test may

use planc_ir::interp::evaluate;
use planc_ir::onnx::wire::ModelProto;
use planc_ir::onnx::{ImportError, ImportOptions, Model, import_bytes, tensor};
use planc_ir::weights::InMemory;
use planc_ir::{OpError, Tensor};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What became of a case.
enum Outcome {
    Passed,
    Unsupported(String),
    Failed(String),
}

struct Tolerance {
    absolute: f64,
    relative: f64,
}

/// Cases whose expected values were computed with every intermediate result rounded to a 16-bit
/// type. Evaluating in f64 and rounding each node's result once may differ from them by two units
/// in the last place.
const ROUNDED_AT_EACH_STEP: [&str; 6] = [
    "test_attention_3d_causal_bf16",
    "test_attention_4d_attn_mask_causal_bf16",
    "test_attention_4d_causal_bf16",
    "test_attention_4d_causal_fp16",
    "test_attention_4d_causal_padded_kv_bf16",
    "test_attention_4d_padded_kv_bf16",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models/ops")
}

/// The tensors `input_0.pb`, `input_1.pb`, … of a case; `None` if one is not a tensor.
fn tensors(case: &Path, kind: &str) -> Option<Vec<Tensor>> {
    (0..)
        .map(|i| case.join(format!("{kind}_{i}.pb")))
        .take_while(|path| path.exists())
        .map(|path| tensor::read_tensor(&path).ok().map(|(_, t)| t))
        .collect()
}

/// Whether an import failed only because a shape depends on an input.
fn needs_constants(result: &Result<Model, ImportError>) -> bool {
    match result {
        Err(ImportError::Unsupported(list)) => {
            let known = |why: &Option<String>| {
                why.as_ref().is_some_and(|why| why.contains("must be known when the model is"))
            };
            list.ops.keys().any(|op| known(&op.why))
        }
        Err(ImportError::Op { source: OpError::NotConstant { .. }, .. }) => true,
        _ => false,
    }
}

/// Imports a case's model and says how many of its inputs are still inputs: where a shape depends
/// on them, all but the first become constants, or all. Cases of opsets that planc does not read
/// are taken to be of the nearest that it does; the node's meaning is the same.
fn import(mut model: ModelProto, inputs: &[Tensor]) -> Result<(Model, usize), ImportError> {
    let options = ImportOptions::default();
    let mut result = import_bytes(model.encode_to_vec(), &options);
    if let Err(ImportError::Opset { found, min, max }) = result {
        for opset in &mut model.opset_import {
            if opset.version == Some(found) {
                opset.version = Some(found.clamp(min, max));
            }
        }
        result = import_bytes(model.encode_to_vec(), &options);
    }
    let mut free = inputs.len();
    for fewer in [1, 0] {
        if !needs_constants(&result) || fewer >= free {
            continue;
        }
        let Some(graph) = &mut model.graph else { break };
        for (value, tensor) in graph.input.iter().zip(inputs).take(free).skip(fewer) {
            graph.initializer.push(tensor::to_proto(value.name(), tensor));
        }
        free = fewer;
        result = import_bytes(model.encode_to_vec(), &options);
    }
    result.map(|m| (m, free))
}

fn differs(found: &Tensor, expected: &Tensor, tolerance: &Tolerance) -> Option<String> {
    if found.ty() != expected.ty() {
        return Some(format!("is {}, expected {}", found.ty(), expected.ty()));
    }
    (0..found.len()).find_map(|i| {
        let equal = if found.dtype().is_float() {
            let (x, y) = (found.f64_at(i), expected.f64_at(i));
            let close = (x - y).abs() <= tolerance.absolute + tolerance.relative * y.abs();
            x == y || close || (x.is_nan() && y.is_nan())
        } else {
            found.int_at(i) == expected.int_at(i)
        };
        let (x, y) = (found.f64_at(i), expected.f64_at(i));
        (!equal).then(|| format!("element {i} is {x}, expected {y}"))
    })
}

fn run(case: &Path, tolerance: &Tolerance) -> Outcome {
    let (Some(inputs), Some(expected)) = (tensors(case, "input"), tensors(case, "output")) else {
        return Outcome::Unsupported("operands that are not tensors of a known type".into());
    };
    let bytes = fs::read(case.join("model.onnx")).unwrap();
    let model = ModelProto::decode(&bytes[..]).unwrap();
    let (model, free) = match import(model, &inputs) {
        Ok(imported) => imported,
        Err(e @ ImportError::Unsupported(_)) => return Outcome::Unsupported(e.to_string()),
        Err(ImportError::Op { source: e @ OpError::Unsupported(_), .. }) => {
            return Outcome::Unsupported(e.to_string());
        }
        Err(e) => return Outcome::Failed(e.to_string()),
    };
    let outputs = match evaluate(&model.graph, &inputs[..free], &InMemory) {
        Ok(outputs) => outputs,
        Err(e) => return Outcome::Failed(e.to_string()),
    };
    if outputs.len() != expected.len() {
        return Outcome::Failed(format!("{} outputs, not {}", outputs.len(), expected.len()));
    }
    for (i, (found, expected)) in outputs.iter().zip(&expected).enumerate() {
        if let Some(why) = differs(found, expected, tolerance) {
            return Outcome::Failed(format!("output {i} {why}"));
        }
    }
    Outcome::Passed
}

#[test]
fn node_tests_pass() {
    let folder = folder();
    let Ok(index) = fs::read_to_string(folder.join("index.json")) else {
        eprintln!("skipped: the model folder is not there ({})", folder.display());
        return;
    };
    let index: BTreeMap<String, serde_json::Value> = serde_json::from_str(&index).unwrap();
    let known: BTreeSet<&str> = include_str!("node_tests_unsupported.txt").lines().collect();

    let mut by_op: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    let mut unsupported = BTreeMap::new();
    let mut failed = Vec::new();
    for (name, case) in &index {
        let mut tolerance = Tolerance {
            absolute: case["atol"].as_f64().unwrap(),
            relative: case["rtol"].as_f64().unwrap(),
        };
        if ROUNDED_AT_EACH_STEP.contains(&name.as_str()) {
            let epsilon = if name.ends_with("fp16") { 2f64.powi(-10) } else { 2f64.powi(-7) };
            tolerance.relative = 2.0 * epsilon;
        }
        let counts = by_op.entry(case["op"].as_str().unwrap().to_string()).or_default();
        match run(&folder.join(name), &tolerance) {
            Outcome::Passed => counts[0] += 1,
            Outcome::Unsupported(why) => {
                counts[1] += 1;
                unsupported.insert(name.as_str(), why);
            }
            Outcome::Failed(why) => {
                counts[2] += 1;
                failed.push(format!("{name}: {why}"));
            }
        }
    }
    eprintln!("{:24} {:>7} {:>12} {:>7}", "operator", "passed", "unsupported", "failed");
    for (op, [passed, unsupported, failed]) in &by_op {
        eprintln!("{op:24} {passed:>7} {unsupported:>12} {failed:>7}");
    }
    let new: Vec<String> = unsupported
        .iter()
        .filter(|(name, _)| !known.contains(*name))
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    let now: Vec<&&str> = known.iter().filter(|name| !unsupported.contains_key(**name)).collect();
    assert!(failed.is_empty(), "{} cases fail:\n{}", failed.len(), failed.join("\n"));
    assert!(new.is_empty(), "{} cases are unsupported:\n{}", new.len(), new.join("\n"));
    assert!(now.is_empty(), "supported now, take them off the list: {now:?}");
}
