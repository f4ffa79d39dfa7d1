//! Helpers of the reference evaluations: lanes along a dimension, checked indices, and picking
//! elements.

use crate::graph::{TensorType, elements};
use crate::tensor::MAX_TENSOR_BYTES;
use crate::{EvalError, Tensor, with_element};

/// A shape seen as `[outer, n, inner]` around one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// Product of the extents before the dimension.
    pub outer: usize,
    /// The dimension's extent.
    pub n: usize,
    /// Product of the extents after it.
    pub inner: usize,
}

impl Lanes {
    /// The lanes of a shape along a dimension.
    pub fn new(shape: &[u64], axis: usize) -> Self {
        Self {
            outer: elements(&shape[..axis]) as usize,
            n: shape[axis] as usize,
            inner: elements(&shape[axis + 1..]) as usize,
        }
    }

    /// The row-major index of the first element of each lane.
    pub fn starts(self) -> impl Iterator<Item = usize> {
        (0..self.outer).flat_map(move |o| (0..self.inner).map(move |i| o * self.n * self.inner + i))
    }

    /// The row-major index of element `k` of the lane that starts at `start`.
    pub const fn at(self, start: usize, k: usize) -> usize {
        start + k * self.inner
    }
}

/// An index into an axis; negative ones count from the back.
pub fn index(i: i128, extent: u64) -> Result<usize, EvalError> {
    let n = i128::from(extent);
    let wrapped = if i < 0 { i + n } else { i };
    if (0..n).contains(&wrapped) {
        Ok(wrapped as usize)
    } else {
        let index = i.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        Err(EvalError::Index { index, extent })
    }
}

/// A tensor whose element `i` is element `at(i).1` of source `at(i).0`. All sources have one type.
pub fn pick(
    sources: &[&Tensor],
    shape: &[u64],
    mut at: impl FnMut(usize) -> (usize, usize),
) -> Result<Tensor, EvalError> {
    let out_of_range = || EvalError::Invalid("index out of range".into());
    let dtype = sources.first().ok_or_else(out_of_range)?.dtype();
    let ty = TensorType::new(dtype, shape);
    if ty.bytes() > MAX_TENSOR_BYTES {
        return Err(EvalError::TooLarge { bytes: ty.bytes(), limit_bytes: MAX_TENSOR_BYTES });
    }
    with_element!(dtype, T => {
        let data: Vec<&[T]> = sources
            .iter()
            .map(|t| t.slice::<T>().ok_or(EvalError::Type(t.dtype())))
            .collect::<Result<_, _>>()?;
        let picked: Option<Vec<T>> = (0..ty.elements() as usize)
            .map(|i| {
                let (source, index) = at(i);
                data.get(source)?.get(index).copied()
            })
            .collect();
        Tensor::new(ty.shape, picked.ok_or_else(out_of_range)?)
    })
}

/// A float tensor of these elements, rounded to the element type.
pub fn floats(like: &TensorType, shape: &[u64], values: &[f64]) -> Result<Tensor, EvalError> {
    Tensor::from_f64(TensorType::new(like.dtype, shape), |i| values[i])
}
