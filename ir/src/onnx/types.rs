//! Declared types of values, and the correspondence of element types.

use super::dims::{self, Symbols};
use super::error::ImportError;
use super::wire::{DataType, Dimension, TypeProto, TypeValue, ValueInfoProto};
use crate::{DType, TensorType};
use std::collections::BTreeMap;

/// The element type of an ONNX `data_type`, or what to call it where there is none.
pub(super) fn dtype(data_type: i32) -> Result<DType, String> {
    let known = DataType::try_from(data_type).map_err(|_| data_type.to_string())?;
    Ok(match known {
        DataType::Double => DType::F64,
        DataType::Float => DType::F32,
        DataType::Float16 => DType::F16,
        DataType::Bfloat16 => DType::BF16,
        DataType::Int64 => DType::I64,
        DataType::Int32 => DType::I32,
        DataType::Int16 => DType::I16,
        DataType::Int8 => DType::I8,
        DataType::Uint64 => DType::U64,
        DataType::Uint32 => DType::U32,
        DataType::Uint16 => DType::U16,
        DataType::Uint8 => DType::U8,
        DataType::Bool => DType::Bool,
        other => return Err(format!("{data_type} ({other:?})")),
    })
}

impl From<DType> for DataType {
    /// The inverse of [`dtype`].
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self::Double,
            DType::F32 => Self::Float,
            DType::F16 => Self::Float16,
            DType::BF16 => Self::Bfloat16,
            DType::I64 => Self::Int64,
            DType::I32 => Self::Int32,
            DType::I16 => Self::Int16,
            DType::I8 => Self::Int8,
            DType::U64 => Self::Uint64,
            DType::U32 => Self::Uint32,
            DType::U16 => Self::Uint16,
            DType::U8 => Self::Uint8,
            DType::Bool => Self::Bool,
        }
    }
}

/// The type of a graph input, its dimensions bound.
pub(super) fn input_type(
    input: &ValueInfoProto,
    symbols: &mut Symbols<'_>,
) -> Result<TensorType, ImportError> {
    let name = input.name();
    let bad = |why: String| ImportError::InputType { input: name.to_string(), why };
    let tensor = match input.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => t,
        Some(TypeValue::Sequence(_)) => return Err(bad("is a sequence".into())),
        Some(TypeValue::Map(_)) => return Err(bad("is a map".into())),
        Some(TypeValue::Optional(_)) => return Err(bad("is an optional".into())),
        Some(TypeValue::SparseTensor(_)) => return Err(bad("is a sparse tensor".into())),
        Some(TypeValue::Opaque(_)) => return Err(bad("is of an opaque type".into())),
        None => return Err(bad("declares no type".into())),
    };
    let dtype = dtype(tensor.elem_type())
        .map_err(|name| bad(format!("has elements of type {name}, which planc does not read")))?;
    let shape = tensor.shape.as_ref().ok_or_else(|| bad("declares no shape".into()))?;
    let extents = shape.dim.iter().enumerate().map(|(i, dim)| symbols.extent(name, i, dim));
    Ok(TensorType::new(dtype, extents.collect::<Result<Vec<_>, _>>()?))
}

/// The element type that a declaration gives, if it gives one that planc knows.
pub(super) fn declared_dtype(ty: &TypeProto) -> Option<DType> {
    match ty.value.as_ref()? {
        TypeValue::Tensor(t) => dtype(t.elem_type?).ok(),
        _ => None,
    }
}

/// The extents that a declaration gives, if it gives all of them under these bindings. One of 0 counts
/// as not given: old converters write it for what they do not know.
pub(super) fn declared_shape(ty: &TypeProto, bindings: &BTreeMap<String, u64>) -> Option<Vec<u64>> {
    let dims = dims_of(ty)?.iter();
    dims.map(|d| dims::known(d, bindings).filter(|&n| n > 0)).collect()
}

/// The dimensions that a value is declared with, if it has any.
pub(super) fn declared_dims(info: &ValueInfoProto) -> Option<&[Dimension]> {
    dims_of(info.r#type.as_ref()?)
}

fn dims_of(ty: &TypeProto) -> Option<&[Dimension]> {
    match ty.value.as_ref()? {
        TypeValue::Tensor(t) => Some(&t.shape.as_ref()?.dim),
        _ => None,
    }
}
