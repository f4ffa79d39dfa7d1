//! planc's cross-crate test suites: what they share.
//!
//! Models come from `tests/data/models` and, where it is present, from the larger set in
//! `../shared/models` beside the checkout. A test that needs the larger set says aloud when it is
//! absent.

use planc_ir::Tensor;
use planc_ir::onnx::tensor::read_tensor;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The checkout's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The larger set of models, if it is there.
pub fn shared() -> Option<PathBuf> {
    let path = root().join("../shared/models");
    path.is_dir().then_some(path)
}

/// A model with reference data.
#[derive(Debug)]
pub struct TestModel {
    /// Its folder's name.
    pub name: String,
    /// The ONNX file.
    pub path: PathBuf,
    /// Tolerances of its outputs.
    pub atol: f64,
    /// The relative one.
    pub rtol: f64,
    /// Data sets: named inputs and outputs.
    pub sets: Vec<DataSet>,
}

/// Inputs and expected outputs of one run.
#[derive(Debug)]
pub struct DataSet {
    /// Inputs by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// Expected outputs by name.
    pub outputs: BTreeMap<String, Tensor>,
}

/// The model called `name` of the `run` set, from the larger set if it is there, else from the
/// project's own; `None` (said aloud) if neither has it.
pub fn run_model(name: &str) -> Option<TestModel> {
    let own = root().join("tests/data/models").join(name);
    let folder = shared()
        .map(|s| s.join("run").join(name))
        .filter(|f| f.is_dir())
        .or_else(|| own.is_dir().then_some(own));
    let Some(folder) = folder else {
        eprintln!("SKIPPED: `{name}` is not among the project's own models and ../shared/models is absent");
        return None;
    };
    let meta: Value = serde_json::from_str(&read(&folder.join("meta.json"))).expect("meta.json");
    let tolerance = |key: &str, default: f64| meta[key].as_f64().unwrap_or(default);
    Some(TestModel {
        name: name.to_string(),
        path: folder.join("model.onnx"),
        atol: tolerance("atol", 1e-4),
        rtol: tolerance("rtol", 1e-3),
        sets: data_sets(&folder),
    })
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The data sets of a model's folder, in order.
pub fn data_sets(folder: &Path) -> Vec<DataSet> {
    (0..)
        .map(|i| folder.join(format!("test_data_set_{i}")))
        .take_while(|set| set.is_dir())
        .map(|set| DataSet { inputs: tensors(&set, "input"), outputs: tensors(&set, "output") })
        .collect()
}

fn tensors(set: &Path, kind: &str) -> BTreeMap<String, Tensor> {
    (0..)
        .map(|i| set.join(format!("{kind}_{i}.pb")))
        .take_while(|file| file.is_file())
        .map(|file| read_tensor(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())))
        .collect()
}
