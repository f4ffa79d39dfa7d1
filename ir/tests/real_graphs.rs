//! The verifier and the textual form on real models: every one that imports has no findings, and parses
//! back equal from its text.
#![allow(clippy::print_stderr)] // says aloud what is left out

use planc_ir::onnx::{ImportError, ImportOptions, import};
use planc_ir::text::{parse, print};
use planc_ir::verify::verify;
use std::path::{Path, PathBuf};

/// Every ONNX file of the optional model folder that is not made to be malformed.
fn models() -> Option<Vec<PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models");
    let mut found = Vec::new();
    let mut folders = vec![root.join("run"), root.join("plan"), root.join("wild")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).ok()? {
            let path = entry.ok()?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "onnx") {
                found.push(path);
            }
        }
    }
    found.sort();
    Some(found)
}

/// Binds every symbol to a size that suits its name.
fn import_bound(path: &Path) -> Result<planc_ir::Graph, ImportError> {
    let mut options = ImportOptions::default();
    if let Err(ImportError::Unbound { names }) = import(path, &options) {
        let size = |name: &str| if name.contains("seq") { 8 } else { 2 };
        options.bind = names.into_iter().map(|name| (name.clone(), size(&name))).collect();
    }
    Ok(import(path, &options)?.graph)
}

#[test]
fn real_graphs_verify_and_parse_back_equal() {
    let Some(models) = models() else {
        eprintln!("skipped: the optional model folder ../shared/models is absent");
        return;
    };
    let mut imported = 0;
    for path in &models {
        let graph = match import_bound(path) {
            Ok(graph) => graph,
            Err(e) => {
                eprintln!("not imported: {}: {e}", path.display());
                continue;
            }
        };
        imported += 1;
        assert_eq!(verify(&graph), [], "{}", path.display());
        let text = print(&graph);
        let parsed = parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        // Not by `assert_eq!`: printing two whole graphs helps nobody.
        assert!(parsed == graph, "{} parses back to another graph", path.display());
    }
    eprintln!("{imported} of {} models", models.len());
    assert!(imported * 2 > models.len(), "only {imported} of {} models import", models.len());
}

/// The model folder's file, or `None`, said aloud.
fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models").join(path);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: the optional model folder ../shared/models is absent");
    None
}

fn bind(pairs: &[(&str, u64)]) -> ImportOptions {
    ImportOptions {
        bind: pairs.iter().map(|(n, v)| ((*n).to_string(), *v)).collect(),
        ..ImportOptions::default()
    }
}

/// A file, given values, and the names that follow with their values and expressions.
type Case =
    (&'static str, &'static [(&'static str, u64)], &'static [(&'static str, u64, &'static str)]);

#[test]
fn unstated_relations_between_symbols_are_found() {
    let cases: [Case; 3] = [
        (
            "run/gpt2-kv-legacy/model.onnx",
            &[("batch", 1), ("past_seq", 8)],
            &[("total_seq", 9, "past_seq + 1")],
        ),
        ("run/t5-hf/model.onnx", &[("s11", 3), ("s53", 7), ("s28", 5)], &[("s43", 3, "s11")]),
        (
            "run/llama-kv-hf/model.onnx",
            &[("s54", 1), ("s36", 7)],
            &[("s43", 1, "s54"), ("s53", 8, "s36 + 1")],
        ),
    ];
    for (path, given, expected) in cases {
        let Some(path) = shared(path) else { return };
        let model =
            import(&path, &bind(given)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let found =
            model.relations.iter().map(|(n, r)| (n.as_str(), r.value, r.expression.as_str()));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{}", path.display());
    }
}

#[test]
fn contradicting_symbols_are_reported() {
    let Some(path) = shared("run/gpt2-kv-legacy/model.onnx") else { return };
    let options = bind(&[("batch", 2), ("past_seq", 8), ("total_seq", 5)]);
    let error = import(&path, &options).unwrap_err().to_string();
    let said = "--bind total_seq=5 contradicts the model, in which `total_seq` is past_seq + 1 = 9";
    assert!(error.contains(said), "{error}");
}
