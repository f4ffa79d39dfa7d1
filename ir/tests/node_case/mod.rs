//! One of ONNX's node tests: reading it, why it may be left out, running it.

use planc_ir::interp::evaluate;
use planc_ir::onnx::wire::{DataType, GraphProto, ModelProto, NodeProto, TypeProto, TypeValue};
use planc_ir::onnx::{ImportError, ImportOptions, Model, import_bytes, tensor};
use planc_ir::weights::InMemory;
use planc_ir::{OpError, Tensor};
use prost::Message;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A case: a folder with a model and one set of inputs and outputs.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    /// Where the model lies.
    pub model: PathBuf,
    /// Where the inputs and outputs lie.
    pub data: PathBuf,
    pub tolerance: Tolerance,
}

#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub absolute: f64,
    pub relative: f64,
}

/// What became of a case.
#[derive(Debug)]
pub enum Outcome {
    Passed,
    /// It is about something that planc does not have at all.
    Excluded(&'static str),
    Unsupported(String),
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passes"),
            Self::Excluded(why) => write!(f, "is about {why}"),
            Self::Unsupported(why) => write!(f, "is unsupported: {why}"),
            Self::Failed(why) => write!(f, "fails: {why}"),
        }
    }
}

/// Operators whose results are drawn at random.
const RANDOM: [&str; 6] = [
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
];

/// A case's operator: that of its last node. A case whose operator is given as a function has the
/// operator's name in its own.
pub fn operator(model: &ModelProto) -> &str {
    let nodes = model.graph.as_ref().map_or(&[][..], |g| &g.node);
    nodes.last().map_or("", NodeProto::op_type)
}

/// Why a model is about something that planc does not have.
fn exclusion(model: &ModelProto) -> Option<&'static str> {
    let graph = model.graph.as_ref()?;
    let mut reasons = Vec::new();
    let mut todo = vec![graph];
    while let Some(GraphProto { node, input, output, value_info, .. }) = todo.pop() {
        for value in input.iter().chain(output).chain(value_info) {
            reasons.extend(value.r#type.as_ref().and_then(excluded_type));
        }
        for node in node {
            reasons.extend(excluded_node(node));
            todo.extend(node.attribute.iter().filter_map(|a| a.g.as_deref()));
        }
    }
    reasons.into_iter().min()
}

fn excluded_node(node: &NodeProto) -> Option<&'static str> {
    match (node.domain(), node.op_type()) {
        ("ai.onnx.ml", _) => Some("machine-learning domain"),
        ("ai.onnx.preview.training", _) => Some("training domain"),
        (_, op) if RANDOM.contains(&op) => Some("random"),
        (_, op) if op.contains("Sequence") => Some("sequences"),
        (_, op) if op.starts_with("Optional") => Some("optionals"),
        _ => None,
    }
}

fn excluded_type(ty: &TypeProto) -> Option<&'static str> {
    match ty.value.as_ref()? {
        TypeValue::Sequence(_) => Some("sequences"),
        TypeValue::Optional(_) => Some("optionals"),
        TypeValue::Tensor(t) => match DataType::try_from(t.elem_type.unwrap_or(0)).ok()? {
            DataType::String => Some("strings"),
            DataType::Complex64 | DataType::Complex128 => Some("complex numbers"),
            DataType::Float8e4m3fn
            | DataType::Float8e4m3fnuz
            | DataType::Float8e5m2
            | DataType::Float8e5m2fnuz
            | DataType::Float8e8m0
            | DataType::Float4e2m1
            | DataType::Int4
            | DataType::Uint4
            | DataType::Int2
            | DataType::Uint2 => Some("8-bit floats and elements of less than a byte"),
            _ => None,
        },
        _ => Some("sparse tensors, maps and opaque types"),
    }
}

/// The tensors `input_0.pb`, `input_1.pb`, … of a case.
fn tensors(folder: &Path, kind: &str) -> Result<Vec<Tensor>, String> {
    (0..)
        .map(|i| folder.join(format!("{kind}_{i}.pb")))
        .take_while(|path| path.exists())
        .map(|path| tensor::read_tensor(&path).map(|(_, t)| t).map_err(|e| e.to_string()))
        .collect()
}

/// What a shape depends on becomes a constant, in stages: the inputs of integers, all but the first, all.
const STAGES: [fn(usize, &Tensor) -> bool; 3] =
    [|_, t| !t.dtype().is_float(), |i, _| i > 0, |_, _| true];

/// Whether a node of the model is only decoded when it runs.
fn defers(model: &Model) -> bool {
    model.graph.nodes.iter().any(|node| node.op.name() == "Deferred")
}

/// Imports a case's model, with the inputs that it still has. Where the run decides a shape, the forms in
/// which more and more inputs are constants follow, until the import knows all shapes. Cases of opsets that
/// planc does not read are taken to be of the nearest that it does; the node's meaning is the same.
fn import(
    mut model: ModelProto,
    inputs: &[Tensor],
) -> Result<Vec<(Model, Vec<Tensor>)>, ImportError> {
    let options = ImportOptions::default();
    let mut imported = import_bytes(model.encode_to_vec(), &options);
    if let Err(ImportError::Opset { found, min, max }) = imported {
        for opset in &mut model.opset_import {
            if opset.version == Some(found) {
                opset.version = Some(found.clamp(min, max));
            }
        }
        imported = import_bytes(model.encode_to_vec(), &options);
    }
    let mut forms = vec![(imported?, inputs.to_vec())];
    let mut constant = vec![false; inputs.len()];
    for becomes_constant in STAGES {
        if !forms.last().is_some_and(|(model, _)| defers(model)) {
            break;
        }
        let Some(graph) = &mut model.graph else { break };
        for (i, (value, tensor)) in graph.input.iter().zip(inputs).enumerate() {
            if !constant[i] && becomes_constant(i, tensor) {
                constant[i] = true;
                graph.initializer.push(tensor::to_proto(value.name(), tensor));
            }
        }
        let left = inputs.iter().zip(&constant).filter(|(_, constant)| !**constant);
        let left = left.map(|(t, _)| t.clone()).collect();
        forms.push((import_bytes(model.encode_to_vec(), &options)?, left));
    }
    Ok(forms)
}

fn differs(found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Option<String> {
    if found.ty() != expected.ty() {
        return Some(format!("is {}, expected {}", found.ty(), expected.ty()));
    }
    (0..found.len()).find_map(|i| {
        let equal = if found.dtype().is_float() {
            let (x, y) = (found.f64_at(i), expected.f64_at(i));
            let close = (x - y).abs() <= tolerance.absolute + tolerance.relative * y.abs();
            x == y || close || (x.is_nan() && y.is_nan())
        } else {
            found.int_at(i) == expected.int_at(i)
        };
        let (x, y) = (found.f64_at(i), expected.f64_at(i));
        (!equal).then(|| format!("element {i} is {x}, expected {y}"))
    })
}

impl Case {
    /// Runs the case; says what its operator is, too.
    pub fn run(&self) -> (String, Outcome) {
        let bytes = fs::read(&self.model).unwrap();
        let model = ModelProto::decode(&bytes[..]).unwrap();
        let operator = operator(&model).to_string();
        let outcome = match exclusion(&model) {
            Some(why) => Outcome::Excluded(why),
            None => self.run_model(model),
        };
        (operator, outcome)
    }

    fn run_model(&self, model: ModelProto) -> Outcome {
        let (inputs, expected) = match (tensors(&self.data, "input"), tensors(&self.data, "output"))
        {
            (Ok(inputs), Ok(expected)) => (inputs, expected),
            (Err(e), _) | (_, Err(e)) => return Outcome::Failed(e),
        };
        let forms = match import(model, &inputs) {
            Ok(forms) => forms,
            Err(e) if e.to_string().contains("is random") => return Outcome::Excluded("random"),
            Err(e @ ImportError::Unsupported(_)) => return Outcome::Unsupported(e.to_string()),
            Err(ImportError::Op { source: e @ OpError::Unsupported(_), .. }) => {
                return Outcome::Unsupported(e.to_string());
            }
            Err(e) => return Outcome::Failed(e.to_string()),
        };
        for (model, inputs) in forms {
            let outputs = match evaluate(&model.graph, &inputs, &InMemory) {
                Ok(outputs) => outputs,
                Err(e) => return Outcome::Failed(e.to_string()),
            };
            if outputs.len() != expected.len() {
                let (found, expected) = (outputs.len(), expected.len());
                return Outcome::Failed(format!("{found} outputs, not {expected}"));
            }
            for (i, (found, expected)) in outputs.iter().zip(&expected).enumerate() {
                if let Some(why) = differs(found, expected, self.tolerance) {
                    return Outcome::Failed(format!("output {i} {why}"));
                }
            }
        }
        Outcome::Passed
    }
}
