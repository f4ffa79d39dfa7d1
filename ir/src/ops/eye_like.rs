//! EyeLike: ones on a diagonal, decoded into a comparison of rows and columns.
//!
//! - **ONNX**: EyeLike (since 9).
//! - **Semantics**: of the input's extents, 1 where the column is the row plus `k`, 0 elsewhere.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType, element_type};
use super::range;
use crate::OpError;
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("EyeLike", 9, decode)
    .results(&[ResultType::Attribute("dtype", Some(0))])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let like = d.ty(d.input(0)?);
    let [rows, columns] = like.shape[..] else {
        return Err(OpError::Rank { index: 0, found: like.rank(), expected: "2".into() });
    };
    let dtype = match d.int("dtype")? {
        Some(number) => element_type(number)?,
        None => like.dtype,
    };
    // Beyond the extents, one diagonal is as empty as another.
    let most = i64::try_from(rows.max(columns)).unwrap_or(i64::MAX);
    let k = d.int_or("k", 0)?.clamp(-most, most);
    let (rows, columns) = (range::along(d, k, rows, 0, 2)?, range::along(d, 0, columns, 1, 2)?);
    let diagonal = d.map(F::Equal, &[rows, columns])?;
    Ok(vec![d.cast(diagonal, dtype)?])
}
