//! `cargo bench -p planc-runtime --bench cpu [-- NAME..] [--trace]`: milliseconds a run of a model on one
//! CPU rank, and the ratio to ONNX Runtime on one thread where the Python that `PLANC_PYTHON` names
//! (default `python3`) has it.
//!
//! Models are folders of the `run` set, from `../shared/models` or `tests/data/models`, and some of the
//! builders' at sizes at which arithmetic counts for more than overhead. `--trace` says where the
//! time goes, by kernel.

#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)] // a benchmark's purpose

use planc_codegen::partition;
use planc_ir::graph::ValueDef;
use planc_ir::onnx::tensor::{read_tensor, write_tensor};
use planc_ir::onnx::{ImportOptions, import};
use planc_ir::program::{Instr, Kernel, Program};
use planc_ir::sharding::reshard::{Step, StepCost};
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::weights::{ModelFiles, Weights as _};
use planc_ir::{DType, Graph, Tensor, TensorType};
use planc_models::{Config, Size, Weights, build};
use planc_runtime::Executor;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Models of the `run` set that are measured unless others are named.
const RUN_MODELS: [&str; 6] = [
    "resnet18-dynamo",
    "bert-dynamo",
    "llama-dynamo",
    "gpt2-dynamo",
    "vit-hf-dynamo",
    "mobilenetv2-dynamo",
];

/// Builders' models: name, family, layers, width, heads, tokens.
const BUILT_MODELS: [(&str, &str, u64, u64, u64, u64); 2] =
    [("gpt-512x4", "gpt", 4, 512, 8, 128), ("llama-512x4", "llama", 4, 512, 8, 128)];

const LEAST_RUNS: usize = 10;
const LEAST_TIME: Duration = Duration::from_secs(1);

/// One rank never reshards.
struct Free;

impl StepCost for Free {
    fn step_us(&self, _: &Step, _: &TensorType, _: &TensorType, _: &Mesh) -> f64 {
        0.0
    }
}

/// A model file, and a folder with its inputs.
struct Case {
    name: String,
    model: PathBuf,
    inputs: PathBuf,
    bind: BTreeMap<String, u64>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let trace = arguments.iter().any(|a| a == "--trace");
    let names: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|a| !a.starts_with("--")).collect();
    let scratch = tempfile::tempdir().unwrap();
    println!("{:<24} {:>10} {:>14} {:>7}", "one CPU rank", "ms a run", "ONNX Runtime", "ratio");
    for name in RUN_MODELS {
        if names.is_empty() || names.contains(&name) {
            match run_case(name) {
                Some(case) => measure(&case, trace),
                None => println!("{name:<24} skipped: there is no such folder"),
            }
        }
    }
    for name in names.iter().filter(|n| !RUN_MODELS.contains(n)) {
        if let Some(case) = run_case(name) {
            measure(&case, trace);
        }
    }
    for built in BUILT_MODELS {
        if names.is_empty() || names.contains(&built.0) {
            measure(&built_case(built, scratch.path()), trace);
        }
    }
}

fn run_case(name: &str) -> Option<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = ["../shared/models/run", "tests/data/models"]
        .iter()
        .map(|set| root.join(set).join(name))
        .find(|folder| folder.is_dir())?;
    let meta = std::fs::read_to_string(folder.join("meta.json")).unwrap();
    let meta: Value = serde_json::from_str(&meta).unwrap();
    let mut bind = BTreeMap::new();
    for input in meta["inputs"].as_array().unwrap() {
        let found = &meta["data_sets"][0]["inputs"][input["name"].as_str().unwrap()];
        for (dim, extent) in input["dims"].as_array().unwrap().iter().zip(found.as_array().unwrap())
        {
            if let Some(symbol) = dim.as_str() {
                bind.insert(symbol.to_string(), extent.as_u64().unwrap());
            }
        }
    }
    let (model, inputs) = (folder.join("model.onnx"), folder.join("test_data_set_0"));
    Some(Case { name: name.to_string(), model, inputs, bind })
}

fn built_case(
    (name, family, layers, hidden, heads, seq): (&str, &str, u64, u64, u64, u64),
    scratch: &Path,
) -> Case {
    let config =
        Config { batch: Some(1), weights: Weights::Random { seed: 1 }, ..Config::default() }
            .with(Size::Layers, layers)
            .with(Size::Hidden, hidden)
            .with(Size::Heads, heads)
            .with(Size::Vocab, 8192)
            .with(Size::Seq, seq);
    let folder = scratch.join(name);
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("model.onnx");
    planc_models::write(&build(family, &config).unwrap(), &path).unwrap();
    let graph = import(&path, &ImportOptions::default()).unwrap().graph;
    for (i, &id) in graph.inputs.iter().enumerate() {
        let value = graph.value(id);
        assert_eq!(value.ty.dtype, DType::I64, "`{}`: token numbers", value.name);
        let tokens = Tensor::from_int(value.ty.clone(), |i| (i * 37 % 8192) as i128).unwrap();
        write_tensor(&folder.join(format!("input_{i}.pb")), &value.name, &tokens).unwrap();
    }
    Case { name: name.to_string(), model: path, inputs: folder, bind: BTreeMap::new() }
}

fn measure(case: &Case, trace: bool) {
    let options = ImportOptions { bind: case.bind.clone(), ..ImportOptions::default() };
    let graph = import(&case.model, &options).unwrap().graph;
    let mut executor = executor(&graph, &case.model);
    let inputs: BTreeMap<String, Tensor> = (0..graph.inputs.len())
        .map(|i| case.inputs.join(format!("input_{i}.pb")))
        .take_while(|path| path.exists())
        .map(|path| read_tensor(&path).unwrap())
        .collect();
    let ours = usual_ms(|| {
        executor.run(&inputs).unwrap();
    });
    match onnxruntime_ms(case) {
        Ok(theirs) => {
            let ratio = ours / theirs;
            println!("{:<24} {ours:>10.3} {theirs:>14.3} {ratio:>7.2}", case.name);
        }
        Err(why) => println!("{:<24} {ours:>10.3} {why}", case.name),
    }
    if trace {
        print_trace(&mut executor, &inputs);
    }
}

/// The graph on one rank.
fn executor(graph: &Graph, model: &Path) -> Executor {
    let strategy = Strategy::replicated(graph, Mesh::new([("rank", 1)]));
    let program = partition(graph, &strategy, &Free).unwrap();
    let files = ModelFiles::new(model);
    let (mut weights, mut constants) = (BTreeMap::new(), BTreeMap::new());
    for value in &graph.values {
        match &value.def {
            ValueDef::Weight(source) => {
                let tensor = files.load(&value.name, &value.ty, source).unwrap();
                weights.insert(value.name.clone(), tensor);
            }
            ValueDef::Constant(tensor) => {
                constants.insert(value.name.clone(), tensor.as_ref().clone());
            }
            ValueDef::Input | ValueDef::Accumulator | ValueDef::Node { .. } => {}
        }
    }
    Executor::new(program, &weights, &constants).unwrap()
}

/// The lower quartile of many runs: other processes only ever add to a time.
fn usual_ms(mut f: impl FnMut()) -> f64 {
    f();
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < LEAST_RUNS || begin.elapsed() < LEAST_TIME {
        let started = Instant::now();
        f();
        times.push(started.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 4].as_secs_f64() * 1e3
}

fn onnxruntime_ms(case: &Case) -> Result<f64, String> {
    let python = std::env::var("PLANC_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/time_onnxruntime.py");
    let output = Command::new(&python)
        .arg(script)
        .args([&case.model, &case.inputs])
        .output()
        .map_err(|e| format!("(no ONNX Runtime: {python}: {e})"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.trim().parse().map_err(|_| {
        let message = String::from_utf8_lossy(&output.stderr);
        format!("(no ONNX Runtime: {})", message.lines().last().unwrap_or("it printed no time"))
    })
}

/// The share of each kind of instruction in the time of one run, by the medians of the instructions' times.
fn print_trace(executor: &mut Executor, inputs: &BTreeMap<String, Tensor>) {
    const RUNS: usize = 25;
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); executor.program().instrs.len() + 1];
    for _ in 0..RUNS {
        let ends = Mutex::new(vec![Instant::now()]);
        executor
            .run_observed(std::slice::from_ref(inputs), &|_, _| {
                ends.lock().unwrap().push(Instant::now());
            })
            .unwrap();
        for (times, ends) in times.iter_mut().zip(ends.into_inner().unwrap().windows(2)) {
            times.push(ends[1] - ends[0]);
        }
    }
    let program = executor.program();
    let kinds = std::iter::once("inputs".to_string())
        .chain(program.instrs.iter().map(|instr| kind(program, instr)));
    let mut totals: BTreeMap<String, (u32, Duration)> = BTreeMap::new();
    for (kind, mut times) in kinds.zip(times) {
        times.sort_unstable();
        let total = totals.entry(kind).or_default();
        total.0 += 1;
        total.1 += times[RUNS / 2];
    }
    let mut rows: Vec<_> = totals.into_iter().collect();
    rows.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
    for (kind, (count, time)) in rows.iter().take(16) {
        println!("    {:>10.1} us {count:>5} x {kind}", time.as_secs_f64() * 1e6);
    }
}

/// What an instruction is, with the type of its result.
fn kind(program: &Program, instr: &Instr) -> String {
    let name = match instr {
        Instr::Reshard { .. } | Instr::Issue { .. } | Instr::Wait { .. } => "reshard".to_string(),
        Instr::Send { .. } | Instr::Receive { .. } => "between stages".to_string(),
        Instr::Kernel { kernel: Kernel::Map { f }, .. } => format!("map {f:?}"),
        Instr::Kernel { kernel: Kernel::Reference { op }, .. } => {
            format!("reference {}", op.name())
        }
        Instr::Kernel { kernel, .. } => {
            let text = format!("{kernel:?}");
            text.split([' ', '{']).next().unwrap_or_default().to_string()
        }
    };
    let results: Vec<String> =
        instr.writes().iter().map(|&b| program.buffer(b).ty.to_string()).collect();
    format!("{name} to {}", results.join(", "))
}
