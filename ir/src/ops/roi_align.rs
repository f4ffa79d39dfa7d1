//! Pooling over regions of an image that lie between pixels.
//!
//! - **ONNX**: RoiAlign (since 10; regions shift by half a pixel since 16 unless an attribute says
//!   no).
//! - **Semantics**: each region `(x1, y1, x2, y2)`, scaled, is divided into bins, each bin sampled
//!   at a grid of points between pixels; a bin's result is the mean of its points' bilinear
//!   interpolations, or the largest of all terms of them. Points outside the image are 0. Regions have
//!   no gradient.
//! - **Split**: `n c h w, r 4, r -> r c bh bw`. Regions and channels are parallel. Means are linear
//!   in the image.

use super::decode::{Decoder, DecoderEntry};
use super::lanes::{floats, index};
use super::roi_align_grad::RoiAlignGrad;
use super::{Build, OpDef, Vjp, Work, expect_inputs, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Pooling over regions. Inputs: `[N, C, H, W]`, regions `[R, 4]`, the sample of each `[R]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoiAlign {
    /// Bins along height and width.
    pub bins: [u64; 2],
    /// Points a bin in each direction; 0 for one a pixel that the bin covers.
    pub points: u64,
    /// Pixels a unit of the regions' coordinates.
    #[serde(with = "crate::number")]
    pub scale: f32,
    /// Whether coordinates shift by half a pixel.
    pub half_pixel: bool,
    /// The largest term rather than the mean.
    pub largest: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("RoiAlign", 10, |d| decode(d, "output_half_pixel")),
    DecoderEntry::onnx("RoiAlign", 16, |d| decode(d, "half_pixel")),
];

/// A region is sampled at this many points at most.
const MAX_POINTS: u64 = 1 << 24;

fn decode(d: &mut Decoder<'_>, place: &str) -> Result<Vec<ValueId>, OpError> {
    let bad = |name, why: String| OpError::BadAttribute { name, why };
    let number = |name, default| {
        let n = d.int_or(name, default)?;
        u64::try_from(n).map_err(|_| bad(name, format!("{n} is negative")))
    };
    let bins = [number("output_height", 1)?, number("output_width", 1)?];
    let points = number("sampling_ratio", 0)?;
    let name = "coordinate_transformation_mode";
    let half_pixel = match d.string_or(name, place)?.as_str() {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => return Err(bad(name, format!("{other:?} is not known"))),
    };
    let largest = match d.string_or("mode", "avg")?.as_str() {
        "avg" => false,
        "max" => true,
        other => return Err(bad("mode", format!("{other:?} is neither avg nor max"))),
    };
    let scale = d.float_or("spatial_scale", 1.0)?;
    let op = RoiAlign { bins, points, scale, half_pixel, largest };
    let inputs = [d.input(0)?, d.input(1)?, d.input(2)?];
    Ok(vec![d.push(op, &inputs)?])
}

/// A point along one direction: the pixels before and behind it, and how near the one behind is.
type Point = Option<(usize, usize, f64)>;

/// A region's sample, and its points along height and width, bin by bin.
pub(super) struct Region {
    pub sample: usize,
    pub rows: Vec<Vec<Point>>,
    pub columns: Vec<Vec<Point>>,
}

/// The pixels of a bin's points, as offsets in a plane of this width, and their weights; `None` outside, which
/// counts as 0.
pub(super) fn terms(
    ys: &[Point],
    xs: &[Point],
    width: usize,
) -> impl Iterator<Item = Option<(usize, f64)>> {
    let points = ys.iter().flat_map(move |y| xs.iter().map(move |x| (*y, *x)));
    points.flat_map(move |point| match point {
        (Some((top, bottom, dy)), Some((left, right, dx))) => [
            (top * width + left, (1.0 - dy) * (1.0 - dx)),
            (top * width + right, (1.0 - dy) * dx),
            (bottom * width + left, dy * (1.0 - dx)),
            (bottom * width + right, dy * dx),
        ]
        .map(Some),
        _ => [None; 4],
    })
}

impl RoiAlign {
    /// The points of each bin along one direction, from where a region begins and ends.
    fn along(&self, [start, end]: [f64; 2], bins: u64, n: u64) -> Result<Vec<Vec<Point>>, EvalError> {
        let scale = f64::from(self.scale);
        let shift = if self.half_pixel { 0.5 } else { 0.0 };
        let (start, end) = (start * scale - shift, end * scale - shift);
        // Regions without an extent are one pixel, as long as pixels are not shifted.
        let extent = if self.half_pixel { end - start } else { (end - start).max(1.0) };
        let bin = extent / bins as f64;
        let points = if self.points > 0 { self.points } else { bin.ceil().max(0.0) as u64 };
        if points.saturating_mul(bins) > MAX_POINTS {
            let iterations = points.saturating_mul(bins);
            return Err(EvalError::TooLong { iterations, limit: MAX_POINTS });
        }
        let point = |b: u64, i: u64| {
            let x = start + b as f64 * bin + (i as f64 + 0.5) * bin / points as f64;
            if !(-1.0..=n as f64).contains(&x) {
                return None;
            }
            let x = x.clamp(0.0, (n - 1) as f64);
            let low = x.floor();
            Some((low as usize, (low as usize + 1).min(n as usize - 1), x - low))
        };
        Ok((0..bins).map(|b| (0..points).map(|i| point(b, i)).collect()).collect())
    }

    /// The regions of an image of these extents.
    pub(super) fn regions(
        &self,
        regions: &Tensor,
        samples: &Tensor,
        [n, height, width]: [u64; 3],
    ) -> Result<Vec<Region>, EvalError> {
        let region = |r: usize| {
            let at = |i: usize| regions.f64_at(4 * r + i);
            let region = Region {
                sample: index(samples.int_at(r), n)?,
                columns: self.along([at(0), at(2)], self.bins[1], width)?,
                rows: self.along([at(1), at(3)], self.bins[0], height)?,
            };
            let points = |bins: &[Vec<Point>]| bins.iter().map(|b| b.len() as u64).sum::<u64>();
            let iterations = points(&region.rows).saturating_mul(points(&region.columns));
            if iterations > MAX_POINTS {
                return Err(EvalError::TooLong { iterations, limit: MAX_POINTS });
            }
            Ok(region)
        };
        (0..samples.len()).map(region).collect()
    }

    /// The result of one bin of one plane of the image.
    fn bin(&self, plane: &[f64], width: usize, ys: &[Point], xs: &[Point]) -> f64 {
        let term = |t: Option<(usize, f64)>| t.map_or(0.0, |(at, w)| w * plane[at]);
        if self.largest {
            terms(ys, xs, width).map(term).reduce(f64::max).unwrap_or(0.0)
        } else {
            let sum: f64 = terms(ys, xs, width).map(term).sum();
            sum / (ys.len() * xs.len()).max(1) as f64
        }
    }
}

impl OpDef for RoiAlign {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 3)?;
        let (x, regions, samples) = (&inputs[0], &inputs[1], &inputs[2]);
        let dtype = same_dtype(x, regions)?;
        for (index, (ty, rank)) in inputs.iter().zip([4, 2, 1]).enumerate() {
            if ty.rank() != rank {
                let expected = rank.to_string();
                return Err(OpError::Rank { index, found: ty.rank(), expected });
            }
        }
        if !dtype.is_float() || !samples.dtype.is_int() {
            let found = if dtype.is_float() { samples.dtype } else { dtype };
            return Err(OpError::UnsupportedType { found });
        }
        if regions.shape[1] != 4 || regions.shape[0] != samples.shape[0] {
            return Err(OpError::ShapeMismatch {
                lhs: regions.shape.clone(),
                rhs: samples.shape.clone(),
                why: "each region has four coordinates and one sample",
            });
        }
        if x.shape[2] == 0 || x.shape[3] == 0 || self.bins.contains(&0) {
            return Err(OpError::Invalid("has an empty image or no bins".into()));
        }
        let [height, width] = self.bins;
        Ok(vec![TensorType::new(dtype, [regions.shape[0], x.shape[1], height, width])])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let r = rule.factor("r", inputs[1].shape[0], FactorKind::Parallel);
        let c = rule.factor("c", inputs[0].shape[1], FactorKind::Parallel);
        rule.input([None, Some(c), None, None]);
        rule.input([Some(r), None]);
        rule.input([Some(r)]);
        rule.output([Some(r), Some(c), None, None]);
        if !self.largest {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let points = self.points.max(1) as f64;
        Work::memory(inputs, outputs, 8.0 * points * points)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, regions, samples) = (inputs[0], inputs[1], inputs[2]);
        let &[n, c, height, width] = x.shape() else {
            return Err(EvalError::Invalid("the image has four dimensions".into()));
        };
        let shape = [regions.shape()[0], c, self.bins[0], self.bins[1]];
        let len = Tensor::zeros(TensorType::new(x.dtype(), shape))?.len();
        let pixels = x.to_f64s();
        let area = elements(&[height, width]) as usize;
        let mut y = Vec::with_capacity(len);
        for region in self.regions(regions, samples, [n, height, width])? {
            for channel in 0..c as usize {
                let plane = &pixels[(region.sample * c as usize + channel) * area..][..area];
                for ys in &region.rows {
                    let bins = region.columns.iter();
                    y.extend(bins.map(|xs| self.bin(plane, width as usize, ys, xs)));
                }
            }
        }
        Ok(vec![floats(x.ty(), &shape, &y)?])
    }

    /// Regions are taken to be where they are: no gradient flows into them.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x) = (v.gradient()?, v.shape(v.inputs[0]));
        let mut inputs = vec![g, v.inputs[1], v.inputs[2]];
        if self.largest {
            inputs.push(v.inputs[0]);
        }
        let op = RoiAlignGrad { align: self.clone(), image: [x[0], x[2], x[3]] };
        let dx = v.wants(0).then(|| v.push(op, &inputs)).transpose()?;
        Ok(vec![dx, None, None])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
