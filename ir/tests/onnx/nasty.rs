//! Malformed and hostile files: each is accepted or refused as `expect.json` says, quickly.

use crate::{entries, shared_models, stem};
use planc_ir::interp::evaluate;
use planc_ir::onnx::{ImportError, ImportOptions, Model, import};
use planc_ir::weights::ModelFiles;
use planc_ir::{Tensor, TensorType};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Imports with every symbol bound to 2.
fn import_bound(path: &Path) -> Result<Model, ImportError> {
    match import(path, &ImportOptions::default()) {
        Err(ImportError::Unbound { names }) => {
            let bind = names.into_iter().map(|n| (n, 2)).collect();
            import(path, &ImportOptions { bind, ..ImportOptions::default() })
        }
        other => other,
    }
}

/// Evaluates on ones (`true` for bools).
fn run(path: &Path, model: &Model) -> Result<(), String> {
    let graph = &model.graph;
    let ones = |ty: &TensorType| Tensor::from_int(ty.clone(), |_| 1).map_err(|e| e.to_string());
    let inputs = graph.inputs.iter().map(|&v| ones(graph.ty(v))).collect::<Result<Vec<_>, _>>()?;
    evaluate(graph, &inputs, &ModelFiles::new(path)).map(drop).map_err(|e| e.to_string())
}

/// Checks the files of a folder, but for those that `except` has too.
fn check_folder(folder: &Path, except: Option<&Path>) -> Vec<String> {
    let text = fs::read_to_string(folder.join("expect.json")).unwrap();
    let expect: Value = serde_json::from_str(&text).unwrap();
    let mut wrong = Vec::new();
    let files = entries(folder).into_iter().filter(|p| p.extension().is_some_and(|e| e == "onnx"));
    let files = files.filter(|p| except.is_none_or(|e| !e.join(p.file_name().unwrap()).exists()));
    for path in files {
        let name = stem(&path);
        let expected = expect[&name]["expect"].as_str().unwrap();
        let start = Instant::now();
        let imported = import_bound(&path);
        let took = start.elapsed();
        let run = imported.as_ref().ok().map(|model| run(&path, model));
        let fits = matches!(
            (expected, &imported, &run),
            ("accept", Ok(_), Some(Ok(())))
                | ("plan-only", Ok(_), Some(Err(_)))
                | ("reject", Err(_), _)
                | ("reject", _, Some(Err(_)))
                | ("either", ..)
        );
        let said = match (&imported, run) {
            (Err(e), _) => format!("refused: {e}"),
            (Ok(_), Some(Err(e))) => format!("imported, not run: {e}"),
            _ => "imported and run".to_string(),
        };
        eprintln!("{name} ({expected}, {took:.0?}): {said}");
        // A debug build on a busy machine is slow; a hang is not.
        if !fits || took > Duration::from_secs(10) {
            wrong.push(format!("{name}: expected {expected}, {said} in {took:.1?}"));
        }
    }
    wrong
}

#[test]
fn nasty_files_meet_their_expectations() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/nasty");
    let mut wrong = check_folder(&committed, None);
    if let Some(models) = shared_models() {
        wrong.extend(check_folder(&models.join("nasty"), Some(&committed)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
