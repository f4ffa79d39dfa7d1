//! What the scattering ops share: how an update combines with what is there.

use super::decode::Decoder;
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

    /// # Errors
    /// Unless it is one whose gradient the scattering ops know.
    pub fn differentiable(self) -> Result<(), OpError> {
        if self.is_linear() {
            return Ok(());
        }
        let why = "only updates that replace or are added have a gradient".to_string();
        Err(OpError::NotDifferentiable { why })
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
