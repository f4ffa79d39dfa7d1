//! Importing a model whose symbolic dimensions nobody gave.

use planc_ir::onnx::{ImportError, ImportOptions, Model, import};
use std::path::Path;

/// Sizes to assume for what is no batch, the first that the model accepts: tables of positions may be
/// short.
const SIZES: [u64; 5] = [128, 64, 32, 16, 8];

/// Whether a dimension is a batch by its name, or by its place if it has none.
fn is_batch(name: &str) -> bool {
    let name = name.to_lowercase();
    name.contains("batch") || name.ends_with(".0")
}

/// Imports with sizes assumed for the dimensions that are not bound, one for a batch, and says which
/// those are. Names that follow from others are left to follow.
///
/// # Errors
/// As [`import`].
pub fn import_assuming(
    path: &Path,
    options: &ImportOptions,
) -> Result<(Model, Vec<String>), ImportError> {
    let names = match import(path, options) {
        Err(ImportError::Unbound { names }) => names,
        other => return other.map(|model| (model, Vec::new())),
    };
    let attempt = |size: u64, left_out: Option<&String>| {
        let mut options = options.clone();
        for name in names.iter().filter(|name| Some(*name) != left_out) {
            options.bind.insert(name.clone(), if is_batch(name) { 1 } else { size });
        }
        import(path, &options)
    };
    let is_size =
        |e: &ImportError| matches!(e, ImportError::Op { .. } | ImportError::Contradiction { .. });
    let mut first = None;
    for size in SIZES {
        for left_out in std::iter::once(None).chain(names.iter().rev().map(Some)) {
            match attempt(size, left_out) {
                Ok(model) => {
                    let follows = |name: &String| model.relations.contains_key(name);
                    let assumed = names.iter().filter(|name| !follows(name)).cloned().collect();
                    return Ok((model, assumed));
                }
                Err(e) if is_size(&e) => first = first.or(Some(e)),
                Err(e) if left_out.is_none() => return Err(e),
                Err(_) => {}
            }
        }
    }
    Err(first.unwrap_or(ImportError::Unbound { names }))
}
