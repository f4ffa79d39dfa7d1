//! Sequences that are held as one tensor.
//!
//! - **ONNX**: SplitToSequence, SequenceEmpty, SequenceConstruct, SequenceInsert, SequenceErase,
//!   SequenceAt, SequenceLength, ConcatFromSequence (since 11).
//!
//! Sequences exist only while a model is imported: the importer keeps the list of their tensors. One
//! that a loop grows by a tensor in each iteration becomes a scan output, that is, the tensors stacked
//! along a new first dimension, and ConcatFromSequence is decoded here on such a stack. Every other
//! operator is replaced by the importer before it gets here.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use crate::OpError;
use crate::graph::{ValueId, resolve_axis};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("SplitToSequence", 11, not_a_list),
    DecoderEntry::onnx("SequenceEmpty", 11, not_a_list),
    DecoderEntry::onnx("SequenceConstruct", 11, not_a_list),
    DecoderEntry::onnx("SequenceInsert", 11, not_a_list),
    DecoderEntry::onnx("SequenceErase", 11, not_a_list),
    DecoderEntry::onnx("SequenceAt", 11, not_a_list),
    DecoderEntry::onnx("SequenceLength", 11, not_a_list),
    DecoderEntry::onnx("ConcatFromSequence", 11, concat_stack),
];

fn not_a_list(_: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    Err(OpError::Unsupported("the tensors of the sequence are not known one by one".into()))
}

/// Concatenates the slices of a stack, or makes their number a dimension elsewhere.
fn concat_stack(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let stack = d.input(0)?;
    let shape = d.shape(stack);
    let Some((&count, slice)) = shape.split_first() else {
        return Err(OpError::Rank { index: 0, found: 0, expected: "1 or more".into() });
    };
    let new_axis = d.int_or("new_axis", 0)? != 0;
    let axis = d.int("axis")?.ok_or(OpError::MissingAttribute { name: "axis" })?;
    let axis = resolve_axis(axis, slice.len() + usize::from(new_axis))?;
    let mut perm: Vec<usize> = (1..shape.len()).collect();
    perm.insert(axis, 0);
    let moved = d.transpose(stack, &perm)?;
    if new_axis {
        return Ok(vec![moved]);
    }
    let mut joined = slice.to_vec();
    joined[axis] = joined[axis].saturating_mul(count);
    Ok(vec![d.reshape(moved, joined)?])
}
