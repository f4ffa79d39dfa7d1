//! Resampling to other extents.
//!
//! - **ONNX**: Resize (since 10; `roi` and `sizes` are inputs and modes attributes since 11),
//!   decoded in [`resize_decode`](super::resize_decode) with Upsample (7 to 9).
//! - **Semantics**: each resized dimension in turn becomes `out[i] = Σ_p weight(p - x) · in[p]` with
//!   `x` the place of `i` in the input: the nearest element, or those within the reach of a linear
//!   or cubic filter, which antialiasing stretches where the dimension shrinks. Elements outside
//!   repeat the border, or do not count. A place outside may give a fixed value instead.
//! - **Split**: resized dimensions stay whole, the others are parallel. Linear.

use super::decode::DecoderEntry;
use super::lanes::{Lanes, floats};
use super::resize_grad::ResizeGrad;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::tensor::{check_size, strides, unravel};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A resampling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// The dimensions that change.
    pub axes: Vec<Axis>,
    /// How elements combine.
    pub filter: Filter,
    /// Where a result lies in the input.
    pub place: Place,
    /// Whether filters are stretched where a dimension shrinks.
    pub antialias: bool,
    /// Whether elements outside count nothing, rather than as the border repeated.
    pub exclude_outside: bool,
    /// What [`Place::Crop`] gives outside.
    #[serde(with = "crate::number")]
    pub outside: f32,
}

/// How one dimension changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// The dimension.
    pub axis: usize,
    /// Its extent afterwards.
    pub extent: u64,
    /// Results an element.
    #[serde(with = "crate::number")]
    pub scale: f64,
    /// What the extent would be if it need not be whole.
    #[serde(with = "crate::number")]
    pub length: f64,
    /// Where the part that [`Place::Crop`] shows begins, as a fraction.
    #[serde(with = "crate::number")]
    pub start: f64,
    /// Where it ends.
    #[serde(with = "crate::number")]
    pub end: f64,
}

/// How elements combine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// One element.
    Nearest(Rounding),
    /// The two next to the place.
    Linear,
    /// The four next to the place.
    Cubic {
        /// The filter's slope where it ends.
        #[serde(with = "crate::number")]
        a: f32,
    },
}

/// Which element is nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // ONNX's names
pub enum Rounding {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
    /// Up where the dimension shrinks, else down: what Upsample and the first Resize do.
    AwayFromScale,
}

/// Where result `i` lies in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Centres of elements lie at halves: `(i + ½) / scale - ½`.
    HalfPixel,
    /// The same around the centre of a result whose extent was rounded.
    HalfPixelSymmetric,
    /// The same, but a single result lies at the first element.
    PytorchHalfPixel,
    /// The same without the half taken off again.
    TfHalfPixel,
    /// First and last elements lie on first and last results.
    AlignCorners,
    /// `i / scale`.
    Asymmetric,
    /// First and last results lie on the ends of a part of the input.
    Crop,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl Filter {
    /// How far it reaches to either side, in elements.
    const fn reach(self) -> f64 {
        match self {
            Self::Nearest(_) => 0.0,
            Self::Linear => 1.0,
            Self::Cubic { .. } => 2.0,
        }
    }

    /// The weight of an element at this distance.
    pub(super) fn weight(self, distance: f64) -> f64 {
        let t = distance.abs();
        match self {
            Self::Nearest(_) => 1.0,
            Self::Linear => (1.0 - t).max(0.0),
            Self::Cubic { a } => {
                let a = f64::from(a);
                if t <= 1.0 {
                    ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0
                } else if t < 2.0 {
                    ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a
                } else {
                    0.0
                }
            }
        }
    }
}

impl Filter {
    /// How the weight of an element changes as the place moves on, from the element's distance from it.
    pub(super) fn slope(self, distance: f64) -> f64 {
        let (t, towards) = (distance.abs(), if distance > 0.0 { -1.0 } else { 1.0 });
        let falls = match self {
            Self::Linear if t <= 1.0 => -1.0,
            Self::Nearest(_) | Self::Linear => 0.0,
            Self::Cubic { a } => {
                let a = f64::from(a);
                if t <= 1.0 {
                    (3.0 * (a + 2.0) * t - 2.0 * (a + 3.0)) * t
                } else if t < 2.0 {
                    (3.0 * a * t - 10.0 * a) * t + 8.0 * a
                } else {
                    0.0
                }
            }
        };
        falls * towards
    }
}

impl Axis {
    /// Whether the extents fit the scale, as they do in whatever is decoded.
    fn check(&self, n: u64) -> Result<(), OpError> {
        let expected = self.scale * n as f64;
        let near = (expected - self.extent as f64).abs() <= 1.0 + 1e-6 * expected;
        // How far a stretched filter reaches is bounded by it.
        let reaches = self.extent == 0 || expected > 0.49;
        if self.scale > 0.0 && near && reaches && self.length.is_finite() {
            return Ok(());
        }
        let (axis, extent, scale) = (self.axis, self.extent, self.scale);
        Err(OpError::Invalid(format!("axis {axis}: {n} to {extent} by a factor of {scale}")))
    }

    /// Where result `i` lies in an input of extent `n`. In f32, as other runtimes do: where a place
    /// falls on the border between two elements, its rounding decides which is nearest.
    #[allow(clippy::float_cmp)] // a length of exactly 1 is the special case
    fn place(&self, place: Place, n: u64, i: usize) -> f64 {
        let (i, n, scale, length) = (i as f32, n as f32, self.scale as f32, self.length as f32);
        let (start, end) = (self.start as f32, self.end as f32);
        let half_pixel = (i + 0.5) / scale - 0.5;
        f64::from(match place {
            Place::HalfPixelSymmetric => {
                n / 2.0 * (1.0 - self.extent as f32 / length) + half_pixel
            }
            Place::PytorchHalfPixel if length == 1.0 => -0.5,
            Place::HalfPixel | Place::PytorchHalfPixel => half_pixel,
            Place::TfHalfPixel => (i + 0.5) / scale,
            Place::AlignCorners if length == 1.0 => 0.0,
            Place::AlignCorners => i * (n - 1.0) / (length - 1.0),
            Place::Asymmetric => i / scale,
            Place::Crop if length == 1.0 => (start + (end - start) / 2.0) * (n - 1.0),
            Place::Crop => {
                start * (n - 1.0) + i * (end - start) * (n - 1.0) / (length - 1.0)
            }
        })
    }
}

impl Resize {
    fn shape(&self, from: &[u64]) -> Vec<u64> {
        let mut shape = from.to_vec();
        for a in &self.axes {
            shape[a.axis] = a.extent;
        }
        shape
    }

    /// The elements of a lane that a result is made of, and their weights; `None` if the result is
    /// the value outside.
    pub(super) fn taps(&self, axis: &Axis, n: u64, i: usize) -> Option<Vec<(usize, f64)>> {
        let (x, last) = (axis.place(self.place, n, i), n as f64 - 1.0);
        if self.place == Place::Crop && !(0.0..=last).contains(&x) {
            return None;
        }
        let clamped = |p: f64| p.clamp(0.0, last) as usize;
        if let Filter::Nearest(rounding) = self.filter {
            let nearest = match rounding {
                Rounding::RoundPreferFloor => (x - 0.5).ceil(),
                Rounding::RoundPreferCeil => (x + 0.5).floor(),
                Rounding::Floor => x.floor(),
                Rounding::AwayFromScale if axis.scale >= 1.0 => x.floor(),
                Rounding::Ceil | Rounding::AwayFromScale => x.ceil(),
            };
            return Some(vec![(clamped(nearest), 1.0)]);
        }
        let stretch = if self.antialias { axis.scale.min(1.0) } else { 1.0 };
        let reach = self.filter.reach() / stretch;
        let (first, end) = ((x - reach).floor(), (x + reach).ceil());
        let around = (0..=(end - first) as usize).map(|k| first + k as f64);
        let taps: Vec<(usize, f64)> = around
            .filter(|p| !self.exclude_outside || (0.0..=last).contains(p))
            .map(|p| (clamped(p), self.filter.weight((p - x) * stretch)))
            .collect();
        let sum: f64 = taps.iter().map(|t| t.1).sum();
        Some(taps.into_iter().map(|(p, w)| (p, w / sum)).collect())
    }

    /// Resizes one dimension.
    fn resample(
        &self,
        axis: &Axis,
        x: &[f64],
        shape: &mut [u64],
    ) -> Result<Vec<f64>, EvalError> {
        let from = Lanes::new(shape, axis.axis);
        shape[axis.axis] = axis.extent;
        let to = Lanes::new(shape, axis.axis);
        let mut y = vec![0.0; check_size(&TensorType::new(DType::F64, &*shape))?];
        for i in 0..to.n {
            let taps = self.taps(axis, from.n as u64, i);
            for (start, out) in from.starts().zip(to.starts()) {
                y[to.at(out, i)] = match &taps {
                    None => f64::from(self.outside),
                    Some(taps) => taps.iter().map(|&(p, w)| w * x[from.at(start, p)]).sum(),
                };
            }
        }
        Ok(y)
    }

    /// The element that each result is, where it is one.
    fn nearest(&self, from: &[u64], to: &[u64]) -> Option<impl Fn(usize) -> usize + use<>> {
        if !matches!(self.filter, Filter::Nearest(_)) {
            return None;
        }
        let steps = strides(from);
        let mut offsets: Vec<Vec<usize>> = (to.iter().zip(&steps))
            .map(|(&n, step)| (0..n as usize).map(|i| i * step).collect())
            .collect();
        for a in &self.axes {
            for (i, offset) in offsets[a.axis].iter_mut().enumerate() {
                *offset = self.taps(a, from[a.axis], i)?.first()?.0 * steps[a.axis];
            }
        }
        let to = to.to_vec();
        Some(move |i| unravel(i, &to).iter().zip(&offsets).map(|(&c, o)| o[c]).sum())
    }
}

impl OpDef for Resize {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let ty = &inputs[0];
        if ty.dtype == DType::Bool && !matches!(self.filter, Filter::Nearest(_)) {
            return Err(OpError::UnsupportedType { found: ty.dtype });
        }
        for a in &self.axes {
            let n = *ty.shape.get(a.axis).ok_or(OpError::Axis {
                axis: a.axis as i64,
                rank: ty.rank(),
            })?;
            a.check(n)?;
        }
        Ok(vec![TensorType::new(ty.dtype, self.shape(&ty.shape))])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let axes: Vec<usize> = self.axes.iter().map(|a| a.axis).collect();
        let mut rule = factors::along(inputs, outputs, &axes);
        if inputs[0].dtype.is_float() && (self.place != Place::Crop || self.outside == 0.0) {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let taps = |a: &Axis| {
            let stretch = if self.antialias { a.scale.clamp(1e-9, 1.0) } else { 1.0 };
            (2.0 * self.filter.reach() / stretch).max(1.0)
        };
        Work::memory(inputs, outputs, self.axes.iter().map(|a| 2.0 * taps(a)).sum())
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let to = self.shape(x.shape());
        let ty = TensorType::new(x.dtype(), &to[..]);
        if check_size(&ty)? == 0 {
            return Ok(vec![Tensor::zeros(ty)?]);
        }
        if x.is_empty() {
            return Err(EvalError::Invalid("there is nothing to resize".into()));
        }
        if let Some(nearest) = self.nearest(x.shape(), &to) {
            return Ok(vec![x.select(to, nearest)?]);
        }
        let (mut y, mut shape) = (x.to_f64s(), x.shape().to_vec());
        // Shrinking first keeps what lies between small.
        let mut axes: Vec<&Axis> = self.axes.iter().collect();
        axes.sort_by(|a, b| a.scale.total_cmp(&b.scale));
        for a in axes {
            y = self.resample(a, &y, &mut shape)?;
        }
        debug_assert_eq!(elements(&shape), y.len() as u64);
        Ok(vec![floats(x.ty(), &shape, &y)?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x) = (v.gradient()?, v.shape(v.inputs[0]));
        let extents = self.axes.iter().map(|a| x[a.axis]).collect();
        Ok(vec![Some(v.push(ResizeGrad { resize: self.clone(), extents }, &[g])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
