//! ONNX Runtime's contributed operators against ONNX Runtime itself.
//!
//! The cases in `microsoft/` were written by `microsoft/generate.py`: models of one operator each, with
//! random inputs and the outputs that ONNX Runtime computed. A whole model that it fused lies in the
//! optional model folder; without it the test says so and passes.

#![allow(clippy::float_cmp, clippy::print_stderr, clippy::unwrap_used)] // a test may

mod node_case;

use node_case::{Case, Outcome, Tolerance};
use planc_ir::Tensor;
use planc_ir::interp::evaluate;
use planc_ir::onnx::tensor::read_tensor;
use planc_ir::onnx::wire::{DimensionValue, ModelProto, TypeValue};
use planc_ir::onnx::{ImportOptions, import};
use planc_ir::ops::decoders;
use planc_ir::weights::ModelFiles;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[test]
fn contributed_operators_agree_with_onnx_runtime() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/microsoft");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| folder.join(name).join("model.onnx").exists())
        .collect();
    names.sort_unstable();
    let mut tested = BTreeSet::new();
    let mut faults = Vec::new();
    for name in names {
        let case = Case {
            model: folder.join(&name).join("model.onnx"),
            data: folder.join(&name),
            tolerance: Tolerance { absolute: 1e-5, relative: 1e-4 },
            name,
        };
        let (operator, outcome) = case.run();
        tested.insert(operator);
        match outcome {
            Outcome::Passed => {}
            other => faults.push(format!("{} {other}", case.name)),
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let known = decoders().filter(|entry| entry.domain == "com.microsoft").map(|entry| entry.name);
    let untested: Vec<&str> = known.filter(|name| !tested.contains(*name)).collect();
    assert!(untested.is_empty(), "no case for {untested:?}");
}

/// More inputs or outputs than any model has.
const MAX_TENSORS: usize = 1000;

/// The tensors of a data set, in order, with their names.
fn tensors(folder: &Path, kind: &str) -> Vec<(String, Tensor)> {
    (0..MAX_TENSORS)
        .map(|i| folder.join(format!("{kind}_{i}.pb")))
        .take_while(|path| path.exists())
        .map(|path| read_tensor(&path).unwrap())
        .collect()
}

#[test]
fn a_llama_of_fused_operators_gives_its_outputs() {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models/run/llama-ortfused-hf");
    let path = folder.join("model.onnx");
    let Ok(bytes) = fs::read(&path) else {
        eprintln!("skipped: the model folder is not there ({})", folder.display());
        return;
    };
    let graph = ModelProto::decode(&bytes[..]).unwrap().graph.unwrap();
    for set in ["test_data_set_0", "test_data_set_1"] {
        let inputs = tensors(&folder.join(set), "input");
        let mut bind = BTreeMap::new();
        for (value, (_, tensor)) in graph.input.iter().zip(&inputs) {
            let Some(TypeValue::Tensor(ty)) = value.r#type.as_ref().and_then(|t| t.value.as_ref())
            else {
                continue;
            };
            let dims = ty.shape.iter().flat_map(|shape| &shape.dim);
            bind.extend(dims.zip(tensor.shape()).filter_map(|(dim, &n)| match &dim.value {
                Some(DimensionValue::Param(symbol)) => Some((symbol.clone(), n)),
                _ => None,
            }));
        }
        let model = import(&path, &ImportOptions { bind, ..ImportOptions::default() }).unwrap();
        let inputs: Vec<Tensor> = inputs.into_iter().map(|(_, t)| t).collect();
        let found = evaluate(&model.graph, &inputs, &ModelFiles::new(&path)).unwrap();
        let expected = tensors(&folder.join(set), "output");
        assert_eq!(found.len(), expected.len());
        for (found, (name, expected)) in found.iter().zip(&expected) {
            assert_eq!(found.ty(), expected.ty(), "{set}: {name}");
            for (x, y) in found.to_f64s().into_iter().zip(expected.to_f64s()) {
                let close = (x - y).abs() <= 1e-4 + 1e-3 * y.abs();
                assert!(close, "{set}: `{name}` has {x}, not {y}");
            }
        }
    }
}
