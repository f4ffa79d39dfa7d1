//! Resize and Upsample, decoded into [`Resize`].
//!
//! - **ONNX**: Resize (since 10), Upsample (7 to 9; scales are an attribute before 9).

use super::Build;
use super::decode::{Decoder, DecoderEntry};
use super::resize::{Axis, Filter, Place, Resize, Rounding};
use crate::OpError;
use crate::graph::ValueId;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Upsample", 7, first),
    DecoderEntry::onnx("Resize", 10, first),
    DecoderEntry::onnx("Resize", 11, resize),
];

type Outputs = Result<Vec<ValueId>, OpError>;

const WHY: &str = "it decides the output's shape";

/// Upsample, and Resize as it was at first: one way to place results, and no sizes.
fn first(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let shape = d.shape(x);
    let scales = match d.floats("scales")? {
        Some(scales) => scales.into_iter().map(f64::from).collect(),
        None => d.known(1, WHY)?.to_f64s(),
    };
    let filter = match d.string_or("mode", "nearest")?.as_str() {
        "nearest" => Filter::Nearest(Rounding::AwayFromScale),
        "linear" | "bilinear" => Filter::Linear,
        other => return Err(bad("mode", format!("{other:?} is none of nearest, linear"))),
    };
    let all: Vec<usize> = (0..shape.len()).collect();
    let axes = scaled(&shape, &all, &scales)?;
    push(d, Resize {
        axes,
        filter,
        place: Place::Asymmetric,
        antialias: false,
        exclude_outside: false,
        outside: 0.0,
    })
}

fn resize(d: &mut Decoder<'_>) -> Outputs {
    let ty = d.ty(d.input(0)?);
    let axes = match d.ints("axes")? {
        Some(axes) => {
            super::reshape::distinct_axes(&axes, ty.rank())?;
            axes.iter().map(|&a| ty.axis(a)).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..ty.rank()).collect(),
    };
    let place = place(d)?;
    // Either of the two may be there and empty.
    let mut scales = Vec::new();
    if d.optional(2).is_some() {
        scales = d.known(2, WHY)?.to_f64s();
    }
    let mut axes = if scales.is_empty() && d.optional(3).is_some() {
        sized(d, &ty.shape, &axes)?
    } else {
        scaled(&ty.shape, &axes, &scales)?
    };
    if place == Place::Crop {
        let roi = d.known(1, "it decides which part is shown")?.to_f64s();
        if roi.len() != 2 * axes.len() || roi.iter().any(|x| !x.is_finite()) {
            return Err(OpError::Invalid(format!("`roi` is {roi:?} for {} axes", axes.len())));
        }
        let (starts, ends) = roi.split_at(axes.len());
        for (axis, (start, end)) in axes.iter_mut().zip(starts.iter().zip(ends)) {
            (axis.start, axis.end) = (*start, *end);
        }
    }
    let op = Resize {
        axes,
        filter: filter(d)?,
        place,
        antialias: d.int_or("antialias", 0)? != 0,
        exclude_outside: d.int_or("exclude_outside", 0)? != 0,
        outside: d.float_or("extrapolation_value", 0.0)?,
    };
    push(d, op)
}

/// Appends the op, without the dimensions that stay as they are.
#[allow(clippy::float_cmp)] // exactly the same is what stays
fn push(d: &mut Decoder<'_>, mut op: Resize) -> Outputs {
    let x = d.input(0)?;
    let shape = d.shape(x);
    op.axes.retain(|a| {
        let whole = op.place != Place::Crop || (a.start == 0.0 && a.end == 1.0);
        let shifted = op.place == Place::TfHalfPixel;
        !(a.scale == 1.0 && a.extent == shape[a.axis] && whole && !shifted)
    });
    if op.axes.is_empty() { Ok(vec![x]) } else { Ok(vec![d.push(op, &[x])?]) }
}

fn bad(name: &'static str, why: String) -> OpError {
    OpError::BadAttribute { name, why }
}

fn filter(d: &Decoder<'_>) -> Result<Filter, OpError> {
    Ok(match d.string_or("mode", "nearest")?.as_str() {
        "nearest" => Filter::Nearest(rounding(d)?),
        "linear" => Filter::Linear,
        "cubic" => Filter::Cubic { a: d.float_or("cubic_coeff_a", -0.75)? },
        other => return Err(bad("mode", format!("{other:?} is none of nearest, linear, cubic"))),
    })
}

fn rounding(d: &Decoder<'_>) -> Result<Rounding, OpError> {
    Ok(match d.string_or("nearest_mode", "round_prefer_floor")?.as_str() {
        "round_prefer_floor" => Rounding::RoundPreferFloor,
        "round_prefer_ceil" => Rounding::RoundPreferCeil,
        "floor" => Rounding::Floor,
        "ceil" => Rounding::Ceil,
        other => return Err(bad("nearest_mode", format!("{other:?} is not known"))),
    })
}

fn place(d: &Decoder<'_>) -> Result<Place, OpError> {
    let name = "coordinate_transformation_mode";
    Ok(match d.string_or(name, "half_pixel")?.as_str() {
        "half_pixel" => Place::HalfPixel,
        "half_pixel_symmetric" => Place::HalfPixelSymmetric,
        "pytorch_half_pixel" => Place::PytorchHalfPixel,
        "tf_half_pixel_for_nn" => Place::TfHalfPixel,
        "align_corners" => Place::AlignCorners,
        "asymmetric" => Place::Asymmetric,
        "tf_crop_and_resize" => Place::Crop,
        other => return Err(bad(name, format!("{other:?} is not known"))),
    })
}

/// Dimensions multiplied by factors. The factors are f32, and so is the product whose whole part
/// the extent is.
fn scaled(shape: &[u64], axes: &[usize], scales: &[f64]) -> Result<Vec<Axis>, OpError> {
    if scales.len() != axes.len() {
        return Err(bad("scales", format!("{} factors for {} axes", scales.len(), axes.len())));
    }
    let one = |(&axis, &scale): (&usize, &f64)| {
        let n = shape[axis];
        let extent = (n as f32 * scale as f32).floor();
        if !scale.is_finite() || scale <= 0.0 || f64::from(extent) > i64::MAX as f64 {
            return Err(bad("scales", format!("a factor of {scale} for an extent of {n}")));
        }
        let length = scale * n as f64;
        Ok(Axis { axis, extent: extent as u64, scale, length, start: 0.0, end: 1.0 })
    };
    axes.iter().zip(scales).map(one).collect()
}

/// Dimensions brought to sizes, or as near as the policy for their ratio lets them.
fn sized(d: &Decoder<'_>, shape: &[u64], axes: &[usize]) -> Result<Vec<Axis>, OpError> {
    let sizes = d.known_ints(3, WHY)?;
    let wrong = || bad("sizes", format!("{sizes:?} for extents {shape:?}"));
    if sizes.len() != axes.len() {
        return Err(wrong());
    }
    let mut resized = Vec::with_capacity(axes.len());
    for (&axis, &size) in axes.iter().zip(&sizes) {
        let (n, extent) = (shape[axis], u64::try_from(size).map_err(|_| wrong())?);
        if n == 0 || extent == 0 {
            return Err(wrong());
        }
        let (scale, length) = (extent as f64 / n as f64, extent as f64);
        resized.push(Axis { axis, extent, scale, length, start: 0.0, end: 1.0 });
    }
    let scales = resized.iter().map(|a| a.scale);
    let common = match d.string_or("keep_aspect_ratio_policy", "stretch")?.as_str() {
        "stretch" => return Ok(resized),
        "not_larger" => scales.reduce(f64::min),
        "not_smaller" => scales.reduce(f64::max),
        other => {
            return Err(bad("keep_aspect_ratio_policy", format!("{other:?} is not known")));
        }
    };
    for a in &mut resized {
        a.scale = common.unwrap_or(1.0);
        a.length = a.scale * shape[a.axis] as f64;
        a.extent = (a.length + 0.5) as u64;
    }
    Ok(resized)
}
