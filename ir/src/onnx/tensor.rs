//! `TensorProto`: what initializers, attributes and files of test data are made of.

use super::error::TensorError;
use super::types;
use super::wire::{DataLocation, DataType, StringStringEntryProto, TensorProto};
use crate::tensor::MAX_TENSOR_BYTES;
use crate::{DType, EvalError, Tensor, TensorType, atomic, mapped};
use bytes::Bytes;
use prost::Message;
use std::io;
use std::path::Path;
use thiserror::Error;

/// A file that does not hold a tensor.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum TensorFileError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path} is not a TensorProto: {source}")]
    Decode { path: String, source: prost::DecodeError },
    #[error("{path}: tensor `{name}`: {source}")]
    Tensor { path: String, name: String, source: TensorError },
}

/// Reads a file that holds one `TensorProto`: its name and contents.
///
/// # Errors
/// If the file is no such thing.
pub fn read_tensor(path: &Path) -> Result<(String, Tensor), TensorFileError> {
    let display = || path.display().to_string();
    let bytes =
        mapped::map(path).map_err(|source| TensorFileError::Read { path: display(), source })?;
    let proto = TensorProto::decode(bytes)
        .map_err(|source| TensorFileError::Decode { path: display(), source })?;
    match in_memory(&proto) {
        Ok(tensor) => Ok((proto.name().to_string(), tensor)),
        Err(source) => {
            Err(TensorFileError::Tensor { path: display(), name: proto.name().to_string(), source })
        }
    }
}

/// Writes a file that holds one `TensorProto`. The file appears whole or not at all.
///
/// # Errors
/// If it cannot be written.
pub fn write_tensor(path: &Path, name: &str, tensor: &Tensor) -> io::Result<()> {
    atomic::write(path, &to_proto(name, tensor).encode_to_vec())
}

/// A tensor as a message, its contents in `raw_data`.
pub fn to_proto(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: Some(name.to_string()),
        dims: tensor.shape().iter().map(|&d| d as i64).collect(),
        data_type: Some(DataType::from(tensor.dtype()) as i32),
        raw_data: Some(Bytes::from(tensor.to_bytes())),
        ..TensorProto::default()
    }
}

/// Where a message says that its contents are.
#[derive(Debug)]
pub(super) enum Contents<'a> {
    /// In the message, as little-endian bytes.
    Raw(&'a Bytes),
    /// In a typed field of the message.
    Typed,
    /// In a file.
    External {
        /// As the model writes it.
        location: &'a str,
        /// From the start of that file.
        offset: u64,
    },
}

/// The type that a message declares. Its size in bytes fits an `i64`.
pub(super) fn declared_type(proto: &TensorProto) -> Result<TensorType, TensorError> {
    let dtype = types::dtype(proto.data_type()).map_err(TensorError::DataType)?;
    let extent = |&d: &i64| u64::try_from(d).map_err(|_| TensorError::NegativeExtent(d));
    let ty = TensorType::new(dtype, proto.dims.iter().map(extent).collect::<Result<Vec<_>, _>>()?);
    if ty.bytes() > i64::MAX as u64 {
        return Err(TensorError::TooLarge(proto.dims.clone()));
    }
    Ok(ty)
}

/// Where the contents of a message of declared type `ty` are, their length checked.
pub(super) fn contents<'a>(
    proto: &'a TensorProto,
    ty: &TensorType,
) -> Result<Contents<'a>, TensorError> {
    if proto.segment.is_some() {
        return Err(TensorError::Segment);
    }
    if proto.data_location() == DataLocation::External {
        return external(proto, ty);
    }
    let expected = typed_field(ty.dtype);
    let filled = typed_lengths(proto).into_iter().find(|(_, n)| *n > 0);
    match (&proto.raw_data, filled) {
        (Some(raw), None) if !raw.is_empty() || ty.elements() == 0 => {
            if raw.len() as u64 == ty.bytes() {
                Ok(Contents::Raw(raw))
            } else {
                Err(TensorError::RawLength { expected: ty.bytes(), found: raw.len() as u64 })
            }
        }
        (_, Some((found, _))) if found != expected => {
            Err(TensorError::WrongField { dtype: ty.dtype, expected, found })
        }
        (Some(raw), Some((found, _))) if !raw.is_empty() => {
            Err(TensorError::WrongField { dtype: ty.dtype, expected: "raw_data alone", found })
        }
        (_, Some((field, n))) if n as u64 != ty.elements() => {
            Err(TensorError::TypedLength { field, expected: ty.elements(), found: n as u64 })
        }
        (_, None) if ty.elements() > 0 => Err(TensorError::NoData),
        _ => Ok(Contents::Typed),
    }
}

fn external<'a>(proto: &'a TensorProto, ty: &TensorType) -> Result<Contents<'a>, TensorError> {
    let entry = |key: &str| {
        proto.external_data.iter().find(|e| e.key() == key).map(StringStringEntryProto::value)
    };
    let number = |key: &'static str| match entry(key) {
        None => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(n) => Ok(Some(n)),
            Err(_) => Err(TensorError::ExternalNumber { key, value: text.to_string() }),
        },
    };
    let location = entry("location").ok_or(TensorError::ExternalMissing("location"))?;
    let offset = number("offset")?.unwrap_or(0);
    if let Some(found) = number("length")?.filter(|&n| n != ty.bytes()) {
        return Err(TensorError::ExternalLength { expected: ty.bytes(), found });
    }
    Ok(Contents::External { location, offset })
}

/// The field in which elements of a type lie where they are not raw.
const fn typed_field(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float_data",
        DType::F64 => "double_data",
        DType::I64 => "int64_data",
        DType::U32 | DType::U64 => "uint64_data",
        DType::F16
        | DType::BF16
        | DType::I32
        | DType::I16
        | DType::I8
        | DType::U16
        | DType::U8
        | DType::Bool => "int32_data",
    }
}

fn typed_lengths(proto: &TensorProto) -> [(&'static str, usize); 6] {
    [
        ("float_data", proto.float_data.len()),
        ("double_data", proto.double_data.len()),
        ("int32_data", proto.int32_data.len()),
        ("int64_data", proto.int64_data.len()),
        ("uint64_data", proto.uint64_data.len()),
        ("string_data", proto.string_data.len()),
    ]
}

/// A message's contents, which must be in the message.
pub(super) fn in_memory(proto: &TensorProto) -> Result<Tensor, TensorError> {
    let ty = declared_type(proto)?;
    match contents(proto, &ty)? {
        Contents::Raw(bytes) => Ok(Tensor::from_bytes(ty, bytes)?),
        Contents::Typed => typed(proto, ty),
        Contents::External { .. } => Err(TensorError::ExternalNotAllowed),
    }
}

/// The contents of a typed field whose length was checked.
pub(super) fn typed(proto: &TensorProto, ty: TensorType) -> Result<Tensor, TensorError> {
    if ty.bytes() > MAX_TENSOR_BYTES {
        let error = EvalError::TooLarge { bytes: ty.bytes(), limit_bytes: MAX_TENSOR_BYTES };
        return Err(error.into());
    }
    let ints = || proto.int32_data.iter();
    let shape = ty.shape;
    Ok(match ty.dtype {
        DType::F32 => Tensor::new(shape, proto.float_data.clone()),
        DType::F64 => Tensor::new(shape, proto.double_data.clone()),
        DType::I64 => Tensor::new(shape, proto.int64_data.clone()),
        DType::U64 => Tensor::new(shape, proto.uint64_data.clone()),
        DType::U32 => Tensor::new(shape, proto.uint64_data.iter().map(|&x| x as u32).collect()),
        DType::I32 => Tensor::new(shape, proto.int32_data.clone()),
        DType::I16 => Tensor::new(shape, ints().map(|&x| x as i16).collect()),
        DType::I8 => Tensor::new(shape, ints().map(|&x| x as i8).collect()),
        DType::U16 => Tensor::new(shape, ints().map(|&x| x as u16).collect()),
        DType::U8 => Tensor::new(shape, ints().map(|&x| x as u8).collect()),
        DType::Bool => Tensor::new(shape, ints().map(|&x| x != 0).collect()),
        // Sixteen bits of floating point are the low bits of an int32.
        DType::F16 => Tensor::new(shape, ints().map(|&x| half::f16::from_bits(x as u16)).collect()),
        DType::BF16 => {
            Tensor::new(shape, ints().map(|&x| half::bf16::from_bits(x as u16)).collect())
        }
    }?)
}

/// Checks that an external file, if it is there, holds the bytes.
pub(super) fn check_external(
    location: &str,
    offset: u64,
    bytes: u64,
    length: Option<u64>,
) -> Result<(), TensorError> {
    let end = offset.saturating_add(bytes);
    match length {
        Some(length) if end > length => Err(TensorError::ExternalOutside {
            location: location.to_string(),
            offset,
            end,
            length,
        }),
        _ => Ok(()),
    }
}
