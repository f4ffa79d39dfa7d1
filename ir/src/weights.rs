//! Loading the contents of weights: from the model file, from files beside it, or from memory.

use crate::graph::{TensorType, WeightSource};
use crate::{DType, EvalError, Tensor, mapped};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use thiserror::Error;

/// A source of weights' contents.
pub trait Weights {
    /// The contents of the weight `name`.
    ///
    /// # Errors
    /// If they cannot be had.
    fn load(
        &self,
        name: &str,
        ty: &TensorType,
        source: &WeightSource,
    ) -> Result<Tensor, WeightError>;
}

/// Why a weight's contents cannot be had.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum WeightError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("bytes {offset}..{end} lie outside {path}, which has {length} bytes")]
    Outside { path: String, offset: u64, end: u64, length: u64 },
    #[error("external data location `{location}`: {why}")]
    Location { location: String, why: &'static str },
    #[error(transparent)]
    Tensor(#[from] EvalError),
    #[error("there is no source of weights here")]
    None,
}

/// For graphs whose weights are all in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl Weights for InMemory {
    fn load(
        &self,
        name: &str,
        ty: &TensorType,
        source: &WeightSource,
    ) -> Result<Tensor, WeightError> {
        match source {
            WeightSource::Inline(t) => Ok(t.as_ref().clone()),
            WeightSource::Fill { value } => filled(ty, *value),
            WeightSource::Cast { from, source } => cast(self, name, ty, *from, source),
            WeightSource::ModelFile { .. } | WeightSource::External { .. } => {
                Err(WeightError::None)
            }
        }
    }
}

/// The files that a model consists of: the model file and those beside it that it names.
#[derive(Debug)]
pub struct ModelFiles {
    model: PathBuf,
    maps: Mutex<BTreeMap<PathBuf, Bytes>>,
}

impl ModelFiles {
    /// The files of the model at `model`. Nothing is opened before a weight is loaded.
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self { model: model.into(), maps: Mutex::new(BTreeMap::new()) }
    }

    /// `bytes` bytes at `offset` of the model file (`location` is `None`) or of a file beside it.
    ///
    /// # Errors
    /// If there is no such file or it is too short.
    pub fn slice(
        &self,
        location: Option<&str>,
        offset: u64,
        bytes: u64,
    ) -> Result<Bytes, WeightError> {
        let path = match location {
            None => self.model.clone(),
            Some(location) => external_path(&self.model, location)?,
        };
        let file = self.map(&path)?;
        let (end, length) = (offset.saturating_add(bytes), file.len() as u64);
        if end > length {
            return Err(WeightError::Outside {
                path: path.display().to_string(),
                offset,
                end,
                length,
            });
        }
        Ok(file.slice(offset as usize..end as usize))
    }

    fn map(&self, path: &Path) -> Result<Bytes, WeightError> {
        let mut maps = self.maps.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(file) = maps.get(path) {
            return Ok(file.clone());
        }
        let file = mapped::map(path)
            .map_err(|source| WeightError::Read { path: path.display().to_string(), source })?;
        maps.insert(path.to_path_buf(), file.clone());
        Ok(file)
    }
}

impl Weights for ModelFiles {
    fn load(
        &self,
        name: &str,
        ty: &TensorType,
        source: &WeightSource,
    ) -> Result<Tensor, WeightError> {
        let bytes = match source {
            WeightSource::Inline(t) => return Ok(t.as_ref().clone()),
            WeightSource::Fill { value } => return filled(ty, *value),
            WeightSource::Cast { from, source } => return cast(self, name, ty, *from, source),
            WeightSource::ModelFile { offset, bytes } => self.slice(None, *offset, *bytes)?,
            WeightSource::External { location, offset, bytes } => {
                self.slice(Some(location), *offset, *bytes)?
            }
        };
        Ok(Tensor::from_bytes(ty.clone(), &bytes)?)
    }
}

fn filled(ty: &TensorType, value: f64) -> Result<Tensor, WeightError> {
    Ok(Tensor::from_f64(ty.clone(), |_| value)?)
}

/// What `source` holds as elements of type `from`, converted to `ty`.
fn cast(
    weights: &(impl Weights + ?Sized),
    name: &str,
    ty: &TensorType,
    from: DType,
    source: &WeightSource,
) -> Result<Tensor, WeightError> {
    let stored = weights.load(name, &TensorType::new(from, ty.shape.clone()), source)?;
    Ok(Tensor::from_f64(ty.clone(), |i| stored.f64_at(i))?)
}

/// The path of an external data file, which must lie in the model's folder or below.
///
/// # Errors
/// If the location is absolute (on any system), empty, or leads out of the folder.
pub fn external_path(model: &Path, location: &str) -> Result<PathBuf, WeightError> {
    let bad = |why| Err(WeightError::Location { location: location.to_string(), why });
    let mut parts = location.split(['/', '\\']).peekable();
    if location.is_empty() {
        return bad("is empty; name a file beside the model");
    }
    if parts.peek() == Some(&"") || location.as_bytes().get(1) == Some(&b':') {
        return bad("is absolute; it must be relative to the model's folder");
    }
    if parts.any(|p| p == "..") {
        return bad("leads out of the model's folder");
    }
    if location.contains('\0') {
        return bad("holds a zero byte");
    }
    Ok(model.parent().unwrap_or(Path::new("")).join(location))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn locations_stay_in_the_models_folder() {
        let model = Path::new("models/a.onnx");
        assert_eq!(external_path(model, "a.data").unwrap(), Path::new("models/a.data"));
        assert_eq!(external_path(model, "w/a..b").unwrap(), Path::new("models/w/a..b"));
        for bad in ["", "/etc/x", "\\x", "C:\\x", "C:x", "../x", "w/../../x", "w\\..\\x", "a\0b"] {
            assert!(external_path(model, bad).is_err(), "{bad:?}");
        }
    }
}
