//! Real exported models: planned for 1, 2, 4 and 8 devices and run on as many CPU ranks, the outputs are
//! those that ONNX Runtime computed.
#![allow(clippy::print_stderr)] // says aloud how close they are

use planc::verify::Comparison;
use planc_tests::{RunResult, models_in, plan_and_run, run_model};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

const RANKS: [u32; 4] = [1, 2, 4, 8];

fn check(name: &str) {
    let Some(model) = run_model(name) else { return };
    assert!(!model.sets.is_empty(), "{name} has no data");
    let mut failures = Vec::new();
    for ranks in RANKS {
        for (i, set) in model.sets.iter().enumerate() {
            let RunResult { mesh, worst } = plan_and_run(&model, set, ranks);
            eprintln!(
                "{name:<22} set {i} {ranks} ranks {mesh:<24} largest difference {:.2e} absolute, {:.2e} relative",
                worst.max_abs, worst.max_rel
            );
            if !worst.equal {
                failures.push(format!("{name}, set {i}, {ranks} ranks: {worst:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

macro_rules! models {
    ($($test:ident: $name:literal),+ $(,)?) => {
        $(#[test] fn $test() { check($name); })+
    };
}

models! {
    gpt2_dynamo: "gpt2-dynamo",
    gpt2_legacy: "gpt2-legacy",
    llama_dynamo: "llama-dynamo",
    llama_legacy: "llama-legacy",
    bert_dynamo: "bert-dynamo",
    bert_legacy: "bert-legacy",
    vit_hf_dynamo: "vit-hf-dynamo",
    resnet18_dynamo: "resnet18-dynamo",
    resnet18_legacy: "resnet18-legacy",
    mobilenetv2_dynamo: "mobilenetv2-dynamo",
    mobilenetv2_legacy: "mobilenetv2-legacy",
    dlrm_dynamo: "dlrm-dynamo",
    dlrm_legacy: "dlrm-legacy",
}

/// Plans and runs the models of a folder of the larger set, every `of`th from number `part` on, and prints a
/// table of them.
fn check_all(folder: &str, part: usize, of: usize) {
    let mut failures = Vec::new();
    eprintln!("{:<26} | set | ranks | seconds | max abs | max rel | outcome", "name");
    for model in models_in(folder).into_iter().skip(part).step_by(of) {
        for (i, set) in model.sets.iter().enumerate() {
            for ranks in [1, 4] {
                let start = Instant::now();
                let run = catch_unwind(AssertUnwindSafe(|| plan_and_run(&model, set, ranks)));
                let (seconds, name) = (start.elapsed().as_secs_f64(), &model.name);
                let (worst, outcome) = match &run {
                    Ok(r) if r.worst.equal => (r.worst, r.mesh.as_str()),
                    Ok(r) => (r.worst, "differs"),
                    Err(panic) => {
                        let why = panic.downcast_ref::<String>().map_or("panics", String::as_str);
                        (Comparison { max_abs: f64::NAN, max_rel: f64::NAN, equal: false }, why)
                    }
                };
                let Comparison { max_abs, max_rel, equal } = worst;
                eprintln!(
                    "{name:<26} | {i:>3} | {ranks:>5} | {seconds:>7.2} | {max_abs:.1e} | \
                     {max_rel:.1e} | {outcome}"
                );
                if !equal {
                    failures.push(format!("{name}, set {i}, {ranks} ranks: {outcome}"));
                }
            }
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
    exported_models_run_0: "run" 0 of 4,
    exported_models_run_1: "run" 1 of 4,
    exported_models_run_2: "run" 2 of 4,
    exported_models_run_3: "run" 3 of 4,
    wild_models_run_0: "wild" 0 of 2,
    wild_models_run_1: "wild" 1 of 2,
}
