//! Putting pooled elements back where they came from, decoded into a scatter.
//!
//! - **ONNX**: MaxUnpool (since 9).
//! - **Semantics**: each element goes to its index in a tensor of zeros with the extents that the
//!   pooling took; a larger tensor that is asked for has zeros behind them.

use super::decode::{Decoder, DecoderEntry};
use super::fill::Fill;
use super::pad::Pad;
use super::scatter::Update;
use super::scatter_elements::ScatterElements;
use super::{Build, pool, window};
use crate::OpError;
use crate::graph::{ValueId, elements};
use crate::program::kernel::PadMode;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("MaxUnpool", 9, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (x, indices) = (d.input(0)?, d.input(1)?);
    let ty = d.ty(x);
    pool::check_rank(&ty)?;
    let spatial = &ty.shape[2..];
    let extents = pool::kernel_shape(d, spatial.len())?;
    let window = window::explicit(d, spatial.len())?;
    let none = vec![0; spatial.len()];
    let from = window::transposed_output(spatial, &extents, &window, &none)?;
    let shape = [&ty.shape[..2], &from].concat();
    let (n, count) = (elements(&shape), ty.elements());
    let zeros = d.push(Fill { dtype: ty.dtype, shape: vec![n], value: 0.0 }, &[])?;
    let (flat, at) = (d.reshape(x, [count])?, d.reshape(indices, [count])?);
    let scatter = ScatterElements { axis: 0, update: Update::Set };
    let scattered = d.push(scatter, &[zeros, at, flat])?;
    let result = d.reshape(scattered, shape.clone())?;

    let Some(asked) = d.optional_ints(2, "it is the output's shape")? else {
        return Ok(vec![result]);
    };
    let behind = |(&asked, &n): (&i64, &u64)| {
        i64::try_from(n).ok().and_then(|n| asked.checked_sub(n)).filter(|&more| more >= 0)
    };
    let after: Option<Vec<i64>> = asked.iter().zip(&shape).map(behind).collect();
    let after = after.filter(|after| asked.len() == shape.len() && after.len() == shape.len());
    let after = after.ok_or_else(|| {
        OpError::Invalid(format!("`output_shape` is {asked:?}, but {shape:?} is unpooled"))
    })?;
    if after.iter().all(|&n| n == 0) {
        return Ok(vec![result]);
    }
    let pad = Pad { before: vec![0; shape.len()], after, mode: PadMode::Constant, value: 0.0 };
    Ok(vec![d.push(pad, &[result])?])
}
