//! Files of named tensors in the safetensors format: read through a map of the file, written tensor by tensor.

use bytes::Bytes;
use planc_ir::{DType, TensorType, mapped};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes of the number in front of the header that says how long it is.
const LENGTH_BYTES: usize = 8;

/// A longer header is refused before it is parsed; the format's own limit.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// A file that cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum SafetensorsError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{} is not a whole safetensors file ({why}); it was cut short or is another kind of file",
        path.display()
    )]
    Format { path: PathBuf, why: String },
    #[error("{}: tensor `{name}` has elements of type {dtype}, which planc does not know", path.display())]
    Element { path: PathBuf, name: String, dtype: Dtype },
}

/// A file, open for reading. Only the pages that are looked at are read.
#[derive(Debug)]
pub struct SafetensorsFile {
    file: Bytes,
    tensors: BTreeMap<String, (TensorType, Range<usize>)>,
    metadata: BTreeMap<String, String>,
}

impl SafetensorsFile {
    /// Opens a file and checks its header.
    pub fn open(path: &Path) -> Result<Self, SafetensorsError> {
        let path_of = || path.to_path_buf();
        let file = mapped::map(path)
            .map_err(|source| SafetensorsError::Read { path: path_of(), source })?;
        let (begin, header) =
            header(&file).map_err(|why| SafetensorsError::Format { path: path_of(), why })?;
        let mut tensors = BTreeMap::new();
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else { continue };
            let Some(dtype) = dtype(info.dtype) else {
                return Err(SafetensorsError::Element { path: path_of(), name, dtype: info.dtype });
            };
            let shape: Vec<u64> = info.shape.iter().map(|&n| n as u64).collect();
            let range = begin + info.data_offsets.0..begin + info.data_offsets.1;
            tensors.insert(name, (TensorType::new(dtype, shape), range));
        }
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Self { file, tensors, metadata })
    }

    /// The tensors' names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor's type and bytes.
    pub fn tensor(&self, name: &str) -> Option<(&TensorType, &[u8])> {
        let (ty, range) = self.tensors.get(name)?;
        Some((ty, &self.file[range.clone()]))
    }

    /// What the file says beside its tensors.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }
}

/// Where the tensors begin, and the header; or what is wrong with it.
fn header(file: &[u8]) -> Result<(usize, Metadata), String> {
    let (length, rest) = file.split_first_chunk::<LENGTH_BYTES>().ok_or("it has no header")?;
    let length = usize::try_from(u64::from_le_bytes(*length))
        .ok()
        .filter(|&n| n <= MAX_HEADER_BYTES.min(rest.len()))
        .ok_or("its header is longer than it")?;
    // This checks that the tensors' bytes follow each other and are as many as their extents say.
    let header: Metadata = serde_json::from_slice(&rest[..length]).map_err(|e| e.to_string())?;
    if header.data_len() == rest.len() - length {
        Ok((LENGTH_BYTES + length, header))
    } else {
        Err(format!("{} bytes of tensors instead of {}", rest.len() - length, header.data_len()))
    }
}

/// Why a file was not written.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum WriteError<E> {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Header(#[from] SafeTensorError),
    #[error("{0}")]
    Contents(E),
}

/// Writes tensors, of which `contents` gives the bytes one after the other. `metadata` is one key and its
/// value: the order of several would change from file to file.
pub fn write<E>(
    out: impl Write,
    tensors: &BTreeMap<&str, &TensorType>,
    (key, value): (&str, &str),
    mut contents: impl FnMut(&str) -> Result<Vec<u8>, E>,
) -> Result<(), WriteError<E>> {
    // The widest elements come first, so that all are aligned.
    let mut order: Vec<(&str, &TensorType)> = tensors.iter().map(|(n, t)| (*n, *t)).collect();
    order.sort_by_key(|(_, ty)| std::cmp::Reverse(ty.dtype.bytes()));
    let mut end = 0;
    let infos = order.iter().map(|(name, ty)| {
        let begin = end;
        end = begin + ty.bytes() as usize;
        let shape = ty.shape.iter().map(|&n| n as usize).collect();
        (
            name.to_string(),
            TensorInfo { dtype: stored(ty.dtype), shape, data_offsets: (begin, end) },
        )
    });
    let infos = infos.collect();
    let metadata = [(key.to_string(), value.to_string())].into();
    let header = Metadata::new(Some(metadata), infos)?;
    let mut header = serde_json::to_vec(&header).map_err(io::Error::from)?;
    header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');
    let mut out = BufWriter::new(out);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (name, ty) in order {
        let bytes = contents(name).map_err(WriteError::Contents)?;
        if bytes.len() as u64 != ty.bytes() {
            let why = format!("`{name}` has {} bytes, not those of {ty}", bytes.len());
            return Err(io::Error::other(why).into());
        }
        out.write_all(&bytes)?;
    }
    Ok(out.flush()?)
}

fn dtype(stored: Dtype) -> Option<DType> {
    planc_ir::dtype::ALL.into_iter().find(|&d| self::stored(d) == stored)
}

const fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
