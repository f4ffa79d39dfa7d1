//! planc's cross-crate test suites: what they share.
//!
//! Models come from `tests/data/models` and, where it is present, from the larger set in
//! `../shared/models` beside the checkout. A test that needs the larger set says aloud when it is
//! absent.
#![allow(clippy::print_stderr)] // says aloud what is left out

use onnx_protobuf::ModelProto;
use planc::pipeline::{Compiled, compile};
use planc::search::SearchOptions;
use planc::verify::{Comparison, Tolerance, compare};
use planc_cost_model::{Catalogue, Cluster, CostModel};
use planc_ir::Tensor;
use planc_ir::onnx::tensor::read_tensor;
use planc_ir::onnx::{ImportOptions, Model, import};
use planc_ir::plan::Plan;
use planc_runtime::Session;
use protobuf::Message as _;
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
        eprintln!(
            "SKIPPED: `{name}` is not among the project's own models and ../shared/models is absent"
        );
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
    let mut session = Session::load(&plan, &model.path).expect("the plan loads");
    let outputs = session.run(&set.inputs).expect("the plan runs");
    assert_eq!(outputs.len(), set.outputs.len(), "{}", model.name);
    let tolerance = Tolerance { atol: model.atol, rtol: model.rtol };
    let mut worst = Comparison { max_abs: 0.0, max_rel: 0.0, equal: true };
    for (name, found) in &outputs {
        let c = compare(found, &set.outputs[name], tolerance);
        worst.max_abs = worst.max_abs.max(c.max_abs);
        worst.max_rel = worst.max_rel.max(c.max_rel);
        worst.equal &= c.equal;
    }
    RunResult { mesh: compiled.search.strategy.mesh.to_string(), worst }
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
    let import_options = ImportOptions { bind: bind.iter().cloned().collect() };
    let model = import(path, &import_options).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let compiled = compile(&model, &file, cost, options, &|_| ())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    (model, compiled)
}

/// The values of a model's symbolic dimensions under which a data set's inputs fit.
pub fn bindings(path: &Path, set: &DataSet) -> Vec<(String, u64)> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let proto = ModelProto::parse_from_bytes(&bytes).expect("onnx-protobuf reads the model");
    let mut found = BTreeMap::new();
    for input in &proto.graph.input {
        let Some(tensor) = set.inputs.get(&input.name) else { continue };
        for (dim, &extent) in input.type_.tensor_type().shape.dim.iter().zip(tensor.shape()) {
            if dim.has_dim_param() && dim.dim_param().parse::<u64>().is_err() {
                found.insert(dim.dim_param().to_string(), extent);
            }
        }
    }
    found.into_iter().collect()
}
