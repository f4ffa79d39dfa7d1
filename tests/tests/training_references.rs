//! The reference data for training are what they say: the models' losses, computed here without PyTorch,
//! are theirs, and the loader's comparisons find what is wrong.

use onnx_protobuf::ModelProto;
use onnx_protobuf::tensor_proto::DataType;
use planc_ir::graph::ValueId;
use planc_ir::onnx::{ImportOptions, bindings, import};
use planc_ir::weights::ModelFiles;
use planc_ir::{DType, Tensor, TensorType, interp};
use planc_tests::training::{CurveReference, GradientReference, LABELS, Loss, Optimizer};
use protobuf::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const MODELS: [&str; 7] = [
    "gpt2-dynamo",
    "llama-dynamo",
    "bert-dynamo",
    "bert-legacy",
    "vit-hf-dynamo",
    "resnet18-dynamo",
    "dlrm-dynamo",
];

/// Why a model is there.
const OWN: &str = "one of the project's own models";

const CURVES: [(&str, &[&str]); 3] = [
    ("gpt2-dynamo", &["adamw", "adamw-accumulated", "adamw-clipped", "sgd-momentum"]),
    ("llama-dynamo", &["adamw"]),
    ("resnet18-dynamo", &["adamw", "sgd-momentum"]),
];

fn references() -> impl Iterator<Item = GradientReference> {
    MODELS.into_iter().filter_map(GradientReference::load)
}

fn curves(name: &str) -> CurveReference {
    CurveReference::load(name).expect(OWN)
}

/// The output called `output`.
fn forward(path: &Path, inputs: &BTreeMap<String, Tensor>, output: &str) -> Tensor {
    let shapes = inputs.iter().map(|(name, t)| (name.clone(), t.shape().to_vec())).collect();
    let bind = bindings(path, &shapes).expect("extents");
    let graph = import(path, &ImportOptions { bind, training: true, ..ImportOptions::default() })
        .expect("a model")
        .graph;
    let named = |v: &ValueId| graph.value(*v).name.clone();
    let ordered: Vec<Tensor> = graph.inputs.iter().map(|v| inputs[&named(v)].clone()).collect();
    let outputs = interp::evaluate(&graph, &ordered, &ModelFiles::new(path)).expect("a result");
    let at = graph.outputs.iter().position(|v| named(v) == output).expect("the output");
    outputs[at].clone()
}

fn cross_entropy(logits: &Tensor, labels: &Tensor) -> f64 {
    let logits_by_row = logits.to_f64s();
    let classes = *logits.shape().last().expect("classes") as usize;
    assert_eq!(logits_by_row.len(), classes * labels.len());
    let counted: Vec<f64> = logits_by_row
        .chunks_exact(classes)
        .zip(labels.to_i64s())
        .filter(|(_, label)| *label != -100)
        .map(|(row, label)| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            sum.ln() - row[usize::try_from(label).expect("a class")]
        })
        .collect();
    counted.iter().sum::<f64>() / counted.len() as f64
}

fn mean_squared_error(found: &Tensor, target: &Tensor) -> f64 {
    assert_eq!(found.shape(), target.shape());
    let squares = found.to_f64s().into_iter().zip(target.to_f64s()).map(|(a, b)| (a - b).powi(2));
    squares.sum::<f64>() / target.len() as f64
}

fn loss(path: &Path, inputs: &BTreeMap<String, Tensor>, output: &str, loss: Loss) -> f64 {
    let found = forward(path, inputs, output);
    match loss {
        Loss::CrossEntropy => cross_entropy(&found, &inputs[LABELS]),
        Loss::Mse => mean_squared_error(&found, &inputs[LABELS]),
    }
}

#[test]
fn the_losses_are_the_models() {
    for reference in references() {
        let e = &reference.expected;
        let found = loss(&reference.model.path, &reference.inputs, &e.output, e.loss);
        let off = (found - e.value).abs() / e.value;
        assert!(off < 1e-6, "{}: {found} instead of {}", e.model, e.value);
    }
    for (model, _) in CURVES {
        let reference = curves(model);
        for (name, curve) in &reference.curves {
            let of =
                |inputs| loss(&reference.model.path, inputs, &reference.output, reference.loss);
            let first = reference.step(curve, 0);
            let found = first.iter().map(|inputs| of(inputs)).sum::<f64>() / first.len() as f64;
            let off = (found - curve.losses[0]).abs();
            assert!(off < 1e-5, "{model} {name}: {found}");
        }
    }
}

/// The shapes of a file's floating-point initializers with dimensions.
fn parameters(path: &Path) -> BTreeMap<String, Vec<u64>> {
    let bytes = std::fs::read(path).expect("the model is there");
    let model = ModelProto::parse_from_bytes(&bytes).expect("a model");
    let float = DataType::FLOAT as i32;
    let initializers = model.graph.initializer.iter();
    initializers
        .filter(|t| t.data_type == float && !t.dims.is_empty())
        .map(|t| (t.name.clone(), t.dims.iter().map(|&d| d as u64).collect()))
        .collect()
}

#[test]
fn every_parameter_has_its_place() {
    for reference in references() {
        let e = &reference.expected;
        let others = e.frozen.iter().chain(&e.unused);
        let known: BTreeSet<&String> = e.gradients.keys().chain(others.clone()).collect();
        assert_eq!(known.len(), e.gradients.len() + others.count(), "{}: listed twice", e.model);
        assert!(e.vanishing.iter().all(|name| e.gradients.contains_key(name)), "{}", e.model);

        let shapes = parameters(&reference.model.path);
        assert!(known.iter().copied().eq(shapes.keys()), "{}: {shapes:?}", e.model);
        for (name, gradient) in &e.gradients {
            assert_eq!(shapes[name], gradient.shape, "{} {name}", e.model);
        }
    }
}

#[test]
fn summaries_agree_with_themselves() {
    for reference in references() {
        let e = &reference.expected;
        for (name, g) in &e.gradients {
            let what = format!("{} {name}", e.model);
            let elements: BTreeMap<usize, f64> = g.elements().collect();
            assert!(
                g.elements().all(|(i, x)| elements[&i].total_cmp(&x).is_eq()),
                "{what}: elements differ"
            );
            assert!(elements.keys().all(|i| *i < g.len()), "{what}: an element lies outside");
            assert!(elements.len() >= g.len().min(64), "{what}: {} elements", elements.len());
            let norm = elements.values().map(|x| x * x).sum::<f64>().sqrt();
            let bound = g.norm * (1.0 + 1e-6);
            assert!(norm <= bound, "{what}: {norm} > {}", g.norm);
            assert!(g.sum.abs() <= bound * (g.len() as f64).sqrt(), "{what}: sum {}", g.sum);
            assert!(
                g.largest() * (g.len() as f64).sqrt() >= g.norm * (1.0 - 1e-6),
                "{what}: the largest element is not among those kept"
            );
            if elements.len() == g.len() && !e.vanishing.contains(name) {
                let sum: f64 = elements.values().sum();
                assert!((norm - g.norm).abs() < 1e-6 * g.norm, "{what}: {norm}");
                assert!((sum - g.sum).abs() < 1e-5 * g.norm, "{what}: {sum}");
            }
        }
        let total = e.gradients.values().map(|g| g.norm * g.norm).sum::<f64>().sqrt();
        assert!((total - e.norm).abs() < 1e-9 * e.norm, "{}: {total}", e.model);
        assert!(e.float32_error < 1e-5, "{}: f32 is not enough", e.model);
    }
}

/// A gradient whose elements are all kept, as a tensor.
fn whole(reference: &GradientReference, name: &str) -> (TensorType, Vec<f64>) {
    let gradient = &reference.expected.gradients[name];
    let elements: Vec<f64> = gradient.elements().map(|(_, x)| x).collect();
    assert_eq!(elements.len(), gradient.len(), "{name} is not small");
    (TensorType::new(DType::F32, gradient.shape.clone()), elements)
}

#[test]
fn wrong_gradients_are_found() {
    let reference = GradientReference::load("gpt2-dynamo").expect(OWN);
    let name = "model.transformer.h.1.ln_2.weight";
    let (ty, elements) = whole(&reference, name);
    let gradient = &reference.expected.gradients[name];
    let error = |change: &dyn Fn(&mut Vec<f64>)| {
        let mut changed = elements.clone();
        change(&mut changed);
        let found = Tensor::from_f64(ty.clone(), |i| changed[i]).expect("small");
        gradient.relative_error(&found)
    };
    let step = 2e-3 * gradient.largest();
    assert!(error(&|_| ()) < 1e-6);
    assert!(error(&|x| x[17] += step) > 1e-3);
    assert!(error(&|x| x.swap(3, 40)) > 1e-3);
    assert!(error(&|x| x.iter_mut().for_each(|x| *x = -*x)) > 1.0);
    assert!(error(&|x| x.iter_mut().for_each(|x| *x *= 1.001)) > 5e-4);
    assert!(error(&|x| x[0] = f64::NAN).is_infinite());
    let flat = Tensor::zeros(TensorType::new(DType::F32, vec![8, 8])).expect("small");
    assert!(gradient.relative_error(&flat).is_infinite());
}

#[test]
fn faults_name_parameters() {
    let reference = GradientReference::load("bert-legacy").expect(OWN);
    let e = &reference.expected;
    let [key, unused] = [&e.vanishing[0], &e.unused[0]];
    let constant =
        |x: f64| Tensor::from_f64(TensorType::new(DType::F32, vec![64]), |_| x).expect("small");
    let faults = |found: &[(&str, Tensor)]| {
        let found = found.iter().map(|(n, t)| ((*n).to_string(), t.clone())).collect();
        reference.faults(e.value, &found, 1e-4)
    };
    let missing = e.gradients.len();
    assert_eq!(faults(&[]).len(), missing);
    assert_eq!(faults(&[(key, constant(0.0))]).len(), missing - 1);
    assert_eq!(faults(&[(key, constant(1e-9))]).len(), missing - 1);
    assert_eq!(faults(&[(key, constant(1e-3))]).len(), missing);
    assert_eq!(faults(&[(key, constant(f64::NAN))]).len(), missing);
    assert_eq!(faults(&[(unused, constant(0.0))]).len(), missing);
    assert_eq!(faults(&[(unused, constant(1e-3))]).len(), missing + 1);
    assert_eq!(faults(&[("no.such.weight", constant(0.0))]).len(), missing + 1);
    assert_eq!(reference.faults(f64::NAN, &BTreeMap::new(), 1e-4).len(), missing + 1);
    assert_eq!(reference.faults(e.value * 1.001, &BTreeMap::new(), 1e-4).len(), missing + 1);
}

#[test]
fn curves_are_complete() {
    for (name, recipes) in CURVES {
        let reference = curves(name);
        assert!(reference.curves.keys().eq(recipes), "{name}");
        assert_eq!(reference.batches.len(), 4, "{name}");
        let gradients = GradientReference::load(name).expect(OWN).expected;
        assert_eq!(reference.frozen, gradients.frozen, "{name}");
        let inputs = &reference.model.sets[0].inputs;
        for batch in &reference.batches {
            let names =
                inputs.keys().chain([&LABELS.to_string()]).cloned().collect::<BTreeSet<_>>();
            assert!(batch.keys().eq(&names), "{name}");
            for (input, tensor) in inputs {
                let found = &batch[input];
                assert_eq!(found.dtype(), tensor.dtype(), "{name} {input}");
                assert_eq!(found.shape().len(), tensor.shape().len(), "{name} {input}");
            }
        }
        for (recipe, curve) in &reference.curves {
            assert_eq!(curve.steps(), 20, "{name} {recipe}");
            assert_eq!(curve.gradient_norms.len(), 20, "{name} {recipe}");
            assert!(curve.sensitivity < 1e-5, "{name} {recipe}: rounding moves the losses");
            curve.assert_close(&curve.losses_float64, curve.sensitivity + 1e-6);
            assert!(curve.losses[19] < curve.losses[0] - 0.5, "{name} {recipe}: nothing is learnt");
        }
    }
}

#[test]
fn recipes_differ_as_they_say() {
    let reference = curves("gpt2-dynamo");
    let [plain, clipped, accumulated, sgd] =
        ["adamw", "adamw-clipped", "adamw-accumulated", "sgd-momentum"]
            .map(|r| &reference.curves[r]);
    assert!(matches!(plain.recipe.optimizer, Optimizer::AdamW { weight_decay: 0.1, .. }));
    assert!(matches!(sgd.recipe.optimizer, Optimizer::Sgd { momentum: 0.9 }));
    let norm = clipped.recipe.clip_norm.expect("is clipped");
    assert!(
        clipped.gradient_norms.iter().all(|n| *n > norm),
        "clipping has an effect at each step"
    );
    assert_eq!(plain.recipe.clip_norm, None);
    for other in [clipped, accumulated, sgd] {
        let apart = plain.losses.iter().zip(&other.losses).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f64::max) > 1e-2, "{:?} is told apart", other.recipe);
    }

    let tokens = |step: &[&BTreeMap<String, Tensor>]| -> Vec<Vec<i64>> {
        step.iter().map(|b| b["input_ids"].to_i64s()).collect()
    };
    assert_eq!(tokens(&reference.step(plain, 5)), tokens(&reference.step(plain, 1)));
    let third = [reference.step(plain, 2), reference.step(plain, 3)].concat();
    assert_eq!(tokens(&reference.step(accumulated, 3)), tokens(&third));
}

#[test]
#[should_panic(expected = "step 7")]
fn a_wrong_loss_is_found() {
    let reference = curves("llama-dynamo");
    let curve = &reference.curves["adamw"];
    let mut losses = curve.losses.clone();
    losses[7] += 2e-4;
    curve.assert_close(&losses, 1e-4);
}
