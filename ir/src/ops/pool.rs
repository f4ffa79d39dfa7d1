//! Pooling over spatial windows.
//!
//! - **ONNX**: MaxPool (since 1; its indices are an [`ArgPool`]), AveragePool (since 1).
//! - **Semantics**: the largest element, or the mean, of the window's elements inside the input.
//!   With `AverageWithPadding` the padding counts as zeros, but what a rounded-up last window
//!   covers beyond the padding does not. The largest of no elements is the type's lowest value.
//! - **Split**: samples and channels are parallel, spatial dimensions stay whole. Means are linear.

use super::arg_pool::ArgPool;
use super::decode::{Decoder, DecoderEntry, ResultType};
use super::pool_grad::PoolGrad;
use super::reduce::neutral;
use super::{Build, OpDef, Vjp, Work, expect_inputs, window};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::{Kernel, PoolKind, Window};
use crate::scalar::ScalarFn;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::unravel;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A pooling of `[N, C, spatial..]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    /// How elements combine.
    pub kind: PoolKind,
    /// Extents of the window.
    pub extents: Vec<u64>,
    /// Strides, padding, dilation.
    pub window: Window,
    /// Whether a last window that is cut off counts.
    pub ceil: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("MaxPool", 1, |d| decode(d, PoolKind::Max)).results(&[ResultType::ElementOf(0), ResultType::Element(DType::I64)]),
    DecoderEntry::onnx("AveragePool", 1, |d| {
        let padding = d.int_or("count_include_pad", 0)? != 0;
        decode(d, if padding { PoolKind::AverageWithPadding } else { PoolKind::Average })
    }),
];

fn decode(d: &mut Decoder<'_>, kind: PoolKind) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    check_rank(&ty)?;
    let extents = kernel_shape(d, ty.rank() - 2)?;
    let window = window::decode(d, &ty.shape[2..], &extents)?;
    let ceil = d.int_or("ceil_mode", 0)? != 0;
    let pool = Pool { kind, extents, window, ceil };
    let values = d.push(pool.clone(), &[x])?;
    if d.outputs < 2 {
        return Ok(vec![values]);
    }
    let places = ArgPool { pool, column_major: d.int_or("storage_order", 0)? != 0 };
    let mut places = d.push(places, &[x])?;
    // Places are numbered within planes, ONNX's within the whole input.
    let (channels, area) = (ty.shape[1], elements(&ty.shape[2..]));
    for (axis, step) in [(0, channels.saturating_mul(area)), (1, area)] {
        let begins = d.count(ty.shape[axis], step, axis, ty.rank())?;
        places = d.map(ScalarFn::Add, &[places, begins])?;
    }
    Ok(vec![values, places])
}

/// The attribute `kernel_shape`.
pub fn kernel_shape(d: &Decoder<'_>, rank: usize) -> Result<Vec<u64>, OpError> {
    let extents = window::extents(d, "kernel_shape", rank)?;
    extents.ok_or(OpError::MissingAttribute { name: "kernel_shape" })
}

/// Checks that there are samples, channels, and not too many spatial dimensions.
pub fn check_rank(ty: &TensorType) -> Result<(), OpError> {
    if ty.rank() < 3 || ty.rank() > 2 + window::MAX_SPATIAL {
        return Err(OpError::Rank { index: 0, found: ty.rank(), expected: "3 to 5".into() });
    }
    Ok(())
}

impl Pool {
    /// The result's extents.
    pub(super) fn shape(&self, x: &[u64]) -> Result<Vec<u64>, OpError> {
        let spatial = window::output(&x[2..], &self.extents, &self.window, self.ceil)?;
        Ok([&x[..2], &spatial].concat())
    }

    /// Calls `f` for each element of a result of extents `to` with its index, the indices that its window
    /// covers in an input of extents `from`, and how many elements a mean divides by.
    pub(super) fn for_each_window(
        &self,
        from: &[u64],
        to: &[u64],
        mut f: impl FnMut(usize, &mut dyn Iterator<Item = usize>, f64),
    ) {
        let (spatial, out) = (&from[2..], &to[2..]);
        let (positions, area) = (elements(out) as usize, elements(spatial) as usize);
        let planes = elements(&from[..2]) as usize;
        for p in 0..if planes > 0 { positions } else { 0 } {
            let at = unravel(p, out);
            let taps = window::taps(&at, spatial, &self.extents, &self.window);
            let count = match self.kind {
                PoolKind::AverageWithPadding => {
                    window::covered(&at, spatial, &self.extents, &self.window)
                }
                PoolKind::Max | PoolKind::Average => taps.len() as f64,
            };
            for plane in 0..planes {
                let mut window = taps.iter().map(|&(_, i)| plane * area + i);
                f(plane * positions + p, &mut window, count);
            }
        }
    }

    /// The elements of a result of type `ty`, each of its window and of how many elements a mean divides
    /// by.
    pub(super) fn combine<T: Clone + Default>(
        &self,
        from: &[u64],
        ty: &TensorType,
        f: impl Fn(&mut dyn Iterator<Item = usize>, f64) -> T,
    ) -> Result<Vec<T>, EvalError> {
        let mut y = vec![T::default(); Tensor::zeros(ty.clone())?.len()];
        self.for_each_window(from, &ty.shape, |i, window, count| y[i] = f(window, count));
        Ok(y)
    }
}

impl OpDef for Pool {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let ty = &inputs[0];
        check_rank(ty)?;
        let ok = if self.kind == PoolKind::Max {
            ty.dtype != DType::Bool
        } else {
            ty.dtype.is_float()
        };
        if !ok {
            return Err(OpError::UnsupportedType { found: ty.dtype });
        }
        Ok(vec![TensorType::new(ty.dtype, self.shape(&ty.shape)?)])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let x = &inputs[0].shape;
        let mut rule = RuleBuilder::new();
        let n = rule.factor("n", x[0], FactorKind::Parallel);
        let c = rule.factor("c", x[1], FactorKind::Parallel);
        let dims = || {
            [Some(n), Some(c)].into_iter().chain(std::iter::repeat_n(None, x.len() - 2))
        };
        rule.input(dims());
        rule.output(dims());
        if self.kind != PoolKind::Max {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, elements(&self.extents) as f64)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let shape = self.shape(x.shape()).map_err(|e| EvalError::Invalid(e.to_string()))?;
        let ty = TensorType::new(x.dtype(), shape);
        let (lowest, lowest_int) = neutral(ReduceKind::Max, ty.dtype);
        Ok(vec![if ty.dtype.is_float() {
            let x = &x.to_f64s();
            let y = self.combine(inputs[0].shape(), &ty, |window, count| {
                let inside = window.map(|i| x[i]);
                if self.kind == PoolKind::Max {
                    inside.fold(lowest, |m, v| if v > m || v.is_nan() { v } else { m })
                } else {
                    inside.sum::<f64>() / count
                }
            })?;
            Tensor::from_f64(ty, |i| y[i])?
        } else {
            let y = self.combine(x.shape(), &ty, |window, _| {
                window.fold(lowest_int, |m, i| m.max(x.int_at(i)))
            })?;
            Tensor::from_int(ty, |i| y[i])?
        }])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (mut inputs, x) = (vec![v.gradient()?], v.inputs[0]);
        if self.kind == PoolKind::Max {
            inputs.push(x);
        }
        let spatial = v.shape(x)[2..].to_vec();
        Ok(vec![Some(v.push(PoolGrad { pool: self.clone(), spatial }, &inputs)?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Pool {
            kind: self.kind,
            extents: self.extents.clone(),
            window: self.window.clone(),
        }
    }
}
