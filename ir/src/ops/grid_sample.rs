//! Sampling an image at given places.
//!
//! - **ONNX**: GridSample (since 16; any number of spatial dimensions since 20).
//! - **Semantics**: each row of the grid is a place, last dimension first, from -1 to 1 across the
//!   image or in pixels; the result there is the nearest pixel, or interpolated linearly or
//!   cubically. Pixels outside are 0, repeat the border, or mirror the image.
//! - **Split**: `n c s.., n p.. k -> n c p..`. All but the image's spatial dimensions are parallel.
//!   Linear in the image.

use super::decode::{Decoder, DecoderEntry};
use super::grid_sample_grad::GridSampleGrad;
use super::grid_sample_grid_grad::GridSampleGridGrad;
use super::resize::Filter;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors, window};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, RuleBuilder};
use crate::tensor::{check_size, strides};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A sampling. Inputs: `[N, C, spatial..]`, `[N, places.., spatial dimensions]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridSample {
    /// How pixels combine.
    pub sampling: Sampling,
    /// What pixels outside are.
    pub outside: Outside,
    /// What places count.
    pub unit: Unit,
}

/// How pixels combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // ONNX's names
pub enum Sampling {
    Nearest,
    Linear,
    Cubic,
}

/// What pixels outside the image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outside {
    /// 0.
    Zero,
    /// The nearest pixel of the border.
    Border,
    /// The image, mirrored at its border as often as it takes.
    Mirror,
}

/// What places count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// From -1 to 1 between the outer edges of the first and last pixel.
    Edges,
    /// From -1 to 1 between the centres of the first and last pixel.
    Centres,
    /// Pixels, from the first one's centre.
    Pixels,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("GridSample", 16, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let bad = |name, found: &str| {
        let why = format!("{found:?} is not known");
        Err(OpError::BadAttribute { name, why })
    };
    let sampling = match d.string_or("mode", "linear")?.as_str() {
        "nearest" => Sampling::Nearest,
        "linear" | "bilinear" => Sampling::Linear,
        "cubic" | "bicubic" => Sampling::Cubic,
        other => return bad("mode", other),
    };
    let outside = match d.string_or("padding_mode", "zeros")?.as_str() {
        "zeros" => Outside::Zero,
        "border" => Outside::Border,
        "reflection" => Outside::Mirror,
        other => return bad("padding_mode", other),
    };
    let unit = if d.int_or("align_corners", 0)? != 0 { Unit::Centres } else { Unit::Edges };
    let inputs = [d.input(0)?, d.input(1)?];
    Ok(vec![d.push(GridSample { sampling, outside, unit }, &inputs)?])
}

impl GridSample {
    /// How many pixels of an image of so many spatial dimensions make one result.
    pub(super) fn pixels_of_place(&self, dimensions: usize) -> f64 {
        let taps: f64 = match self.sampling {
            Sampling::Nearest => 1.0,
            Sampling::Linear => 2.0,
            Sampling::Cubic => 4.0,
        };
        taps.powi(dimensions as i32)
    }

    /// The place in pixels, moved inside where that is what pixels outside mean, and how it changes with the
    /// grid's number. A cubic filter reads across the border instead.
    fn place(&self, x: f64, n: u64) -> (f64, f64) {
        let n = n as f64;
        let (x, unit) = match self.unit {
            Unit::Edges => (((x + 1.0) * n - 1.0) / 2.0, n / 2.0),
            Unit::Centres => (f64::midpoint(x, 1.0) * (n - 1.0), (n - 1.0) / 2.0),
            Unit::Pixels => (x, 1.0),
        };
        let x = if self.sampling == Sampling::Nearest { x.round_ties_even() } else { x };
        let (x, direction) = match self.outside {
            Outside::Zero => (x, 1.0),
            Outside::Border if self.sampling == Sampling::Cubic => (x, 1.0),
            Outside::Border => clamped(x, 0.0, n - 1.0),
            Outside::Mirror => self.mirror(x, n),
        };
        (x, unit * direction)
    }

    /// Reflects a place at the image's border until it lies inside; and which way it then moves.
    fn mirror(&self, x: f64, n: f64) -> (f64, f64) {
        let (low, high) =
            if self.unit == Unit::Edges { (-0.5, n - 0.5) } else { (0.0, n - 1.0) };
        let extent = high - low;
        let beyond = (low - x).max(x - high);
        if beyond.is_nan() || beyond <= 0.0 || extent <= 0.0 {
            return clamped(x, low, high);
        }
        let turns = (beyond / extent).trunc();
        let rest = beyond - turns * extent;
        let is_even = turns % 2.0 == 0.0;
        let x = if (x < low) == is_even { low + rest } else { high - rest };
        (x, if is_even { -1.0 } else { 1.0 })
    }

    /// The pixels along a dimension that a place is made of, their weights, and how these change with the grid's
    /// number.
    fn taps(&self, x: f64, n: u64) -> Vec<(usize, f64, f64)> {
        let (x, moves) = self.place(x, n);
        let (filter, around) = match self.sampling {
            Sampling::Nearest => {
                return self.pixel(x, n).map(|p| (p, 1.0, 0.0)).into_iter().collect();
            }
            Sampling::Linear => (Filter::Linear, 0..2),
            Sampling::Cubic => (Filter::Cubic { a: -0.75 }, -1..3),
        };
        let first = x.floor();
        around
            .filter_map(|k| {
                let p = first + f64::from(k);
                Some((self.pixel(p, n)?, filter.weight(p - x), moves * filter.slope(p - x)))
            })
            .collect()
    }

    /// The pixels of a plane that the grid's place `p` is made of, with their weights; or with how the weights change with
    /// the number of one of the plane's dimensions.
    pub(super) fn pixels(
        &self,
        grid: &Tensor,
        p: usize,
        spatial: &[u64],
        moved: Option<usize>,
    ) -> Vec<(usize, f64)> {
        let mut pixels = vec![(0, 1.0)];
        for (d, (&n, step)) in spatial.iter().zip(strides(spatial)).enumerate() {
            let along = self.taps(grid.f64_at(number_of(p, spatial.len(), d)), n);
            let combine = |&(at, w): &(usize, f64)| {
                let along = along.iter();
                let taps = along.map(move |&(i, weight, slope)| {
                    (at + i * step, w * if moved == Some(d) { slope } else { weight })
                });
                taps.collect::<Vec<_>>()
            };
            pixels = pixels.iter().flat_map(combine).collect();
        }
        pixels
    }

    /// The pixel that stands at a whole place, if it is not 0.
    fn pixel(&self, p: f64, n: u64) -> Option<usize> {
        let last = n as f64 - 1.0;
        let p = match self.outside {
            Outside::Zero => Some(p).filter(|p| (0.0..=last).contains(p))?,
            Outside::Border => p,
            Outside::Mirror => self.mirror(p, n as f64).0,
        };
        Some(p.max(0.0).min(last) as usize)
    }
}

/// Which number of a grid says where along dimension `d` of an image place `p` lies: the last dimension's comes first.
pub(super) const fn number_of(p: usize, dimensions: usize, d: usize) -> usize {
    p * dimensions + dimensions - 1 - d
}

/// A number moved into a range, and how it then changes.
fn clamped(x: f64, low: f64, high: f64) -> (f64, f64) {
    (x.max(low).min(high), if x >= low && x <= high { 1.0 } else { 0.0 })
}

impl OpDef for GridSample {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let (x, grid) = (&inputs[0], &inputs[1]);
        if x.rank() < 3 || x.rank() > 2 + window::MAX_SPATIAL {
            return Err(OpError::Rank { index: 0, found: x.rank(), expected: "3 to 5".into() });
        }
        if let Some(ty) = inputs.iter().find(|ty| !ty.dtype.is_float()) {
            return Err(OpError::UnsupportedType { found: ty.dtype });
        }
        let spatial = x.rank() - 2;
        let fits = grid.rank() == x.rank()
            && grid.shape[0] == x.shape[0]
            && grid.shape[grid.rank() - 1] == spatial as u64;
        if !fits || x.shape[2..].contains(&0) {
            return Err(OpError::ShapeMismatch {
                lhs: x.shape.clone(),
                rhs: grid.shape.clone(),
                why: "the grid has a place in an image that is not empty in each row",
            });
        }
        let shape = [&x.shape[..2], &grid.shape[1..grid.rank() - 1]].concat();
        Ok(vec![TensorType::new(x.dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let n = rule.factor("n", inputs[0].shape[0], FactorKind::Parallel);
        let c = rule.factor("c", inputs[0].shape[1], FactorKind::Parallel);
        let places =
            factors::named(&mut rule, &factors::INDEX_DIMS, &outputs[0].shape[2..], |_| false);
        let places = || places.iter().copied().map(Some);
        let image = std::iter::repeat_n(None, inputs[0].rank() - 2);
        rule.input([Some(n), Some(c)].into_iter().chain(image));
        rule.input(std::iter::once(Some(n)).chain(places()).chain([None]));
        rule.output([Some(n), Some(c)].into_iter().chain(places()));
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 2.0 * self.pixels_of_place(inputs[0].rank() - 2))
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, grid) = (inputs[0], inputs[1]);
        let types = self.infer(&[x.ty().clone(), grid.ty().clone()], &[]);
        let ty = types.map_err(|e| EvalError::Invalid(e.to_string()))?.remove(0);
        let mut y = vec![0.0; check_size(&ty)?];
        let (channels, spatial) = (ty.shape[1] as usize, &x.shape()[2..]);
        let area = elements(spatial) as usize;
        let places = elements(&ty.shape[2..]) as usize;
        for p in 0..if channels > 0 { ty.shape[0] as usize * places } else { 0 } {
            let pixels = self.pixels(grid, p, spatial, None);
            let (sample, place) = (p / places, p % places);
            for plane in sample * channels..(sample + 1) * channels {
                let terms = pixels.iter().map(|&(at, w)| w * x.f64_at(plane * area + at));
                y[plane * places + place] = terms.sum();
            }
        }
        Ok(vec![Tensor::from_f64(ty, |i| y[i])?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, [x, grid]) = (v.gradient()?, [v.inputs[0], v.inputs[1]]);
        let spatial = v.shape(x)[2..].to_vec();
        let of_image = GridSampleGrad { sample: self.clone(), spatial };
        let dx = v.wants(0).then(|| v.push(of_image, &[g, grid])).transpose()?;
        if self.sampling == Sampling::Nearest {
            return Ok(vec![dx, None]);
        }
        let of_grid = GridSampleGridGrad { sample: self.clone() };
        let dgrid = v.wants(1).then(|| v.push(of_grid, &[g, x, grid])).transpose()?;
        Ok(vec![dx, dgrid])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_outside_are_zero_or_moved_inside() {
        let x = Tensor::new([1, 1, 4], vec![1f32, 2.0, 3.0, 4.0]).unwrap();
        let sample = |outside, places: [f32; 5]| {
            let op = GridSample { sampling: Sampling::Linear, outside, unit: Unit::Pixels };
            let grid = Tensor::new([1, 5, 1], places.to_vec()).unwrap();
            op.eval(&[&x, &grid]).unwrap().remove(0).to_f64s()
        };
        let places = [0.25, -0.5, 3.5, 4.0, -7.0];
        assert_eq!(sample(Outside::Zero, places), [1.25, 0.5, 2.0, 0.0, 0.0]);
        assert_eq!(sample(Outside::Border, places), [1.25, 1.0, 4.0, 4.0, 1.0]);
        assert_eq!(sample(Outside::Mirror, places), [1.25, 1.5, 3.5, 3.0, 2.0]);
        let far = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN];
        assert_eq!(sample(Outside::Border, far)[1..], [4.0, 1.0, 4.0, 1.0]);
    }
}
