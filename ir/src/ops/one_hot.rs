//! OneHot, decoded into a comparison and a choice.
//!
//! - **ONNX**: OneHot (since 9).
//! - **Semantics**: along a new dimension of extent `depth`, the element at the index is
//!   `values[1]`, the others are `values[0]`; an index out of range sets none. So it splits as
//!   elementwise ops do.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType};
use crate::graph::{TensorType, ValueId, resolve_axis};
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("OneHot", 9, decode).results(&[ResultType::ElementOf(2)])];

/// The largest depth: its range becomes a constant.
const MAX_DEPTH: u64 = 1 << 20;

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (indices, values) = (d.input(0)?, d.input(2)?);
    let bad = |why: String| OpError::BadAttribute { name: "depth", why };
    let depth = d.known(1, "it decides the output's shape")?;
    if depth.len() != 1 {
        return Err(bad("expected one number".into()));
    }
    let depth = u64::try_from(depth.int_at(0)).ok().filter(|&n| n <= MAX_DEPTH);
    let depth = depth.ok_or_else(|| bad(format!("expected 0 to {MAX_DEPTH}")))?;
    if d.shape(values) != [2] {
        return Err(OpError::Rank { index: 2, found: d.ty(values).rank(), expected: "1".into() });
    }
    let mut shape = d.shape(indices);
    let axis = resolve_axis(d.int_or("axis", -1)?, shape.len() + 1)?;
    // Negative indices count from the back.
    let indices = d.cast(indices, DType::I64)?;
    let (zero, n) = (d.scalar(DType::I64, 0.0)?, d.scalar(DType::I64, depth as f64)?);
    let negative = d.map(F::Less, &[indices, zero])?;
    let wrapped = d.map(F::Add, &[indices, n])?;
    let indices = d.map(F::Where, &[negative, wrapped, indices])?;
    shape.insert(axis, 1);
    let rank = shape.len();
    let indices = d.reshape(indices, shape)?;
    let mut along = vec![1; rank];
    along[axis] = depth;
    let range = Tensor::from_int(TensorType::new(DType::I64, along), |i| i as i128)
        .map_err(|e| OpError::Invalid(e.to_string()))?;
    let range = d.constant(range);
    let hot = d.map(F::Equal, &[indices, range])?;
    let [off, on] = [d.slice(values, 0, 0, 1)?, d.slice(values, 0, 1, 2)?];
    let [off, on] = [d.reshape(off, [])?, d.reshape(on, [])?];
    Ok(vec![d.map(F::Where, &[hot, on, off])?])
}
