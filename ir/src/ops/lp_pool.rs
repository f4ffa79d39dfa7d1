//! Pooling by p-norms, decoded into powers and sums.
//!
//! - **ONNX**: LpPool (since 2), GlobalLpPool (since 2).
//! - **Semantics**: `(Σ |x|^p)^(1/p)` over each window, or each plane. Windows are summed by a
//!   convolution of each channel with ones.

use super::conv::Conv;
use super::decode::{Decoder, DecoderEntry};
use super::fill::Fill;
use super::{Build, pool, window};
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::sharding::ReduceKind;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("LpPool", 2, windows),
    DecoderEntry::onnx("GlobalLpPool", 2, planes),
];

type Outputs = Result<Vec<ValueId>, OpError>;

/// The p-norms of what `sum` adds up.
fn norms(
    d: &mut Decoder<'_>,
    sum: impl FnOnce(&mut Decoder<'_>, ValueId) -> Result<ValueId, OpError>,
) -> Outputs {
    let x = d.input(0)?;
    let p = d.int_or("p", 2)?;
    if p < 1 {
        return Err(OpError::BadAttribute { name: "p", why: format!("{p} is not positive") });
    }
    let dtype = d.ty(x).dtype;
    let [power, root] = [d.scalar(dtype, p as f64)?, d.scalar(dtype, 1.0 / p as f64)?];
    let size = d.map(F::Abs, &[x])?;
    let powers = d.map(F::Pow, &[size, power])?;
    let sums = sum(d, powers)?;
    Ok(vec![d.map(F::Pow, &[sums, root])?])
}

fn windows(d: &mut Decoder<'_>) -> Outputs {
    let ty = d.ty(d.input(0)?);
    pool::check_rank(&ty)?;
    let spatial = &ty.shape[2..];
    let extents = pool::kernel_shape(d, spatial.len())?;
    let mut window = window::decode(d, spatial, &extents)?;
    if d.int_or("ceil_mode", 0)? != 0 {
        // As much padding as makes the last window whole.
        let out = window::output(spatial, &extents, &window, true)?;
        for i in 0..spatial.len() {
            let last = u128::from(out[i].saturating_sub(1)) * u128::from(window.strides[i]);
            let end = last + window::reach(extents[i], window.dilations[i]);
            let before = u128::from(spatial[i]) + u128::from(window.before[i]);
            let after = end.saturating_sub(before).max(u128::from(window.after[i]));
            window.after[i] = u64::try_from(after)
                .map_err(|_| OpError::Invalid("has a window that reaches too far".into()))?;
        }
    }
    let channels = ty.shape[1];
    let shape = [&[channels, 1], &extents[..]].concat();
    let ones = d.push(Fill { dtype: ty.dtype, shape, value: 1.0 }, &[])?;
    norms(d, |d, x| d.push(Conv { window, groups: channels }, &[x, ones]))
}

fn planes(d: &mut Decoder<'_>) -> Outputs {
    let ty = d.ty(d.input(0)?);
    if ty.rank() < 3 {
        return Err(OpError::Rank { index: 0, found: ty.rank(), expected: "3 or more".into() });
    }
    let axes: Vec<usize> = (2..ty.rank()).collect();
    norms(d, |d, x| d.reduce(ReduceKind::Sum, x, &axes))
}
