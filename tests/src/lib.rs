//! planc's cross-crate test suites: what they share.
//!
//! Models come from `tests/data/models` and, where it is present, from the larger set in
//! `../shared/models` beside the checkout. A test that needs the larger set says aloud when it is
//! absent.
#![allow(clippy::print_stderr)] // says aloud what is left out

pub mod random;
pub mod training;

use planc::compile::{Compiled, compile};
use planc::search::SearchOptions;
use planc::verify::{Comparison, Tolerance, compare};
use planc_cost_model::{Catalogue, Cluster, CostModel};
use planc_ir::Tensor;
use planc_ir::graph::{Graph, ValueDef};
use planc_ir::onnx::tensor::read_tensor;
use planc_ir::onnx::{self, ImportOptions, Model, import};
use planc_ir::plan::Plan;
use planc_ir::weights::{ModelFiles, Weights as _};
use planc_runtime::Session;
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
    /// Whether the outputs of tokens that may attend to nothing count. Where a reference was computed by
    /// torch they are zeros, while the file computes the mean over all keys.
    pub counts_masked: bool,
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
        eprintln!(
            "SKIPPED: `{name}` is not among the project's own models and ../shared/models is absent"
        );
        return None;
    };
    Some(model_in(&folder))
}

/// Every model with reference data in a folder of the larger set, by name; none (said aloud) if the set
/// is absent.
pub fn models_in(set: &str) -> Vec<TestModel> {
    let Some(shared) = shared() else {
        eprintln!("SKIPPED: ../shared/models is absent");
        return Vec::new();
    };
    let entries = std::fs::read_dir(shared.join(set)).expect("the set has this folder");
    let mut folders: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    folders.retain(|f| f.join("meta.json").is_file());
    folders.sort();
    folders.iter().map(|f| model_in(f)).collect()
}

fn model_in(folder: &Path) -> TestModel {
    let meta: Value = serde_json::from_str(&read(&folder.join("meta.json"))).expect("meta.json");
    let tolerance = |key: &str, default: f64| meta[key].as_f64().unwrap_or(default);
    let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
    let own = folder.join(format!("{name}.onnx"));
    TestModel {
        path: if own.is_file() { own } else { folder.join("model.onnx") },
        name,
        atol: tolerance("atol", 1e-4),
        rtol: tolerance("rtol", 1e-3),
        counts_masked: meta["reference"] != "torch",
        sets: data_sets(folder),
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The paths that `name` gives for 0, 1, 2 … as far as they exist.
fn numbered(name: impl Fn(usize) -> PathBuf) -> impl Iterator<Item = PathBuf> {
    (0..).map(name).take_while(|path| path.exists())
}

/// The data sets of a model's folder, in order.
pub fn data_sets(folder: &Path) -> Vec<DataSet> {
    numbered(|i| folder.join(format!("test_data_set_{i}")))
        .map(|set| DataSet { inputs: tensors(&set, "input"), outputs: tensors(&set, "output") })
        .collect()
}

fn tensors(set: &Path, kind: &str) -> BTreeMap<String, Tensor> {
    numbered(|i| set.join(format!("{kind}_{i}.pb")))
        .map(|file| read_tensor(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())))
        .collect()
}

/// What running a planned model gave.
#[derive(Debug)]
pub struct RunResult {
    /// The chosen mesh.
    pub mesh: String,
    /// The output that differs most from what was expected.
    pub worst: Comparison,
}

/// Plans `model` for `ranks` devices with the dimensions of `set`, runs the plan (as it reads back
/// from its JSON) on CPU ranks, and compares.
pub fn plan_and_run(model: &TestModel, set: &DataSet, ranks: u32) -> RunResult {
    let bind = bindings(&model.path, set);
    let cost = cost_model("H100", ranks);
    let (_, compiled) = plan(&model.path, &bind, &cost, &SearchOptions::default());
    let json = compiled.plan.to_json().expect("the plan is written");
    let plan = Plan::from_json(&json).expect("the plan reads back");
    let mut session = Session::load(&plan, &model.path).unwrap_or_else(|e| panic!("{e}"));
    let outputs = session.run(&set.inputs).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outputs.len(), set.outputs.len(), "{}", model.name);
    let tolerance = Tolerance { atol: model.atol, rtol: model.rtol };
    let mut worst = Comparison { max_abs: 0.0, max_rel: 0.0, equal: true };
    let mask = set.inputs.get("attention_mask").filter(|_| !model.counts_masked);
    for (name, found) in &outputs {
        let expected = &set.outputs[name];
        let c = match mask {
            Some(mask) => compare(&masked(found, mask), &masked(expected, mask), tolerance),
            None => compare(found, expected, tolerance),
        };
        worst.max_abs = worst.max_abs.max(c.max_abs);
        worst.max_rel = worst.max_rel.max(c.max_rel);
        worst.equal &= c.equal;
    }
    RunResult { mesh: compiled.stages[0].search.strategy.mesh.to_string(), worst }
}

/// A tensor of one row a token, zero where the mask is.
fn masked(tensor: &Tensor, mask: &Tensor) -> Tensor {
    let row = tensor.len() / mask.len();
    let at = |i: usize| if mask.int_at(i / row) == 0 { 0.0 } else { tensor.f64_at(i) };
    Tensor::from_f64(tensor.ty().clone(), at).expect("as large as it was")
}

/// The cost model of `devices` devices of one type.
pub fn cost_model(device: &str, devices: u32) -> CostModel {
    let catalogue = Catalogue::shipped().expect("the shipped profiles are valid");
    let cluster = Cluster::homogeneous(device, devices, &catalogue).expect("cluster");
    CostModel::new(&cluster, &catalogue).expect("cost model")
}

/// Imports and compiles.
pub fn plan(
    path: &Path,
    bind: &[(String, u64)],
    cost: &CostModel,
    options: &SearchOptions,
) -> (Model, Compiled) {
    let import_options =
        ImportOptions { bind: bind.iter().cloned().collect(), ..ImportOptions::default() };
    let model = import(path, &import_options).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let compiled = compile(&model, &file, cost, options, &|_| ())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    (model, compiled)
}

/// The values of a model's symbolic dimensions under which a data set's inputs fit.
pub fn bindings(path: &Path, set: &DataSet) -> Vec<(String, u64)> {
    let shapes = set.inputs.iter().map(|(name, t)| (name.clone(), t.shape().to_vec())).collect();
    let found = onnx::bindings(path, &shapes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    found.into_iter().collect()
}

/// The weights and the constants of a graph, by name; weights' contents come from the model at `path`.
pub fn contents(
    graph: &Graph,
    path: &Path,
) -> (BTreeMap<String, Tensor>, BTreeMap<String, Tensor>) {
    let files = ModelFiles::new(path);
    let (mut weights, mut constants) = (BTreeMap::new(), BTreeMap::new());
    for v in &graph.values {
        match &v.def {
            ValueDef::Weight(source) => {
                let tensor = files.load(&v.name, &v.ty, source).expect("the weight is there");
                weights.insert(v.name.clone(), tensor);
            }
            ValueDef::Constant(t) => {
                constants.insert(v.name.clone(), t.as_ref().clone());
            }
            _ => {}
        }
    }
    (weights, constants)
}
