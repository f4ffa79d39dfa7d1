//! What the attention operators share: heads that are stored side by side in the last dimension.

use super::Build;
use super::decode::Decoder;
use crate::OpError;
use crate::graph::ValueId;

/// An attribute that counts heads, which must be there.
pub fn count(d: &Decoder<'_>, name: &'static str) -> Result<u64, OpError> {
    let heads = d.int(name)?.ok_or(OpError::MissingAttribute { name })?;
    u64::try_from(heads)
        .ok()
        .filter(|&h| h > 0)
        .ok_or_else(|| OpError::BadAttribute { name, why: format!("{heads} is not positive") })
}

/// `[batch, positions, heads · elements]` as `[batch, heads, positions, elements]`.
pub fn apart(d: &mut Decoder<'_>, x: ValueId, heads: u64) -> Result<ValueId, OpError> {
    let ty = d.ty(x);
    match ty.shape[..] {
        [batch, positions, width] if width % heads == 0 => {
            let x = d.reshape(x, [batch, positions, heads, width / heads])?;
            d.transpose(x, &[0, 2, 1, 3])
        }
        _ => Err(OpError::Invalid(format!(
            "has an operand {ty}, where three dimensions were expected, the last of {heads} heads"
        ))),
    }
}

/// The inverse of [`apart`].
pub fn joined(d: &mut Decoder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let x = d.transpose(x, &[0, 2, 1, 3])?;
    let [batch, positions, heads, elements] = d.shape(x)[..] else {
        return Err(OpError::Invalid(format!("has an operand {}, not of 4 dimensions", d.ty(x))));
    };
    d.reshape(x, [batch, positions, heads.saturating_mul(elements)])
}
