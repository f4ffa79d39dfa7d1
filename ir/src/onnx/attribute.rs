//! Attributes of nodes.

use super::tensor;
use super::wire::{AttributeProto, AttributeType};
use crate::ops::decode::Attribute;
use std::sync::Arc;

/// Why an attribute is not read.
#[derive(Debug)]
pub(super) enum AttributeError {
    /// It contradicts the format.
    Invalid(String),
    /// Its type is not supported.
    Unsupported(AttributeType),
}

/// The type of an attribute. Files of IR version 1 and 2 leave it out; then the field that is
/// filled says it.
pub(super) fn kind(a: &AttributeProto) -> Result<AttributeType, AttributeError> {
    use AttributeType as T;
    if a.r#type.is_some_and(|t| AttributeType::try_from(t).is_err()) {
        return Err(AttributeError::Invalid(format!(
            "is of unknown type {}",
            a.r#type.unwrap_or(0)
        )));
    }
    Ok(match a.r#type() {
        T::Undefined => match () {
            () if a.f.is_some() => T::Float,
            () if a.i.is_some() => T::Int,
            () if a.s.is_some() => T::String,
            () if a.t.is_some() => T::Tensor,
            () if a.g.is_some() => T::Graph,
            () if !a.floats.is_empty() => T::Floats,
            () if !a.strings.is_empty() => T::Strings,
            () if !a.tensors.is_empty() => T::Tensors,
            () if !a.graphs.is_empty() => T::Graphs,
            // An empty list; of what does not matter.
            () => T::Ints,
        },
        given => given,
    })
}

/// Reads an attribute that is no graph.
pub(super) fn read(a: &AttributeProto) -> Result<Attribute, AttributeError> {
    use AttributeType as T;
    if !a.ref_attr_name().is_empty() {
        let why = format!("refers to `{}` outside of a function", a.ref_attr_name());
        return Err(AttributeError::Invalid(why));
    }
    let text = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec())
            .map_err(|_| AttributeError::Invalid("is not valid UTF-8".into()))
    };
    Ok(match kind(a)? {
        T::Float => Attribute::Float(a.f()),
        T::Int => Attribute::Int(a.i()),
        T::String => Attribute::String(text(a.s())?),
        T::Floats => Attribute::Floats(a.floats.clone()),
        T::Ints => Attribute::Ints(a.ints.clone()),
        T::Strings => {
            Attribute::Strings(a.strings.iter().map(|s| text(s)).collect::<Result<_, _>>()?)
        }
        T::Tensor => {
            let proto =
                a.t.as_deref().ok_or_else(|| AttributeError::Invalid("has no tensor".into()))?;
            let tensor = tensor::in_memory(proto)
                .map_err(|e| AttributeError::Invalid(format!("tensor {e}")))?;
            Attribute::Tensor(Arc::new(tensor))
        }
        other => return Err(AttributeError::Unsupported(other)),
    })
}
