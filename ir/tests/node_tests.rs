//! ONNX's own node tests: each is a model of one operator with inputs and expected outputs.
//!
//! 760 of them lie in the optional model folder. The full set is fetched by
//! `scripts/fetch-node-tests` into the target folder (`PLANC_NODE_TESTS` names another). Without
//! either the tests say so and pass. Cases that planc does not support are listed in
//! `node_tests_unsupported.txt`, each with its reason; the list may only get shorter.

#![allow(clippy::float_cmp, clippy::print_stderr, clippy::unwrap_used)] // a test may

mod node_case;

use node_case::{Case, Outcome, Tolerance};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Of the full set, what share of the cases that are not excluded must pass, in percent.
const LEAST_PASSED_PERCENT: f64 = 85.0;

/// Cases whose expected values were computed with every intermediate result rounded to a 16-bit
/// type. Evaluating in f64 and rounding each node's result once may differ from them by two units
/// in the last place.
const ROUNDED_AT_EACH_STEP: [&str; 6] = [
    "test_attention_3d_causal_bf16",
    "test_attention_4d_attn_mask_causal_bf16",
    "test_attention_4d_causal_bf16",
    "test_attention_4d_causal_fp16",
    "test_attention_4d_causal_padded_kv_bf16",
    "test_attention_4d_padded_kv_bf16",
];

/// Cases whose expected values were computed in f32 from larger numbers that cancel: what is 0 is off
/// by the rounding of those.
const CANCELLED_IN_F32: [&str; 2] = ["test_dft_inverse", "test_dft_inverse_opset19"];

/// The tolerances that `json` gives, else ONNX's own.
fn tolerance(name: &str, json: &serde_json::Value) -> Tolerance {
    let mut relative = json["rtol"].as_f64().unwrap_or(1e-3);
    if ROUNDED_AT_EACH_STEP.contains(&name) {
        let epsilon = if name.ends_with("fp16") { 2f64.powi(-10) } else { 2f64.powi(-7) };
        relative = 2.0 * epsilon;
    }
    let mut absolute = json["atol"].as_f64().unwrap_or(1e-7);
    if CANCELLED_IN_F32.contains(&name) {
        absolute = 4.0 * f64::from(f32::EPSILON);
    }
    Tolerance { absolute, relative }
}

/// The cases that the model folder holds.
fn shared_cases(folder: &Path) -> Option<Vec<Case>> {
    let index = fs::read_to_string(folder.join("index.json")).ok()?;
    let index: BTreeMap<String, serde_json::Value> = serde_json::from_str(&index).unwrap();
    let case = |(name, json): (String, serde_json::Value)| Case {
        tolerance: tolerance(&name, &json),
        model: folder.join(&name).join("model.onnx"),
        data: folder.join(&name),
        name,
    };
    Some(index.into_iter().map(case).collect())
}

/// The cases of the full set.
fn full_cases(folder: &Path) -> Option<Vec<Case>> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .ok()?
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| folder.join(name).join("model.onnx").exists())
        .collect();
    names.sort_unstable();
    let case = |name: String| {
        let json = fs::read_to_string(folder.join(&name).join("data.json"));
        let json =
            json.map_or(serde_json::Value::Null, |text| serde_json::from_str(&text).unwrap());
        Case {
            tolerance: tolerance(&name, &json),
            model: folder.join(&name).join("model.onnx"),
            data: folder.join(&name).join("test_data_set_0"),
            name,
        }
    };
    Some(names.into_iter().map(case).collect())
}

/// The allow-list: cases, each with why planc does not support it.
fn known_unsupported() -> BTreeMap<&'static str, &'static str> {
    let lines = include_str!("node_tests_unsupported.txt").lines();
    lines.map(|line| line.split_once(": ").expect("a case and a reason")).collect()
}

/// How many cases of an operator, or of all, had each outcome.
#[derive(Clone, Copy, Default)]
struct Counts {
    passed: usize,
    unsupported: usize,
    failed: usize,
    excluded: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Unsupported(_) => self.unsupported += 1,
            Outcome::Failed(_) => self.failed += 1,
            Outcome::Excluded(_) => self.excluded += 1,
        }
    }

    fn passed_percent(self) -> f64 {
        let counted = self.passed + self.unsupported + self.failed;
        100.0 * self.passed as f64 / counted.max(1) as f64
    }

    fn print(self, name: &str) {
        let Self { passed, unsupported, failed, excluded } = self;
        eprintln!("{name:28} {passed:>7} {unsupported:>12} {failed:>7} {excluded:>9}");
    }
}

/// Runs the cases, prints what became of them, and checks them against the allow-list.
fn check(cases: &[Case]) -> Counts {
    let known = known_unsupported();
    let mut by_op: BTreeMap<String, Counts> = BTreeMap::new();
    let mut all = Counts::default();
    let mut excluded: BTreeMap<&str, usize> = BTreeMap::new();
    let mut faults = Vec::new();
    for case in cases {
        let (operator, outcome) = case.run();
        by_op.entry(operator).or_default().add(&outcome);
        all.add(&outcome);
        let listed = known.contains_key(case.name.as_str());
        match outcome {
            Outcome::Failed(_) => faults.push(format!("{} {outcome}", case.name)),
            Outcome::Unsupported(_) if !listed => faults.push(format!("{} {outcome}", case.name)),
            Outcome::Passed | Outcome::Excluded(_) if listed => {
                faults.push(format!("{} need not be listed as unsupported", case.name));
            }
            Outcome::Excluded(why) => *excluded.entry(why).or_default() += 1,
            Outcome::Passed | Outcome::Unsupported(_) => {}
        }
    }
    eprintln!("{:28} {:>7} {:>12} {:>7} {:>9}", "", "passed", "unsupported", "failed", "excluded");
    for (operator, counts) in by_op {
        counts.print(&operator);
    }
    all.print("all");
    for (why, count) in excluded {
        eprintln!("excluded for {why}: {count}");
    }
    eprintln!("passed of what is not excluded: {:.1} %", all.passed_percent());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    all
}

#[test]
fn shared_node_tests_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models/ops");
    match shared_cases(&folder) {
        Some(cases) => drop(check(&cases)),
        None => eprintln!("skipped: the model folder is not there ({})", folder.display()),
    }
}

#[test]
fn full_node_tests_pass() {
    let folder = std::env::var_os("PLANC_NODE_TESTS").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("onnx-node-tests"),
        PathBuf::from,
    );
    let Some(cases) = full_cases(&folder) else {
        eprintln!("skipped: run scripts/fetch-node-tests ({} is not there)", folder.display());
        return;
    };
    let counts = check(&cases);
    assert!(counts.passed_percent() >= LEAST_PASSED_PERCENT);
}
