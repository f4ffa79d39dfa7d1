//! TensorScatter: new keys and values written into a cache, decoded into a scatter.
//!
//! - **ONNX**: TensorScatter (since 24).
//! - **Semantics**: of sample `n`, position `i` of the update goes to position `write[n] + i` of the
//!   cache, modulo its length if the cache is circular.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType};
use super::range;
use super::scatter::Update;
use super::scatter_elements::ScatterElements;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{DType, OpError};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] =
    &[DecoderEntry::onnx("TensorScatter", 24, decode).results(&[ResultType::SameAs(0)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (cache, update) = (d.input(0)?, d.input(1)?);
    let (into, from) = (d.ty(cache), d.ty(update));
    let axis = into.axis(d.int_or("axis", -2)?)?;
    if axis == 0 {
        return Err(OpError::Axis { axis: 0, rank: into.rank() });
    }
    if from.rank() != into.rank() || from.shape[axis] > into.shape[axis] {
        let why = "the update has the cache's extents, and no more positions";
        return Err(OpError::ShapeMismatch { lhs: into.shape, rhs: from.shape, why });
    }
    let mut positions = range::along(d, 0, from.shape[axis], axis, into.rank())?;
    if let Some(write) = d.optional(2) {
        let mut samples = vec![1; into.rank()];
        samples[0] = into.shape[0];
        let write = d.cast(write, DType::I64)?;
        let write = d.reshape(write, samples)?;
        positions = d.map(F::Add, &[positions, write])?;
    }
    match d.string_or("mode", "linear")?.as_str() {
        "linear" => {}
        "circular" => {
            let length = d.scalar(DType::I64, into.shape[axis] as f64)?;
            positions = d.map(F::Mod, &[positions, length])?;
        }
        other => {
            return Err(OpError::BadAttribute {
                name: "mode",
                why: format!("expected linear or circular, found {other:?}"),
            });
        }
    }
    let positions = d.expand(positions, from.shape)?;
    let scatter = ScatterElements { axis, update: Update::Set };
    Ok(vec![d.push(scatter, &[cache, positions, update])?])
}
