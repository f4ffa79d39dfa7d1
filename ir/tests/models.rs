//! Real exported models: imported, evaluated by the reference interpreter, compared with the outputs
//! that ship with them. They lie in an optional folder beside the workspace.

use planc_ir::interp::evaluate;
use planc_ir::onnx::tensor::read_tensor;
use planc_ir::onnx::{ImportError, ImportOptions, Model, import};
use planc_ir::weights::ModelFiles;
use planc_ir::{Tensor, ValueDef, WeightSource};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of models, if it is there.
fn models() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models");
    let there = path.is_dir();
    if !there {
        eprintln!("skipped: {} is not there", path.display());
    }
    there.then_some(path)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The folders in a folder, sorted.
fn entries(path: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
    list.sort();
    list
}

/// The names of symbolic dimensions, with the values that they have in a data set.
fn bindings(meta: &Value, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, u64> {
    let mut bind = BTreeMap::new();
    for input in meta["inputs"].as_array().unwrap() {
        let name = input["name"].as_str().unwrap();
        let Some(tensor) = inputs.get(name) else { continue };
        for (i, (dim, &extent)) in
            input["dims"].as_array().unwrap().iter().zip(tensor.shape()).enumerate()
        {
            match dim.as_str() {
                Some(text) if text.parse::<u64>().is_ok() || text.contains(' ') => {}
                Some("" | "?") => {
                    bind.insert(format!("{name}.{i}"), extent);
                }
                Some(symbol) => {
                    bind.insert(symbol.to_string(), extent);
                }
                None if dim.is_null() => {
                    bind.insert(format!("{name}.{i}"), extent);
                }
                None => {}
            }
        }
    }
    bind
}

/// A data set: tensors by name, inputs and outputs.
fn data_set(folder: &Path) -> [BTreeMap<String, Tensor>; 2] {
    let read = |prefix: &str| {
        let files = entries(folder)
            .into_iter()
            .filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with(prefix));
        files.map(|p| read_tensor(&p).unwrap()).collect()
    };
    [read("input_"), read("output_")]
}

/// The largest `|a - b| - rtol·|b|`, and whether it is within `atol` everywhere.
fn close(found: &Tensor, expected: &Tensor, atol: f64, rtol: f64) -> Result<(), String> {
    if found.ty() != expected.ty() {
        return Err(format!("is {}, expected {}", found.ty(), expected.ty()));
    }
    for (i, (a, b)) in found.to_f64s().into_iter().zip(expected.to_f64s()).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan());
        if !same && !((a - b).abs() <= atol + rtol * b.abs()) {
            return Err(format!("element {i} is {a}, expected {b}"));
        }
    }
    Ok(())
}

/// Imports a model for a data set, evaluates it and compares.
fn check(folder: &Path, meta: &Value, set: &Path) -> Result<(), String> {
    let path = folder.join("model.onnx");
    let [inputs, outputs] = data_set(set);
    let bind = bindings(meta, &inputs);
    let model = import(&path, &ImportOptions { bind }).map_err(|e| format!("import: {e}"))?;
    let graph = &model.graph;
    let operands: Vec<Tensor> = graph
        .inputs
        .iter()
        .map(|&v| inputs.get(&graph.value(v).name).cloned().ok_or("an input has no data"))
        .collect::<Result<_, _>>()?;
    let results = evaluate(graph, &operands, &ModelFiles::new(&path)).map_err(|e| e.to_string())?;
    let atol = meta["atol"].as_f64().unwrap_or(1e-4);
    let rtol = meta["rtol"].as_f64().unwrap_or(1e-3);
    for (&v, found) in graph.outputs.iter().zip(&results) {
        let name = &graph.value(v).name;
        let expected = outputs.get(name).ok_or_else(|| format!("no output {name} expected"))?;
        close(found, expected, atol, rtol).map_err(|e| format!("output `{name}` {e}"))?;
    }
    Ok(())
}

#[test]
fn models_evaluate_to_their_expected_outputs() {
    let Some(models) = models() else { return };
    let only = std::env::var("PLANC_MODEL").unwrap_or_default();
    for folder in entries(&models.join("run")) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_string();
        if !name.contains(&only) {
            continue;
        }
        let meta = json(&folder.join("meta.json"));
        for set in entries(&folder).into_iter().filter(|p| p.is_dir()) {
            let t = std::time::Instant::now();
            let r = check(&folder, &meta, &set);
            eprintln!(
                "{name} {:?} {:.2?} {}",
                set.file_name().unwrap(),
                t.elapsed(),
                match &r {
                    Ok(()) => "ok".into(),
                    Err(e) => e.chars().take(600).collect::<String>(),
                }
            );
        }
    }
}
