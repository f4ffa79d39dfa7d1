//! Plan files: byte-identical, refused when they are damaged, of another version or for another model.

use super::{data, planc, text};
use std::path::{Path, PathBuf};

struct Planned {
    folder: tempfile::TempDir,
    model: PathBuf,
    json: String,
}

fn planned() -> Planned {
    let folder = tempfile::tempdir().expect("a folder");
    let model = data().join("models/dlrm-dynamo/model.onnx");
    let json = plan(folder.path(), &model, "a.plan.json");
    Planned { folder, model, json }
}

fn plan(folder: &Path, model: &Path, out: &str) -> String {
    let path = model.to_str().expect("path");
    let output = planc(folder, &[path, "--gpus", "2", "--bind", "batch=4", "--out", out]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    std::fs::read_to_string(folder.join(out)).expect("the plan is written")
}

impl Planned {
    /// What `planc run` says of this plan text.
    fn refusal(&self, json: &str) -> String {
        let path = self.folder.path().join("b.plan.json");
        std::fs::write(path, json).expect("written");
        self.run("b.plan.json", &self.model)
    }

    fn run(&self, plan: &str, model: &Path) -> String {
        let model = model.to_str().expect("path");
        let output = planc(self.folder.path(), &["run", plan, "--model", model]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        text(&output.stderr)
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let p = planned();
    assert_eq!(p.json, plan(p.folder.path(), &p.model, "b.plan.json"));
}

#[test]
fn a_plan_that_was_cut_short_is_refused() {
    let p = planned();
    for keep in [0, 1, p.json.len() / 2, p.json.len() - 3] {
        let error = p.refusal(&p.json[..keep]);
        assert!(error.starts_with("error: b.plan.json: "), "{error}");
    }
}

#[test]
fn an_edited_plan_is_refused() {
    let p = planned();
    let edited = p.json.replacen("\"batch\":4", "\"batch\":5", 1);
    assert_ne!(edited, p.json, "the plan holds the binding");
    let error = p.refusal(&edited);
    assert!(error.contains("checksum"), "{error}");
}

#[test]
fn a_plan_of_another_version_is_refused() {
    let p = planned();
    let other = p.json.replacen("\"format\": 1", "\"format\": 999", 1);
    assert_ne!(other, p.json, "the plan holds its version");
    let error = p.refusal(&other);
    assert!(error.contains("999"), "{error}");
}

#[test]
fn a_plan_for_another_model_is_refused() {
    let p = planned();
    let other = data().join("models/gpt2-dynamo/model.onnx");
    let error = p.run("a.plan.json", &other);
    assert!(error.contains("another model") || error.contains("digest"), "{error}");
}

#[test]
fn a_good_plan_is_verified_and_a_wrong_one_is_not() {
    let p = planned();
    let model = p.model.to_str().expect("path");
    let output = planc(p.folder.path(), &["verify", "a.plan.json", model]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("equal"), "{}", text(&output.stdout));
}
