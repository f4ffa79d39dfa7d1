//! What the scattering ops share: how an update combines with what is there.

use super::decode::Decoder;
use super::{Build, Vjp};
use crate::graph::ValueId;
use crate::scalar::ScalarFn;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// How an update combines with the element that it falls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Update {
    /// Replaces it; of several the last.
    Set,
    /// Is added.
    Add,
    /// Is multiplied.
    Mul,
    /// The larger stays.
    Max,
    /// The smaller stays.
    Min,
}

impl Update {
    /// Reads the attribute `reduction`.
    pub fn decode(d: &Decoder<'_>) -> Result<Self, OpError> {
        Ok(match d.string_or("reduction", "none")?.as_str() {
            "none" => Self::Set,
            "add" => Self::Add,
            "mul" => Self::Mul,
            "max" => Self::Max,
            "min" => Self::Min,
            other => {
                let why = format!("{other:?} is none of none, add, mul, max, min");
                return Err(OpError::BadAttribute { name: "reduction", why });
            }
        })
    }

    /// Whether sums of data and sums of updates give the sum of results.
    pub const fn is_linear(self) -> bool {
        matches!(self, Self::Set | Self::Add)
    }

    /// The gradients of data and updates where updates are multiplied, or the largest or smallest stays.
    /// `write` combines updates with data at the op's indices, `read` reads there.
    ///
    /// # Errors
    /// None that are known, of an op that was inferred.
    pub fn combined(
        self,
        v: &mut Vjp<'_>,
        read: impl Fn(&mut Vjp<'_>, ValueId) -> Result<ValueId, OpError>,
        write: impl Fn(&mut Vjp<'_>, Self, [ValueId; 2]) -> Result<ValueId, OpError>,
    ) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, operands) = (v.gradient()?, [v.inputs[0], v.inputs[2]]);
        let dtype = v.ty(g).dtype;
        // What elements at one place have in common, and what each of data and updates has of its own.
        let (shared, first, second) = if self == Self::Mul {
            let [zero, one] = [v.scalar(dtype, 0.0)?, v.scalar(dtype, 1.0)?];
            let (mut factors, mut zeros) = (operands, operands);
            for (i, x) in operands.into_iter().enumerate() {
                let is_zero = v.map(ScalarFn::Equal, &[x, zero])?;
                factors[i] = v.map(ScalarFn::Where, &[is_zero, one, x])?;
                zeros[i] = v.cast(is_zero, dtype)?;
            }
            let product = write(v, Self::Mul, factors)?;
            let count = write(v, Self::Add, zeros)?;
            ([v.map(ScalarFn::Mul, &[g, product])?, count], factors, zeros)
        } else {
            let result = v.outputs[0];
            let mut chosen = operands;
            for (x, result) in chosen.iter_mut().zip([result, read(v, result)?]) {
                let equal = v.map(ScalarFn::Equal, &[*x, result])?;
                *x = v.cast(equal, dtype)?;
            }
            let count = write(v, Self::Add, chosen)?;
            ([v.map(ScalarFn::Div, &[g, count])?, count], chosen, chosen)
        };
        let mut gradients = vec![None; 3];
        if v.wants(0) {
            gradients[0] = Some(self.part(v, shared, [first[0], second[0]])?);
        }
        if v.wants(2) {
            let shared = [read(v, shared[0])?, read(v, shared[1])?];
            gradients[2] = Some(self.part(v, shared, [first[1], second[1]])?);
        }
        Ok(gradients)
    }

    /// An element's part of the gradient at its place: of a product, that of all that are not 0, over the element
    /// itself, if no other is 0; of equal extrema, the same share each.
    fn part(
        self,
        v: &mut Vjp<'_>,
        [share, count]: [ValueId; 2],
        [first, second]: [ValueId; 2],
    ) -> Result<ValueId, OpError> {
        if self != Self::Mul {
            return v.map(ScalarFn::Mul, &[share, first]);
        }
        let no_other = v.map(ScalarFn::Equal, &[count, second])?;
        let others = v.map(ScalarFn::Div, &[share, first])?;
        v.masked(no_other, others)
    }

    /// Applies update `from` to element `to` for each pair in order.
    pub fn apply(
        self,
        data: &Tensor,
        updates: &Tensor,
        pairs: impl Iterator<Item = (usize, usize)>,
    ) -> Result<Tensor, EvalError> {
        let f = match self {
            Self::Set => {
                // Exact in any type: only moves elements.
                let mut source: Vec<(usize, usize)> = (0..data.len()).map(|i| (0, i)).collect();
                for (to, from) in pairs {
                    source[to] = (1, from);
                }
                return super::lanes::pick(&[data, updates], data.shape(), |i| source[i]);
            }
            Self::Add => ScalarFn::Add,
            Self::Mul => ScalarFn::Mul,
            Self::Max => ScalarFn::Max,
            Self::Min => ScalarFn::Min,
        };
        let ty = data.ty().clone();
        if ty.dtype.is_float() {
            let mut out = data.to_f64s();
            for (to, from) in pairs {
                out[to] = f.apply(&[out[to], updates.f64_at(from)]);
            }
            return Tensor::from_f64(ty, |i| out[i]);
        }
        let mut out: Vec<i128> = (0..data.len()).map(|i| data.int_at(i)).collect();
        for (to, from) in pairs {
            out[to] = f.apply_int(&[out[to], updates.int_at(from)])?;
        }
        Tensor::from_int(ty, |i| out[i])
    }
}
