//! Malformed and hostile models: each is accepted or rejected as `expect.json` says; a rejection is one
//! clear error with exit code 2, in little time and memory, and leaves nothing behind.

use super::{data, planc_measured, text};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

/// The most memory that any of these models may take.
const MAX_KILOBYTES: u64 = 300_000;

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Planned and run.
    Ran,
    /// Planned; running ended in an error.
    Planned(String),
    /// Not planned.
    Rejected(String),
}

#[test]
fn every_file_is_treated_as_expected() {
    let folder = nasty();
    let expect: BTreeMap<String, serde_json::Value> = serde_json::from_str(
        &std::fs::read_to_string(folder.join("expect.json")).expect("expect.json"),
    )
    .expect("expect.json is JSON");
    let mut wrong = Vec::new();
    let mut count = 0;
    for (name, expected) in &expect {
        let file = folder.join(format!("{name}.onnx"));
        if !file.is_file() {
            continue;
        }
        count += 1;
        let verdict = judge(&file);
        let expected = expected["expect"].as_str().unwrap_or_default();
        eprintln!("{name:<28} {expected:<10} {verdict:?}");
        let good = match (expected, &verdict) {
            ("accept", v) => *v == Verdict::Ran,
            ("reject" | "plan-only", Verdict::Ran) => false,
            // Running must end in an error; that it does not fit any device is one too.
            ("plan-only", Verdict::Rejected(e)) => e.contains("memory") || e.contains("bytes"),
            ("plan-only", Verdict::Planned(_)) | ("reject" | "either", _) => true,
            (other, _) => panic!("unknown expectation {other}"),
        };
        if !good {
            wrong.push(format!("{name}: expected {expected}, got {verdict:?}"));
        }
    }
    assert!(count >= 60, "only {count} files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The whole set where it is there, else the project's own copy of the small files.
fn nasty() -> PathBuf {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models/nasty");
    if shared.is_dir() {
        return shared;
    }
    eprintln!("../shared/models is absent: only the project's own files are tested");
    data().join("nasty")
}

fn judge(file: &Path) -> Verdict {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file.to_str().expect("a readable path");
    let plan_in = |bind: Option<&str>| {
        let mut args = vec![path, "--gpus", "2", "--out", "x.plan.json"];
        args.extend(bind.iter().flat_map(|b| ["--bind", b]));
        planc_limited(path, folder.path(), &args)
    };
    let mut output = plan_in(None);
    // A model with symbolic dimensions says which, and how to bind them.
    if let Some(bind) = suggested_binding(&text(&output.stderr)) {
        output = plan_in(Some(&bind));
    }
    if output.status.code() != Some(0) {
        let left = std::fs::read_dir(folder.path()).expect("folder").count();
        assert_eq!(left, 0, "{path}: a rejected model leaves files");
        return Verdict::Rejected(error(path, &output));
    }
    let output = planc_limited(path, folder.path(), &["run", "x.plan.json", "--model", path]);
    if output.status.code() == Some(0) {
        Verdict::Ran
    } else {
        Verdict::Planned(error(path, &output))
    }
}

fn planc_limited(path: &str, folder: &Path, args: &[&str]) -> Output {
    let (output, peak_kilobytes) = planc_measured(folder, args);
    assert!(peak_kilobytes < MAX_KILOBYTES, "{path} took {peak_kilobytes} kB: {args:?}");
    output
}

/// The error that a failed command printed: one, on standard error, with exit code 2.
fn error(path: &str, output: &Output) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{path}: {stderr}");
    let message = stderr.strip_prefix("error: ").unwrap_or_else(|| panic!("{path}: {stderr}"));
    assert!(message.trim().len() > 10, "{path}: {stderr}");
    message.trim().to_string()
}

/// `n=8,m=8` out of an error that suggests `--bind n=8,m=8`.
fn suggested_binding(stderr: &str) -> Option<String> {
    let (_, after) = stderr.split_once("--bind ")?;
    let flag: String =
        after.chars().take_while(|c| !c.is_whitespace() && !"`)".contains(*c)).collect();
    let names = flag.split(',').filter_map(|b| b.split_once('=')).map(|(name, _)| name);
    let bound: Vec<String> = names.map(|n| format!("{n}=2")).collect();
    (!bound.is_empty()).then(|| bound.join(","))
}
