//! `planc train`: losses, checkpoints, resuming under another plan, and what is refused.

#[path = "../../../runtime/tests/common/mod.rs"]
mod common;
#[path = "../../../runtime/tests/training/model.rs"]
mod model;

use super::{planc, text};
use common::{f32s, numbers};
use planc_ir::onnx::wire::NodeProto;
use planc_ir::sharding::Mesh;
use planc_ir::{Tensor, TensorType};
use planc_models::{Config, Size};
use planc_runtime::Session;
use planc_runtime::safetensors_file::write;
use std::collections::BTreeMap;
use std::path::Path;

/// Batches in the data.
const BATCHES: usize = 7;

fn data() -> BTreeMap<&'static str, Tensor> {
    // One with a dimension more, the other with more rows.
    [("x", f32s([7, 4, 6])), ("t", f32s([28, 5]))].map(|(n, ty)| (n, numbers(ty, 1))).into()
}

fn write_data(path: &Path, tensors: &BTreeMap<&str, Tensor>) {
    let types = tensors.iter().map(|(n, t)| (*n, t.ty())).collect();
    let contents = |name: &str| Ok::<_, std::io::Error>(tensors[name].to_bytes());
    let file = std::fs::File::create(path).expect("the data is written");
    write(file, &types, ("made by", "a test"), contents).expect("the data is written");
}

/// A folder with the data, and plans for one, two and four ranks.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write_data(&folder.path().join("data"), &data());
    let graph = model::step(4, 6, 5, None);
    for ranks in [1, 2, 4] {
        let strategy = model::some_strategy(&graph, &Mesh::new([("a", ranks)]), 3);
        let plan = model::plan(folder.path(), &graph, &strategy);
        plan.save(&folder.path().join(format!("{ranks}.plan.json"))).expect("the plan is written");
    }
    folder
}

fn train(folder: &Path, args: &str) -> String {
    let args: Vec<&str> = std::iter::once("train").chain(args.split(' ')).collect();
    let output = planc(folder, &args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The losses of all steps, from the library.
fn losses(folder: &Path, steps: usize) -> Vec<f64> {
    let plan = planc_ir::plan::Plan::load(&folder.join("1.plan.json")).expect("a plan");
    let mut session = Session::load(&plan, &folder.join("model.onnx")).expect("a session");
    let data = data();
    let batch = |n: usize| -> BTreeMap<String, Tensor> {
        [("x", f32s([4, 6])), ("t", f32s([4, 5]))]
            .map(|(name, ty): (&str, TensorType)| {
                let at = n % BATCHES * ty.elements() as usize;
                let part = Tensor::from_f64(ty, |i| data[name].f64_at(at + i)).expect("small");
                (name.to_string(), part)
            })
            .into()
    };
    let of_step = |step: usize| [0, 1, 2].map(|m| batch(step * 3 + m));
    let mut loss = |step| session.train_step(&of_step(step), 0.05).expect("a step").loss;
    (0..steps).map(&mut loss).collect()
}

/// What the JSON lines say of steps.
fn steps(lines: &str) -> Vec<(u64, f64, f64)> {
    let lines = lines.lines().map(|l| serde_json::from_str(l).expect("a line is JSON"));
    let number = |line: &serde_json::Value, key: &str| line[key].as_f64();
    lines
        .filter_map(|line: serde_json::Value| {
            let (loss, rate) = (number(&line, "loss")?, number(&line, "learning_rate")?);
            Some((line["step"].as_u64()?, loss, rate))
        })
        .collect()
}

fn assert_losses(found: &[(u64, f64, f64)], expected: &[f64], first: u64) {
    assert_eq!(found.len(), expected.len());
    for ((n, (step, loss, _)), e) in (first..).zip(found).zip(expected) {
        assert_eq!(*step, n);
        assert!((loss - e).abs() <= 1e-5 * e, "step {n}: {loss}, not {e}");
    }
}

#[test]
fn a_run_is_resumed_on_other_ranks() {
    let folder = folder();
    let folder = folder.path();
    let expected = losses(folder, 8);
    let run = "--data data --learning-rate 0.05 --checkpoint states --json --steps";
    let found = train(folder, &format!("4.plan.json {run} 5 --save-every 2"));
    assert_losses(&steps(&found), &expected[..5], 1);
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a folder").flatten();
        let mut names: Vec<String> =
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let name = |n: u64| format!("step-{n:08}.safetensors");
    assert_eq!(names(&folder.join("states")), [2, 4, 5].map(name));
    assert!(found.contains("\"saved\""), "{found}");

    let found = train(folder, &format!("2.plan.json {run} 8 --resume --keep 1"));
    assert!(found.starts_with("{\"resumed\":"), "{found}");
    assert_losses(&steps(&found), &expected[5..], 6);
    assert_eq!(names(&folder.join("states")), [name(8)]);
    let found = train(folder, &format!("2.plan.json {run} 8 --resume"));
    assert_eq!(steps(&found), [], "all is done");
}

#[test]
fn steps_are_printed_and_warmed_up() {
    let folder = folder();
    let folder = folder.path();
    let found =
        train(folder, "1.plan.json --data data --steps 5 --log-every 2 --learning-rate 0.05");
    let expected = losses(folder, 5);
    let line = |n: usize| format!("step {n}: loss {:.6}, learning rate 5e-2", expected[n - 1]);
    assert_eq!(found.lines().collect::<Vec<_>>(), [2, 4, 5].map(line));
    let found =
        train(folder, "1.plan.json --data data --steps 5 --warmup 4 --learning-rate 1 --json");
    let rates: Vec<f64> = steps(&found).into_iter().map(|(_, _, rate)| rate).collect();
    assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0]);
    let found = train(folder, "1.plan.json --data data --steps 0 --checkpoint none --resume");
    assert_eq!(found, "no checkpoint in none: begins at step 1\n");
}

#[test]
fn what_cannot_be_trained_is_said() {
    let folder = folder();
    let folder = folder.path();
    let refused = |args: &str| {
        let args: Vec<&str> = std::iter::once("train").chain(args.split(' ')).collect();
        let output = planc(folder, &args);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    let run = "1.plan.json --data data --steps 2";
    assert!(refused(&format!("{run} --resume")).contains("--checkpoint"));
    assert!(refused(&format!("{run} --log-every 0")).contains("--log-every"));
    assert!(refused(&format!("{run} --learning-rate inf")).contains("finite"));
    assert!(refused(&format!("{run} --checkpoint data")).contains("data"));
    assert!(refused("1.plan.json --data nothing --steps 1").contains("nothing"));
    let mut other = data();
    other.insert("t", numbers(f32s([9, 5]), 1));
    write_data(&folder.join("odd"), &other);
    let found = refused("1.plan.json --data odd --steps 1");
    assert!(found.contains("`t` is f32[9,5] in the data, the plan takes f32[4,5]"), "{found}");

    std::fs::create_dir(folder.join("states")).expect("a folder");
    std::fs::write(folder.join("states/step-00000003.safetensors"), "?").expect("written");
    let found = refused(&format!("{run} --checkpoint states --resume"));
    assert!(found.contains("step-00000003.safetensors is not a whole"), "{found}");
}

/// The losses that `planc train` prints are those that PyTorch has.
#[test]
fn a_model_is_planned_trained_and_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |path: &str| super::data().join(path).to_str().expect("a path").to_string();
    let model = at("models/gpt2-dynamo/model.onnx");
    let reference = std::fs::read(at("training/gpt2-dynamo.curves.json")).expect("a reference");
    let reference: serde_json::Value = serde_json::from_slice(&reference).expect("JSON");
    let curve = &reference["curves"]["adamw"];
    let recipe = |key: &str| curve["recipe"][key].to_string();
    let planned = [
        ["--loss", "cross-entropy:logits"],
        ["--bind", "batch=8,seq=16"],
        ["--gpus", "4"],
        ["--out", "step.plan.json"],
    ]
    .concat();
    let (beta1, beta2) = (recipe("beta1"), recipe("beta2"));
    let decay = recipe("weight_decay");
    let adam = ["--beta1", &beta1, "--beta2", &beta2, "--weight-decay", &decay];
    let output = planc(folder.path(), &[&[&model, "--train"], &planned[..], &adam].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    let rate = recipe("learning_rate");
    let data = at("training/gpt2-dynamo.batches.safetensors");
    let found = train(
        folder.path(),
        &format!(
            "step.plan.json --data {data} --model {model} --steps 20 --learning-rate {rate} --json"
        ),
    );
    let losses = curve["losses"].as_array().expect("losses");
    let found = steps(&found);
    assert_eq!(found.len(), losses.len());
    for ((step, loss, _), expected) in found.iter().zip(losses) {
        let expected = expected.as_f64().expect("a number");
        assert!((loss - expected).abs() <= 1e-4, "step {step}: {loss}, not {expected}");
    }

    let output = planc(folder.path(), &["verify", "step.plan.json", &model]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains(" 0 findings") && said.contains(": equal"), "{said}");
}

/// A model that drops a half of what its first layer makes.
fn dropping(folder: &Path) {
    let sizes = [(Size::Layers, 2), (Size::Inputs, 8), (Size::Hidden, 8), (Size::Outputs, 8)];
    let weights = planc_models::Weights::Random { seed: 1 };
    let config = Config { weights, batch: Some(4), ..Config::default() };
    let config = sizes.iter().fold(config, |config, &(size, n)| config.with(size, n));
    let mut model = planc_models::build("mlp", &config).expect("the model is built");
    let graph = model.graph.as_mut().expect("a graph");
    let relu = graph.node.iter_mut().find(|n| n.op_type() == "Relu").expect("an activation");
    let dropout = NodeProto {
        op_type: Some("Dropout".into()),
        input: vec!["active".into()],
        output: vec![std::mem::replace(&mut relu.output[0], "active".into())],
        ..NodeProto::default()
    };
    graph.node.push(dropout);
    planc_models::write(&model, &folder.join("model.onnx")).expect("the model is written");
}

#[test]
fn dropout_is_seeded_or_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    dropping(folder);
    let planned = |flags: &[&str]| {
        let step = ["model.onnx", "--train", "--loss", "mse", "--gpus", "2", "--json"];
        planc(folder, &[&step[..], flags].concat())
    };
    let drops = |flags: &[&str]| {
        let output = planned(flags);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let output = planc(folder, &["verify", "model.plan.json", "model.onnx"]);
        let checked = text(&output.stdout);
        assert!(checked.contains(" 0 findings") && checked.contains(": equal"), "{checked}");
        let plan = std::fs::read_to_string(folder.join("model.plan.json")).expect("a plan");
        let recipe = said["training"]["recipe"]["dropout"].as_str().map(str::to_string);
        assert_eq!(recipe.is_some(), plan.contains("\"ratio\""));
        recipe
    };
    assert_eq!(drops(&[]).as_deref(), Some("seed 0"));
    assert_eq!(drops(&["--dropout-seed", "5"]).as_deref(), Some("seed 5"));
    assert_eq!(drops(&["--no-dropout"]), None);
    for wrong in [&["--no-dropout", "--dropout-seed", "5"][..], &["--dropout-seed", "-1"]] {
        assert_eq!(planned(wrong).status.code(), Some(2));
    }
}
