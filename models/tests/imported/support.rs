//! What these tests share: small models, imported, and their parameters as plain numbers.

use planc_ir::interp::evaluate;
use planc_ir::onnx::{ImportOptions, Model, import};
use planc_ir::tensor::Tensor;
use planc_ir::weights::ModelFiles;
use planc_models::{Config, Size, Weights, build, write};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tempfile::TempDir;

pub const LAYERS: usize = 2;
pub const HIDDEN: usize = 12;
pub const HEADS: usize = 3;
pub const WIDTH: usize = HIDDEN / HEADS;
pub const FFN: usize = 20;
pub const VOCAB: usize = 17;
pub const SEQ: usize = 6;

/// A small configuration with random weights.
pub fn config(family: &str) -> Config {
    let sizes: &[(Size, usize)] = match family {
        "mlp" => &[(Size::Hidden, HIDDEN), (Size::Inputs, SEQ), (Size::Outputs, VOCAB)],
        _ => &[
            (Size::Layers, LAYERS),
            (Size::Hidden, HIDDEN),
            (Size::Heads, HEADS),
            (Size::Ffn, FFN),
            (Size::Vocab, VOCAB),
            (Size::Seq, SEQ),
        ],
    };
    let base = Config { weights: Weights::Random { seed: 5 }, ..Config::default() };
    sizes.iter().fold(base, |c, &(size, value)| c.with(size, value as u64))
}

/// A built and imported model, and the file it came from.
pub struct Built {
    pub model: Model,
    path: PathBuf,
    _folder: TempDir,
}

impl Built {
    pub fn new(family: &str, config: &Config, bind: &[(&str, u64)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.onnx");
        write(&build(family, config).expect("is a model"), &path).expect("is written");
        let bind = bind.iter().map(|&(name, n)| (name.to_string(), n)).collect();
        let model = import(&path, &ImportOptions { bind, ..ImportOptions::default() })
            .expect("is imported");
        Self { model, path, _folder: folder }
    }

    pub fn run(&self, input: &Tensor) -> Tensor {
        let files = ModelFiles::new(&self.path);
        let inputs = std::slice::from_ref(input);
        evaluate(&self.model.graph, inputs, &files).expect("is evaluated").remove(0)
    }
}

/// Rows of token ids.
pub fn tokens(rows: &[&[i64]]) -> Tensor {
    let shape = [rows.len() as u64, rows[0].len() as u64];
    Tensor::new(shape, rows.concat()).expect("rows of one length")
}

#[track_caller]
pub fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst <= tolerance, "differs by {worst}");
    assert!(expected.iter().any(|x| x.abs() > 0.1), "compares nothing but zeros");
}

/// Parameters by name, in f64.
pub struct Parameters(BTreeMap<String, Vec<f64>>);

impl Parameters {
    pub fn of(family: &str, config: &Config) -> Self {
        let model = build(family, config).expect("is a model");
        let tensors = model.graph.expect("has a graph").initializer;
        let contents = |raw: &[u8]| {
            raw.chunks_exact(4)
                .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
                .collect()
        };
        let named = tensors.iter().filter(|t| t.data_type() == 1);
        Self(
            named
                .map(|t| (t.name().to_string(), contents(t.raw_data.as_ref().expect("is there"))))
                .collect(),
        )
    }

    pub fn get(&self, name: &str) -> &[f64] {
        self.0.get(name).unwrap_or_else(|| panic!("no parameter {name}"))
    }

    /// Row `i` of an embedding.
    pub fn row(&self, name: &str, i: usize) -> Vec<f64> {
        self.get(name)[i * HIDDEN..(i + 1) * HIDDEN].to_vec()
    }

    /// `x · weight`, the weight stored `[inputs, outputs]`.
    pub fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = self.get(&format!("{name}.weight"));
        let n = w.len() / x.len();
        (0..n).map(|j| (0..x.len()).map(|i| x[i] * w[i * n + j]).sum()).collect()
    }

    /// `x · weight + bias`.
    pub fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        add(&self.product(name, x), self.get(&format!("{name}.bias")))
    }

    pub fn layer_norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (w, b) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        (0..x.len()).map(|i| (x[i] - mean) / (variance + 1e-5).sqrt() * w[i] + b[i]).collect()
    }
}

/// Attention of one query over the keys and values that it may see.
pub fn attend(q: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let scale = (q.len() as f64).sqrt();
    let weights: Vec<f64> = keys.iter().map(|k| (dot(q, k) / scale).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mean = |c: usize| weights.iter().zip(values).map(|(w, v)| w * v[c]).sum::<f64>() / total;
    (0..q.len()).map(mean).collect()
}

pub fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(x, y)| x + y).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
