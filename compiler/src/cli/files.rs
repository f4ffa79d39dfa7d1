//! Tensor files: a `.pb` file holds one named tensor, a folder the inputs and expected outputs of a run
//! (`input_0.pb`, `output_0.pb`, …, as in ONNX's own test data).

use super::error::CliError;
use planc_ir::Tensor;
use planc_ir::onnx::tensor::read_tensor;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Named tensors.
pub type Named = BTreeMap<String, Tensor>;

/// Inputs and, where a folder holds them, expected outputs.
pub fn read(paths: &[PathBuf]) -> Result<(Named, Named), CliError> {
    let (mut inputs, mut outputs) = (Named::new(), Named::new());
    for path in paths {
        if path.is_dir() {
            let mut files: Vec<PathBuf> = std::fs::read_dir(path)
                .map_err(CliError::io(path))?
                .filter_map(|e| e.ok().map(|e| e.path()))
                .filter(|p| p.extension().is_some_and(|e| e == "pb"))
                .collect();
            files.sort();
            for file in files {
                let is_output =
                    file.file_name().is_some_and(|n| n.to_string_lossy().starts_with("output"));
                insert(if is_output { &mut outputs } else { &mut inputs }, &file)?;
            }
        } else {
            insert(&mut inputs, path)?;
        }
    }
    Ok((inputs, outputs))
}

fn insert(into: &mut Named, path: &Path) -> Result<(), CliError> {
    let (name, tensor) = read_tensor(path)?;
    let name = if name.is_empty() {
        path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
    } else {
        name
    };
    into.insert(name, tensor);
    Ok(())
}
