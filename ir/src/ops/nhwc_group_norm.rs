//! ONNX Runtime's group normalisation of images whose channels stand last.
//!
//! - **ONNX**: com.microsoft GroupNorm, SkipGroupNorm (channels last or second).
//! - **Semantics**: `(x - mean) / sqrt(variance + ε) · gamma + beta`, statistics over each group of
//!   channels and all positions of one sample; then SiLU if `activation` is 1. SkipGroupNorm adds a
//!   skip and a bias first, and gives the sum too.

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use super::heads;
use super::normalize::Normalize;
use crate::OpError;
use crate::graph::{ValueId, elements};
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::microsoft("GroupNorm", |d| {
        let x = d.input(0)?;
        Ok(vec![normalize(d, x)?])
    }),
    DecoderEntry::microsoft("SkipGroupNorm", |d| {
        let (mut sum, skip) = (d.input(0)?, d.input(3)?);
        let skip = match d.shape(skip)[..] {
            [n, c] => d.reshape(skip, [n, 1, 1, c])?,
            _ => skip,
        };
        for other in [Some(skip), d.optional(4)].into_iter().flatten() {
            sum = d.map(F::Add, &[sum, other])?;
        }
        Ok(vec![normalize(d, sum)?, sum])
    }),
];

fn normalize(d: &mut Decoder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let last = d.int_or("channels_last", 1)? != 0;
    let groups = heads::count(d, "groups")?;
    let x = if last { d.transpose(x, &[0, 3, 1, 2])? } else { x };
    let ty = d.ty(x);
    let [samples, channels, ..] = ty.shape[..] else {
        return Err(OpError::Rank { index: 0, found: ty.rank(), expected: "4".into() });
    };
    if ty.rank() != 4 || channels % groups != 0 {
        let why = format!("{groups} groups do not divide the channels of {ty}");
        return Err(OpError::BadAttribute { name: "groups", why });
    }
    let inner = (channels / groups).saturating_mul(elements(&ty.shape[2..]));
    let grouped = d.reshape(x, [samples, groups, inner])?;
    let norm = Normalize { axis: 2, epsilon: d.float_or("epsilon", 1e-5)?, rms: false };
    let one = d.scalar(ty.dtype, 1.0)?;
    let ones = d.expand(one, [inner])?;
    let normal = d.push(norm, &[grouped, ones])?;
    let mut y = d.reshape(normal, ty.shape)?;
    for (index, f) in [(1, F::Mul), (2, F::Add)] {
        let parameter = d.cast(d.input(index)?, ty.dtype)?;
        let parameter = d.reshape(parameter, [channels, 1, 1])?;
        y = d.map(f, &[y, parameter])?;
    }
    if d.int_or("activation", 0)? != 0 {
        let gate = d.map(F::Sigmoid, &[y])?;
        y = d.map(F::Mul, &[y, gate])?;
    }
    if last { d.transpose(y, &[0, 2, 3, 1]) } else { Ok(y) }
}
