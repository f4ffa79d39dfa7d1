//! Initializers: which become constants, and where the bytes of the others lie.
//!
//! What may decide a shape is read now; everything else stays in its file. So small tensors become
//! constants: up to [`SMALL_BYTES`], and integers and bools up to [`SMALL_INTS_BYTES`].

use super::error::TensorError;
use super::tensor::{self, Contents};
use super::wire::TensorProto;
use crate::Tensor;
use crate::graph::{TensorType, ValueDef, WeightSource};
use crate::weights::{ModelFiles, external_path};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Tensors of at most this size become constants.
const SMALL_BYTES: u64 = 1 << 10;
/// Integer and bool tensors of at most this size become constants.
const SMALL_INTS_BYTES: u64 = 1 << 20;

/// The file that is imported, and those beside it.
#[derive(Debug)]
pub(super) struct Files {
    /// The whole model file; tensors decoded from it are slices of it.
    model: Bytes,
    /// Its path, if it lies in the file system.
    path: Option<PathBuf>,
    contents: ModelFiles,
    /// Whether small tensors may be trained, and so are not constants.
    training: bool,
    /// Lengths of the files beside it; `None` for one that is not there.
    lengths: BTreeMap<String, Option<u64>>,
}

impl Files {
    pub(super) fn new(model: Bytes, path: Option<PathBuf>, training: bool) -> Self {
        let contents = ModelFiles::new(path.clone().unwrap_or_default());
        Self { model, path, contents, training, lengths: BTreeMap::new() }
    }

    /// What an initializer is in the graph.
    pub(super) fn define(
        &mut self,
        proto: &TensorProto,
    ) -> Result<(TensorType, ValueDef), TensorError> {
        self.tensor(proto, self.training)
    }

    /// What a tensor of the file is in the graph; one that may be trained is no constant, however small.
    pub(super) fn tensor(
        &mut self,
        proto: &TensorProto,
        may_train: bool,
    ) -> Result<(TensorType, ValueDef), TensorError> {
        let ty = tensor::declared_type(proto)?;
        let limit = if ty.dtype.is_float() { SMALL_BYTES } else { SMALL_INTS_BYTES };
        let may_train = may_train && ty.dtype.is_float() && ty.rank() > 0;
        let small = ty.bytes() <= limit && !may_train;
        let constant = |t: Tensor| ValueDef::Constant(Arc::new(t));
        let def = match tensor::contents(proto, &ty)? {
            Contents::Raw(raw) if small => constant(Tensor::from_bytes(ty.clone(), raw)?),
            Contents::Raw(raw) => ValueDef::Weight(self.in_model(raw, &ty)?),
            Contents::Typed if small => constant(tensor::typed(proto, ty.clone())?),
            Contents::Typed => {
                let tensor = tensor::typed(proto, ty.clone())?;
                ValueDef::Weight(WeightSource::Inline(Arc::new(tensor)))
            }
            Contents::External { location, offset } => {
                let length = self.length(location)?;
                tensor::check_external(location, offset, ty.bytes(), length)?;
                if small && length.is_some() {
                    let bytes = self.contents.slice(Some(location), offset, ty.bytes())?;
                    constant(Tensor::from_bytes(ty.clone(), &bytes)?)
                } else {
                    let location = location.to_string();
                    ValueDef::Weight(WeightSource::External { location, offset, bytes: ty.bytes() })
                }
            }
        };
        Ok((ty, def))
    }

    /// Where in the model file a slice of it lies.
    fn in_model(&self, raw: &Bytes, ty: &TensorType) -> Result<WeightSource, TensorError> {
        let offset = (raw.as_ptr() as usize).checked_sub(self.model.as_ptr() as usize);
        match offset.filter(|at| at + raw.len() <= self.model.len()) {
            Some(at) => Ok(WeightSource::ModelFile { offset: at as u64, bytes: ty.bytes() }),
            // The decoder copied the bytes: then they are in memory anyway.
            None => Ok(WeightSource::Inline(Arc::new(Tensor::from_bytes(ty.clone(), raw)?))),
        }
    }

    /// The length of a file beside the model, if it is there.
    fn length(&mut self, location: &str) -> Result<Option<u64>, TensorError> {
        let path = external_path(self.path.as_deref().unwrap_or("".as_ref()), location)?;
        if self.path.is_none() {
            return Ok(None);
        }
        if let Some(&known) = self.lengths.get(location) {
            return Ok(known);
        }
        let length = fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|m| m.len());
        self.lengths.insert(location.to_string(), length);
        Ok(length)
    }
}
