//! Plans in files: loaded for their model, refused for any other.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use planc_ir::Tensor;
use planc_ir::digest::model_digest;
use planc_ir::plan::{
    Certificate, Constant, FORMAT, ModelRef, Named, Plan, PlanError, Prediction, Semantics, Source,
    Stage, Weight,
};
use planc_ir::program::{Kernel, Program};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::Mesh;
use planc_ir::sharding::reshard::Step;
use planc_runtime::{RunError, Session};
use std::path::{Path, PathBuf};

const ROWS: u64 = 3;
const WIDTH: u64 = 6;

/// A model in a folder: `x · a + b + c`, with `a` in the model file (columns of it are what ranks
/// hold), `b` in a file beside it and `c` in the plan.
struct Model {
    folder: tempfile::TempDir,
    a: Tensor,
    b: Tensor,
    c: Tensor,
}

const HEADER: &[u8] = b"not protobuf, but the digest does not mind";

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let a = numbers(f32s([WIDTH, WIDTH]), 1);
        let b = numbers(f32s([WIDTH]), 2);
        let c = numbers(f32s([1]), 3);
        std::fs::write(folder.path().join("m.onnx"), [HEADER, &a.to_bytes()].concat()).unwrap();
        std::fs::write(folder.path().join("m.data"), [&[0; 8], &b.to_bytes()[..]].concat())
            .unwrap();
        Self { folder, a, b, c }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("m.onnx")
    }

    fn want(&self, x: &Tensor) -> Tensor {
        let y = product(x, &self.a);
        Tensor::from_f64(y.ty().clone(), |i| {
            y.f64_at(i) + self.b.f64_at(i % WIDTH as usize) + self.c.f64_at(0)
        })
        .unwrap()
    }

    fn plan(&self) -> Plan {
        let offset = HEADER.len() as u64;
        let weights = offset..offset + self.a.ty().bytes();
        let digest = model_digest(&self.path(), std::slice::from_ref(&weights)).unwrap();
        let weight = |name: &str, t: &Tensor, source| Weight {
            name: name.into(),
            ty: t.ty().clone(),
            source,
        };
        let named = |name: &str| Named { name: name.into(), ty: f32s([ROWS, WIDTH]) };
        Plan {
            training: None,
            format: FORMAT,
            checksum: String::new(),
            model: ModelRef {
                name: "m".into(),
                file: "m.onnx".into(),
                digest,
                bindings: [("batch".to_string(), ROWS)].into(),
                parameters: WIDTH * WIDTH + WIDTH,
                flops: 216.0,
                inputs: vec![named("x")],
                outputs: vec![named("y")],
            },
            cluster: serde_json::json!({ "device": "cpu", "devices": 4 }),
            semantics: Semantics::Exact,
            predicted: Prediction { total_us: 1.5, ..Prediction::default() },
            baselines: Vec::new(),
            certificate: Certificate {
                objective_us: 1.5,
                bound_us: 1.5,
                gap: 0.0,
                status: "optimal".into(),
                solver: "none".into(),
                limits: [].into(),
                evaluated_us: 1.5,
                space: [].into(),
            },
            stages: vec![Stage { first_rank: 0, strategy: Vec::new(), program: program() }],
            channels: Vec::new(),
            weights: vec![
                weight("a", &self.a, Source::File { location: None, offset }),
                weight("b", &self.b, Source::File { location: Some("m.data".into()), offset: 8 }),
            ],
            constants: vec![Constant {
                name: "c".into(),
                ty: self.c.ty().clone(),
                data: base64(&self.c.to_bytes()),
            }],
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Columns of `a` over four ranks, gathered at the end.
fn program() -> Program {
    let mut p = Builder::new(Mesh::new([("tensor", 4)]));
    let y = f32s([ROWS, WIDTH]);
    let columns = split(&[&[], &[0]]);
    let x = p.input("x", y.clone(), whole(2));
    let a = p.weight("a", f32s([WIDTH, WIDTH]), columns.clone());
    let b = p.weight("b", f32s([WIDTH]), split(&[&[0]]));
    let c = p.buffer("c", f32s([1]), whole(1));
    p.0.constants.push(c);
    let add = Kernel::Map { f: ScalarFn::Add };
    let [ax, axb, axbc] = [(); 3].map(|()| p.buffer("y", y.clone(), columns.clone()));
    let all = p.buffer("y", y, whole(2));
    p.kernel(Kernel::MatMul { trans_a: false, trans_b: false }, &[x, a], ax);
    p.kernel(add.clone(), &[ax, b], axb);
    p.kernel(add, &[axb, c], axbc);
    p.step(Step::AllGather { axes: axes(&[0]), dim: 1 }, axbc, all);
    p.output(all);
    p.0
}

fn saved(plan: &Plan, folder: &Path) -> PathBuf {
    let path = folder.join("m.plan.json");
    plan.save(&path).unwrap();
    path
}

#[test]
fn a_plan_runs_from_its_file() {
    let model = Model::new();
    let path = saved(&model.plan(), model.folder.path());
    let plan = Plan::load(&path).unwrap();
    let mut session = Session::load(&plan, &model.path()).unwrap();
    for seed in 0..3 {
        let x = numbers(f32s([ROWS, WIDTH]), seed);
        let want = model.want(&x);
        assert_eq!(session.run(&named([("x", x)])).unwrap(), [("y".to_string(), want)]);
    }
    // Six columns over four ranks: one, two, one, two; of `a` six elements each, of `b` one.
    let columns = [1, 2, 1, 2];
    assert_eq!(session.weight_bytes_read(), columns.map(|c| c * (WIDTH + 1) * 4));
}

#[test]
fn another_model_is_refused() {
    let model = Model::new();
    let plan = model.plan();
    let refused = |why: &str| {
        let error = Session::load(&plan, &model.path()).unwrap_err();
        assert!(matches!(error, RunError::OtherModel { .. }), "{why}: {error}");
    };
    // Other weights are another training state of the same model.
    let mut file = std::fs::read(model.path()).unwrap();
    *file.last_mut().unwrap() ^= 1;
    std::fs::write(model.path(), &file).unwrap();
    Session::load(&plan, &model.path()).unwrap();
    file[0] ^= 1;
    std::fs::write(model.path(), &file).unwrap();
    refused("another structure");
    file.truncate(HEADER.len() + 5);
    std::fs::write(model.path(), &file).unwrap();
    refused("too short for the weights");
    std::fs::remove_file(model.path()).unwrap();
    let error = Session::load(&plan, &model.path()).unwrap_err();
    assert!(matches!(error, RunError::Model { .. }), "{error}");
}

#[test]
fn unsound_contents_are_named() {
    let model = Model::new();
    let error = |change: &dyn Fn(&mut Plan)| {
        let mut plan = model.plan();
        change(&mut plan);
        Session::load(&plan, &model.path()).unwrap_err().to_string()
    };
    let e = error(&|p| p.constants[0].data = "AAAA".into());
    assert!(e.contains("constant `c`") && e.contains("3 bytes for f32[1]"), "{e}");
    let e = error(&|p| p.constants.clear());
    assert!(e.contains("constant `c`"), "{e}");
    let e = error(&|p| {
        p.weights.remove(1);
    });
    assert!(e.contains("weight `b`"), "{e}");
    let e = error(&|p| {
        p.weights[1].source = Source::File { location: Some("../m.data".into()), offset: 0 };
    });
    assert!(e.contains("weight `b`") && e.contains("../m.data"), "{e}");
    let e = error(&|p| {
        p.weights[1].source = Source::File { location: Some("m.data".into()), offset: 12 };
    });
    assert!(e.contains("weight `b`") && e.contains("m.data"), "{e}");
    let e = error(&|p| p.weights[1].ty = f32s([2, 3]));
    assert!(e.contains("weight `b`") && e.contains("f32[2,3]"), "{e}");
    let e = error(&|p| p.stages.clear());
    assert!(e.contains("the plan has no stages"), "{e}");
    let e = error(&|p| p.stages[0].program.arena_bytes = 256);
    assert!(e.contains("not valid"), "{e}");
    let e = error(&|p| p.stages[0].program.outputs[0].0 = 99);
    assert!(e.contains("99"), "{e}");
}

#[test]
fn an_edited_plan_is_refused() {
    let model = Model::new();
    let path = saved(&model.plan(), model.folder.path());
    let text = std::fs::read_to_string(&path).unwrap();
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Plan::load(&path).unwrap_err()
    };
    let edited = text.replacen("\"tensor\"", "\"sensor\"", 1);
    assert!(matches!(load(&edited), PlanError::Checksum));
    assert!(matches!(load(&text[..text.len() / 2]), PlanError::Syntax(_)));
    let other = text.replacen("\"format\": 1", "\"format\": 2", 1);
    assert!(matches!(load(&other), PlanError::Format { found: 2 }));
}

#[test]
fn a_program_is_the_same_after_json() {
    let text = serde_json::to_string(&program()).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&text).unwrap(), program());
}
