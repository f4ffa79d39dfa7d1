//! ONNX in and out: the importer on real, hand-made, hostile and random files.

#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stderr)] // says aloud what is left out
#![allow(clippy::float_cmp)] // results that are exact are compared exactly
#![allow(clippy::unnecessary_wraps)] // proto2 fields are options

mod builder;
mod control;
mod deferred;
mod dropout;
mod functions;
mod import;
mod models;
mod nasty;
mod wire;

use planc_ir::Tensor;
use std::fs;
use std::path::{Path, PathBuf};

/// The optional folder of models beside the workspace, if it is there.
fn shared_models() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models");
    let there = path.is_dir();
    if !there {
        eprintln!("skipped: {} is not there", path.display());
    }
    there.then_some(path)
}

/// What a folder holds, sorted.
fn entries(path: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
    list.sort();
    list
}

/// A path's last part without its extension.
fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_str().unwrap().to_string()
}

fn vector(v: &[f32]) -> Tensor {
    Tensor::vector(v.to_vec())
}
