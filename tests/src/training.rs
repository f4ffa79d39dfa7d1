//! Reference gradients and loss curves, made with PyTorch: `tests/data/training`.
//!
//! ```text
//! let Some(reference) = GradientReference::load("gpt2-dynamo") else { return };
//! let (loss, gradients) = …; // of `reference.model`, `.loss` of `.output`, with `.inputs`
//! reference.assert_close(loss, &gradients, 1e-4);
//!
//! let Some(reference) = CurveReference::load("gpt2-dynamo") else { return };
//! let curve = &reference.curves["adamw"];
//! let losses: Vec<f64> = (0..curve.steps()).map(|step| … curve.recipe, reference.step(curve, step)).collect();
//! curve.assert_close(&losses, 1e-4);
//! ```

use crate::{TestModel, root, run_model};
use planc_ir::{DType, Tensor, TensorType};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The input that holds what a loss compares with.
pub const LABELS: &str = "labels";

/// What rounding in f32 may leave of a gradient that is zero, as a part of all gradients' norm.
const ROUNDING: f64 = 1e-6;

fn file(name: &str, kind: &str) -> PathBuf {
    root().join(format!("tests/data/training/{name}.{kind}"))
}

fn read_json<T: DeserializeOwned>(name: &str, kind: &str) -> T {
    let path = file(name, kind);
    serde_json::from_str(&crate::read(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What is minimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Mean of the cross-entropy over the labels that are not -100; classes are the last dimension.
    CrossEntropy,
    /// Mean of the squared difference over all elements.
    Mse,
}

/// The gradients of a model's loss with respect to its parameters, computed in f64.
#[derive(Debug)]
pub struct GradientReference {
    /// The model.
    pub model: TestModel,
    /// Inputs, [`LABELS`] among them.
    pub inputs: BTreeMap<String, Tensor>,
    /// What was computed.
    pub expected: Gradients,
}

/// A file `NAME.gradients.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gradients {
    /// The model's name.
    pub model: String,
    /// The output that the loss looks at.
    pub output: String,
    /// The loss.
    pub loss: Loss,
    labels: Labels,
    /// The loss's value.
    pub value: f64,
    /// The norm of all gradients together.
    pub norm: f64,
    /// The largest relative error (in norm) that PyTorch makes in f32 in any gradient that is not zero.
    pub float32_error: f64,
    /// Parameters that only make tables of positions; no gradient was computed.
    pub frozen: Vec<String>,
    /// Parameters that the output does not depend on.
    pub unused: Vec<String>,
    /// Parameters whose gradient is zero but for rounding.
    pub vanishing: Vec<String>,
    /// By parameter.
    pub gradients: BTreeMap<String, Gradient>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Labels {
    dtype: String,
    shape: Vec<u64>,
    values: Vec<f64>,
}

impl Labels {
    fn tensor(&self) -> Tensor {
        let dtype = DType::from_name(&self.dtype).expect("a dtype's name");
        let ty = TensorType::new(dtype, self.shape.clone());
        Tensor::from_f64(ty, |i| self.values[i]).expect("labels are small")
    }
}

/// What is kept of one parameter's gradient.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gradient {
    /// The parameter's shape.
    pub shape: Vec<u64>,
    /// L2 norm of all elements.
    pub norm: f64,
    /// Sum of all elements.
    pub sum: f64,
    samples: Vec<f64>,
    peaks: Vec<(usize, f64)>,
}

impl Gradient {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements that are kept, each with its flat position: evenly spaced ones (all, if there are
    /// few) and the largest ones.
    pub fn elements(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let (length, count) = (self.len(), self.samples.len());
        let spaced = self.samples.iter().enumerate().map(move |(i, &x)| (i * length / count, x));
        spaced.chain(self.peaks.iter().copied())
    }

    /// The largest magnitude of any element.
    pub fn largest(&self) -> f64 {
        self.elements().fold(0.0, |largest, (_, x)| x.abs().max(largest))
    }

    /// How far `found` is from this: the largest of the norm's and the sum's difference and the
    /// elements' largest one, each relative to the size that it could have. Infinite where shapes
    /// differ or something is not a number.
    pub fn relative_error(&self, found: &Tensor) -> f64 {
        if found.shape() != self.shape {
            return f64::INFINITY;
        }
        let found = found.to_f64s();
        let norm = self.norm.max(f64::MIN_POSITIVE);
        let sum = found.iter().sum::<f64>();
        let whole = [
            (l2(&found) - self.norm).abs() / norm,
            (sum - self.sum).abs() / (norm * (found.len() as f64).sqrt()),
        ];
        let largest = self.largest().max(f64::MIN_POSITIVE);
        let elements = self.elements().map(|(i, x)| (found[i] - x).abs() / largest);
        whole
            .into_iter()
            .chain(elements)
            .fold(0.0, |worst, error| if error.is_nan() { f64::INFINITY } else { error.max(worst) })
    }
}

fn l2(elements: &[f64]) -> f64 {
    elements.iter().map(|x| x * x).sum::<f64>().sqrt()
}

impl GradientReference {
    /// The reference of the model called `name`; `None` (said aloud) if the model is not there.
    pub fn load(name: &str) -> Option<Self> {
        let mut model = run_model(name)?;
        let expected: Gradients = read_json(name, "gradients.json");
        let mut inputs = model.sets.remove(0).inputs;
        inputs.insert(LABELS.to_string(), expected.labels.tensor());
        Some(Self { model, inputs, expected })
    }

    /// What is wrong with `value` and `found`, a line each. A parameter must be there, and all others that
    /// are there must be frozen, or unused and zero.
    pub fn faults(
        &self,
        value: f64,
        found: &BTreeMap<String, Tensor>,
        tolerance: f64,
    ) -> Vec<String> {
        let expected = &self.expected;
        let off = (value - expected.value).abs() / expected.value.abs();
        let mut faults = Vec::new();
        if off.is_nan() || off > tolerance {
            faults.push(format!("the loss is {value} instead of {}", expected.value));
        }
        let zero = ROUNDING * expected.norm;
        for (name, gradient) in &expected.gradients {
            let Some(tensor) = found.get(name) else {
                faults.push(format!("{name}: has no gradient"));
                continue;
            };
            let error = gradient.relative_error(tensor);
            let norm = l2(&tensor.to_f64s());
            if expected.vanishing.contains(name) {
                if tensor.shape() != gradient.shape || norm.is_nan() || norm > zero {
                    let shape = tensor.shape();
                    faults.push(format!("{name}: norm {norm:.1e} of {shape:?} instead of zero"));
                }
            } else if error > tolerance {
                faults.push(format!(
                    "{name}: off by {error:.1e}, norm {norm} instead of {}",
                    gradient.norm
                ));
            }
        }
        for (name, tensor) in found.iter().filter(|(n, _)| !expected.gradients.contains_key(*n)) {
            let unused = expected.unused.contains(name);
            if !unused && !expected.frozen.contains(name) {
                faults.push(format!("{name}: is no parameter"));
            } else if unused && tensor.to_f64s().iter().any(|x| *x != 0.0) {
                faults.push(format!("{name}: the loss does not depend on it"));
            }
        }
        faults
    }

    /// Panics unless `value` is the loss and `found` its gradients within a relative `tolerance`.
    #[track_caller]
    pub fn assert_close(&self, value: f64, found: &BTreeMap<String, Tensor>, tolerance: f64) {
        let faults = self.faults(value, found, tolerance);
        assert!(faults.is_empty(), "{}:\n{}", self.model.name, faults.join("\n"));
    }
}

/// Loss curves of a model under some recipes, all over the same batches.
#[derive(Debug)]
pub struct CurveReference {
    /// The model.
    pub model: TestModel,
    /// The output that the loss looks at.
    pub output: String,
    /// The loss.
    pub loss: Loss,
    /// Parameters that were not trained: they only make tables of positions.
    pub frozen: Vec<String>,
    /// The file that holds the batches, in the form that `planc train --data` takes.
    pub data: PathBuf,
    /// The batches: inputs, [`LABELS`] among them.
    pub batches: Vec<BTreeMap<String, Tensor>>,
    /// By the recipe's name.
    pub curves: BTreeMap<String, Curve>,
}

/// How a model was trained, and its loss.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// How it was trained.
    pub recipe: Recipe,
    /// Each step's loss before the update, computed in f32.
    pub losses: Vec<f64>,
    /// The same, computed in f64.
    pub losses_float64: Vec<f64>,
    /// Each step's norm of all gradients together, before they are clipped.
    pub gradient_norms: Vec<f64>,
    /// How far any loss moves if rounding differs: measured by disturbing all parameters.
    pub sensitivity: f64,
}

impl Curve {
    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.losses.len()
    }

    /// Panics unless `found` are the losses within an absolute `tolerance`.
    #[track_caller]
    pub fn assert_close(&self, found: &[f64], tolerance: f64) {
        assert_eq!(found.len(), self.losses.len(), "number of steps");
        for (step, (&found, &expected)) in found.iter().zip(&self.losses).enumerate() {
            let close = (found - expected).abs() <= tolerance;
            assert!(close, "step {step}: loss {found} instead of {expected}");
        }
    }
}

/// How a model was trained. All parameters but frozen ones are treated alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Recipe {
    /// The optimizer.
    #[serde(flatten)]
    pub optimizer: Optimizer,
    /// The learning rate of all steps.
    pub learning_rate: f64,
    /// What the norm of all gradients together is clipped to.
    pub clip_norm: Option<f64>,
    /// How many batches a step takes; its loss is the mean of theirs.
    #[serde(default = "one")]
    pub micro_batches: usize,
}

fn one() -> usize {
    1
}

/// An optimizer as `torch.optim` defines it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "optimizer", rename_all = "lowercase")]
#[allow(missing_docs)] // PyTorch's names
pub enum Optimizer {
    AdamW { beta1: f64, beta2: f64, epsilon: f64, weight_decay: f64 },
    Sgd { momentum: f64 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CurveFile {
    model: String,
    output: String,
    loss: Loss,
    frozen: Vec<String>,
    curves: BTreeMap<String, Curve>,
}

impl CurveReference {
    /// The curves of the model called `name`; `None` (said aloud) if the model is not there.
    pub fn load(name: &str) -> Option<Self> {
        let model = run_model(name)?;
        let CurveFile { model: of, output, loss, frozen, curves } = read_json(name, "curves.json");
        assert_eq!(of, name, "the curves are of another model");
        let data = file(name, "batches.safetensors");
        let batches = batches(&std::fs::read(&data).expect("curves come with their batches"));
        Some(Self { model, output, loss, frozen, data, batches, curves })
    }

    /// The inputs of a step's micro-batches; steps count from 0 and cycle through the batches.
    pub fn step(&self, curve: &Curve, step: usize) -> Vec<&BTreeMap<String, Tensor>> {
        let first = step * curve.recipe.micro_batches;
        (first..first + curve.recipe.micro_batches)
            .map(|i| &self.batches[i % self.batches.len()])
            .collect()
    }
}

/// The tensors of a file, cut along their leading dimension.
fn batches(bytes: &[u8]) -> Vec<BTreeMap<String, Tensor>> {
    let file = SafeTensors::deserialize(bytes).expect("a safetensors file");
    let mut batches: Vec<BTreeMap<String, Tensor>> = Vec::new();
    for (name, view) in file.iter() {
        let dtype = DType::from_name(&view.dtype().to_string().to_lowercase()).expect("a dtype");
        let shape: Vec<u64> = view.shape()[1..].iter().map(|&extent| extent as u64).collect();
        let count = view.shape()[0];
        batches.resize_with(count, BTreeMap::new);
        let parts = view.data().chunks_exact(view.data().len() / count);
        for (batch, part) in batches.iter_mut().zip(parts) {
            let ty = TensorType::new(dtype, shape.clone());
            let tensor = Tensor::from_bytes(ty, part).expect("the file's header fits");
            batch.insert(name.to_string(), tensor);
        }
    }
    batches
}
