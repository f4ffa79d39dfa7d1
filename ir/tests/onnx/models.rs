//! Real exported models: imported, evaluated by the reference interpreter, compared with the outputs
//! that come with them.

use crate::{entries, shared_models, stem};
use planc_ir::interp::evaluate;
use planc_ir::onnx::tensor::read_tensor;
use planc_ir::onnx::{ImportError, ImportOptions, import};
use planc_ir::weights::ModelFiles;
use planc_ir::{Tensor, ValueDef, WeightSource};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Models that must import and evaluate. Others may be refused for operators that are missing.
const REQUIRED: &[&str] = &[
    "bert-dynamo",
    "bert-legacy",
    "cond-dynamo",
    "control-script-legacy",
    "dlrm-dynamo",
    "dlrm-legacy",
    "gpt2-dynamo",
    "gpt2-kv-dynamo-extdata",
    "gpt2-legacy",
    "llama-dynamo",
    "llama-kv-hf",
    "llama-legacy",
    "mobilenetv2-dynamo",
    "mobilenetv2-legacy",
    "resnet18-dynamo",
    "resnet18-ir3-op9-static",
    "resnet18-legacy",
    "vit-hf-dynamo",
];

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Values of the symbolic dimensions, read off a data set.
fn bindings(meta: &Value, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, u64> {
    let mut bind = BTreeMap::new();
    for input in meta["inputs"].as_array().unwrap() {
        let name = input["name"].as_str().unwrap();
        let Some(tensor) = inputs.get(name) else { continue };
        let dims = input["dims"].as_array().unwrap().iter().zip(tensor.shape()).enumerate();
        for (i, (dim, &extent)) in dims {
            match dim.as_str() {
                Some(text) if text.parse::<u64>().is_ok() || text.contains(' ') => {}
                Some("" | "?") => drop(bind.insert(format!("{name}.{i}"), extent)),
                Some(symbol) => drop(bind.insert(symbol.to_string(), extent)),
                None if dim.is_null() => drop(bind.insert(format!("{name}.{i}"), extent)),
                None => {}
            }
        }
    }
    bind
}

/// A data set's tensors by name: inputs and outputs.
fn data_set(folder: &Path) -> [BTreeMap<String, Tensor>; 2] {
    ["input_", "output_"].map(|prefix| {
        let files = entries(folder).into_iter().filter(|p| stem(p).starts_with(prefix));
        files.map(|p| read_tensor(&p).unwrap()).collect()
    })
}

/// Whether `|found - expected| <= atol + rtol · |expected|` for all elements that count.
fn close(
    found: &Tensor,
    expected: &Tensor,
    [atol, rtol]: [f64; 2],
    counts: impl Fn(usize) -> bool,
) -> Result<(), String> {
    if found.ty() != expected.ty() {
        return Err(format!("is {}, expected {}", found.ty(), expected.ty()));
    }
    let pairs = found.to_f64s().into_iter().zip(expected.to_f64s()).enumerate();
    for (i, (a, b)) in pairs.filter(|(i, _)| counts(*i)) {
        let same = a == b || (a.is_nan() && b.is_nan());
        let near = (a - b).abs() <= atol + rtol * b.abs();
        if !same && !near {
            return Err(format!("element {i} is {a}, expected {b}"));
        }
    }
    Ok(())
}

/// Imports a model for a data set, evaluates it and compares; false if it is not supported.
fn check(folder: &Path, set: &Path) -> Result<bool, String> {
    let meta = json(&folder.join("meta.json"));
    let path = folder.join("model.onnx");
    let [inputs, outputs] = data_set(set);
    let options = ImportOptions { bind: bindings(&meta, &inputs) };
    let model = match import(&path, &options) {
        Ok(model) => model,
        Err(ImportError::Unsupported(_)) => return Ok(false),
        Err(e) => return Err(format!("import: {e}")),
    };
    if Some(model.parameters) != meta["parameters"].as_u64() {
        return Err(format!("{} parameters, expected {}", model.parameters, meta["parameters"]));
    }
    let graph = &model.graph;
    let operands: Vec<Tensor> =
        graph.inputs.iter().map(|&v| inputs[&graph.value(v).name].clone()).collect();
    let results = evaluate(graph, &operands, &ModelFiles::new(&path)).map_err(|e| e.to_string())?;
    let tolerance = [meta["atol"].as_f64().unwrap(), meta["rtol"].as_f64().unwrap_or(1e-3)];
    // Where a reference was computed by torch, tokens that may attend to nothing differ: torch gives
    // them zeros, the file computes the mean over all keys.
    let by_torch = meta["reference"] == "torch";
    let mask = inputs.get("attention_mask").filter(|_| by_torch).map(Tensor::to_i64s);
    for (&v, found) in graph.outputs.iter().zip(&results) {
        let name = &graph.value(v).name;
        let expected = outputs.get(name).ok_or_else(|| format!("output `{name}` is unexpected"))?;
        let counts = |i: usize| {
            let elements_per_token = mask.as_ref().map_or(1, |m| found.len() / m.len());
            mask.as_ref().is_none_or(|m| m[i / elements_per_token] != 0)
        };
        close(found, expected, tolerance, counts).map_err(|e| format!("output `{name}` {e}"))?;
    }
    Ok(true)
}

#[test]
fn models_evaluate_to_their_expected_outputs() {
    let Some(models) = shared_models() else { return };
    let (mut wrong, mut unsupported) = (Vec::new(), Vec::new());
    for folder in entries(&models.join("run")) {
        let name = stem(&folder);
        for set in entries(&folder).into_iter().filter(|p| p.is_dir()) {
            match check(&folder, &set) {
                Ok(true) => {}
                Ok(false) => {
                    unsupported.push(name.clone());
                    break;
                }
                Err(e) => wrong.push(format!("{name} {}: {e}", stem(&set))),
            }
        }
    }
    eprintln!("not supported yet: {unsupported:?}");
    wrong.extend(
        REQUIRED
            .iter()
            .filter(|n| unsupported.iter().any(|u| u == **n))
            .map(|n| format!("{n}: must be supported")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The files of `plan/` have no weights: what imports must leave them where they are said to be.
#[test]
fn planning_files_import_without_their_weights() {
    let Some(models) = shared_models() else { return };
    let mut wrong = Vec::new();
    let files = entries(&models.join("plan")).into_iter();
    for path in files.filter(|p| p.extension().is_some_and(|e| e == "onnx")) {
        let name = stem(&path);
        let bound = match import(&path, &ImportOptions::default()) {
            Err(ImportError::Unbound { names }) => {
                let value = |n: &str| if n.contains("batch") { 2 } else { 128 };
                let bind = names.into_iter().map(|n| (n.clone(), value(&n))).collect();
                import(&path, &ImportOptions { bind })
            }
            other => other,
        };
        match bound {
            Ok(model) => {
                let inline = model
                    .graph
                    .values
                    .iter()
                    .find(|v| matches!(v.def, ValueDef::Weight(WeightSource::Inline(_))));
                if let Some(v) = inline {
                    wrong.push(format!("{name}: weight `{}` is in memory", v.name));
                }
                eprintln!(
                    "{name}: {} nodes, {} parameters",
                    model.graph.nodes.len(),
                    model.parameters
                );
            }
            Err(e @ ImportError::Unsupported(_)) => eprintln!("{name}: {e}"),
            Err(e) => wrong.push(format!("{name}: {e}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
