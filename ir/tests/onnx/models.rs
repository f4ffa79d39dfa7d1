//! Real exported models: imported, evaluated by the reference interpreter, compared with the outputs
//! that come with them.

use crate::{entries, shared_models, stem};
use planc_ir::interp::evaluate;
use planc_ir::onnx::tensor::read_tensor;
use planc_ir::onnx::{ImportError, ImportOptions, bindings, import};
use planc_ir::verify::verify;
use planc_ir::weights::ModelFiles;
use planc_ir::{Tensor, ValueDef, WeightSource};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A data set's tensors by name: inputs and outputs.
fn data_set(folder: &Path) -> [BTreeMap<String, Tensor>; 2] {
    ["input_", "output_"].map(|prefix| {
        let files = entries(folder).into_iter().filter(|p| stem(p).starts_with(prefix));
        files.map(|p| read_tensor(&p).unwrap()).collect()
    })
}

/// How far apart two tensors are at most.
#[derive(Default)]
struct Distance {
    absolute: f64,
    relative: f64,
}

impl Distance {
    /// Adds two tensors to the comparison; the first element beyond the tolerance is an error.
    fn compare(
        &mut self,
        found: &Tensor,
        expected: &Tensor,
        [atol, rtol]: [f64; 2],
        counts: impl Fn(usize) -> bool,
    ) -> Result<(), String> {
        if found.ty() != expected.ty() {
            return Err(format!("is {}, expected {}", found.ty(), expected.ty()));
        }
        let pairs = found.to_f64s().into_iter().zip(expected.to_f64s()).enumerate();
        let mut far = None;
        for (i, (a, b)) in pairs.filter(|(i, _)| counts(*i)) {
            if a == b || (a.is_nan() && b.is_nan()) {
                continue;
            }
            let distance = (a - b).abs();
            self.absolute = self.absolute.max(distance);
            self.relative = self.relative.max(distance / b.abs());
            let is_near = distance <= atol + rtol * b.abs();
            far = far.or((!is_near).then(|| format!("element {i} is {a}, expected {b}")));
        }
        far.map_or(Ok(()), Err)
    }
}

/// Imports a model for a data set, evaluates it and compares.
fn check(folder: &Path, set: &Path, distance: &mut Distance) -> Result<(), String> {
    let meta = json(&folder.join("meta.json"));
    let files = entries(folder).into_iter();
    let path = files.into_iter().find(|p| p.extension().is_some_and(|e| e == "onnx")).unwrap();
    let [inputs, outputs] = data_set(set);
    let shapes = inputs.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
    let options =
        ImportOptions { bind: bindings(&path, &shapes).unwrap(), ..ImportOptions::default() };
    let model = import(&path, &options).map_err(|e| format!("import: {e}"))?;
    if Some(model.parameters) != meta["parameters"].as_u64() {
        return Err(format!("{} parameters, expected {}", model.parameters, meta["parameters"]));
    }
    let graph = &model.graph;
    assert_eq!(verify(graph), [], "{}", path.display());
    let operands: Vec<Tensor> =
        graph.inputs.iter().map(|&v| inputs[&graph.value(v).name].clone()).collect();
    let results = evaluate(graph, &operands, &ModelFiles::new(&path)).map_err(|e| e.to_string())?;
    let tolerance = [meta["atol"].as_f64().unwrap_or(1e-4), meta["rtol"].as_f64().unwrap_or(1e-3)];
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
        let compared = distance.compare(found, expected, tolerance, counts);
        compared.map_err(|e| format!("output `{name}` {e}"))?;
    }
    Ok(())
}

/// Evaluates the models of a folder, every `of`th from number `part` on, and prints a table of them.
fn check_all(set: &str, part: usize, of: usize) {
    let Some(models) = shared_models() else { return };
    let folders = entries(&models.join(set)).into_iter().skip(part).step_by(of);
    let mut failures = Vec::new();
    eprintln!("{:<26} | {:<15} | seconds | max abs | max rel | outcome", "name", "set");
    for folder in folders.filter(|f| f.join("meta.json").is_file()) {
        let name = stem(&folder);
        for path in entries(&folder).into_iter().filter(|p| p.is_dir()) {
            let (start, set) = (Instant::now(), stem(&path));
            let mut d = Distance::default();
            let outcome = check(&folder, &path, &mut d);
            let seconds = start.elapsed().as_secs_f64();
            let said = outcome.as_ref().map_or_else(String::as_str, |()| "ok");
            eprintln!(
                "{name:<26} | {set:<15} | {seconds:>7.2} | {:.1e} | {:.1e} | {said}",
                d.absolute, d.relative
            );
            failures.extend(outcome.err().map(|e| format!("{name} {set}: {e}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

// In parts, so that they run side by side.
macro_rules! parts {
    ($($test:ident: $folder:literal $part:literal of $of:literal),+ $(,)?) => {
        $(#[test] fn $test() { check_all($folder, $part, $of); })+
    };
}

parts! {
    exported_models_evaluate_0: "run" 0 of 2,
    exported_models_evaluate_1: "run" 1 of 2,
    wild_models_evaluate_0: "wild" 0 of 2,
    wild_models_evaluate_1: "wild" 1 of 2,
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
                import(&path, &ImportOptions { bind, ..ImportOptions::default() })
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
            Err(e) => wrong.push(format!("{name}: {e}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
