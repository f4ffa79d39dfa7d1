//! Windows, mel weights and short-time transforms, decoded into constants and ops.
//!
//! - **ONNX**: HannWindow, HammingWindow, BlackmanWindow, MelWeightMatrix, STFT (since 17).
//! - **Semantics**: windows and weights follow from known numbers. A short-time transform is one of
//!   overlapping frames times a window.

use super::Build;
use super::decode::{Decoder, DecoderEntry, MAX_FOLDED_BYTES, ResultType, element_type};
use super::dft::Dft;
use super::frames::Frames;
use crate::graph::{TensorType, ValueId};
use crate::scalar::ScalarFn as F;
use crate::{OpError, Tensor};
use std::f64::consts::{LN_10, TAU};

const NAMED: &[ResultType] = &[ResultType::Attribute("output_datatype", None)];

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("HannWindow", 17, |d| window(d, &[0.5, -0.5])).results(NAMED),
    DecoderEntry::onnx("HammingWindow", 17, |d| {
        window(d, &[25.0 / 46.0, -21.0 / 46.0])
    })
    .results(NAMED),
    DecoderEntry::onnx("BlackmanWindow", 17, |d| window(d, &[0.42, -0.5, 0.08])).results(NAMED),
    DecoderEntry::onnx("MelWeightMatrix", 17, mel_weights).results(NAMED),
    DecoderEntry::onnx("STFT", 17, short_time),
];

type Outputs = Result<Vec<ValueId>, OpError>;

/// Known numbers as a constant of the type that `output_datatype` names.
fn constant(
    d: &mut Decoder<'_>,
    shape: &[u64],
    at: impl FnMut(usize) -> f64,
) -> Outputs {
    let ty = TensorType::new(element_type(d.int_or("output_datatype", 1)?)?, shape);
    if ty.bytes() > MAX_FOLDED_BYTES {
        return Err(OpError::Unsupported(format!("a table of {} bytes", ty.bytes())));
    }
    let tensor = Tensor::from_f64(ty, at).map_err(|e| OpError::Invalid(e.to_string()))?;
    Ok(vec![d.constant(tensor)])
}

/// One known number.
fn number(d: &Decoder<'_>, index: usize) -> Result<f64, OpError> {
    let t = d.known(index, "the result is made of it")?;
    if t.len() == 1 { Ok(t.f64_at(0)) } else { Err(OpError::Invalid("takes single numbers".into())) }
}

/// One known number that counts something.
fn count(d: &Decoder<'_>, index: usize) -> Result<u64, OpError> {
    let x = number(d, index)?;
    let counts = x >= 0.0 && x <= f64::from(u32::MAX);
    if counts { Ok(x as u64) } else { Err(OpError::Invalid(format!("takes no number like {x}"))) }
}

/// `Σ cₖ · cos(k · 2πn / period)`
fn window(d: &mut Decoder<'_>, cosines: &[f64]) -> Outputs {
    let size = count(d, 0)?;
    let periodic = d.int_or("periodic", 1)? != 0;
    let period = if periodic { size } else { size.saturating_sub(1) } as f64;
    constant(d, &[size], |n| {
        let angle = n as f64 * TAU / period;
        cosines.iter().enumerate().map(|(k, c)| c * (k as f64 * angle).cos()).sum()
    })
}

/// Triangles that overlap by halves and are equally wide on the mel scale.
fn mel_weights(d: &mut Decoder<'_>) -> Outputs {
    let (bins, length, rate) = (count(d, 0)?, count(d, 1)?, number(d, 2)?);
    let mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / LN_10;
    let (low, high) = (mel(number(d, 3)?), mel(number(d, 4)?));
    let step = (high - low) / (bins + 2) as f64;
    let rows = length / 2 + 1;
    if bins.saturating_mul(rows) > MAX_FOLDED_BYTES {
        return Err(OpError::Unsupported(format!("a table of {rows} by {bins} weights")));
    }
    // The frequency at which triangle `i` begins; it peaks where the next one does.
    let corner = |i: usize| {
        let hertz = 700.0 * ((low + i as f64 * step) / 2595.0 * LN_10).exp_m1();
        ((length + 1) as f64 * hertz / rate).floor()
    };
    if bins > 0 && !(0..bins as usize + 2).all(|i| (0.0..=rows as f64).contains(&corner(i))) {
        return Err(OpError::Invalid(format!("has edges outside {rows} frequencies")));
    }
    constant(d, &[rows, bins], |i| {
        let (row, bin) = ((i / bins as usize) as f64, i % bins as usize);
        let [left, peak, right] = [corner(bin), corner(bin + 1), corner(bin + 2)];
        if (left..peak).contains(&row) {
            (row - left) / (peak - left)
        } else if (peak..right).contains(&row) {
            (right - row) / (right - peak)
        } else {
            // A triangle that ends at its peak has it all the same.
            f64::from(u8::from(right <= peak && (peak..peak + 1.0).contains(&row)))
        }
    })
}

fn short_time(d: &mut Decoder<'_>) -> Outputs {
    let signal = d.input(0)?;
    let ty = d.ty(signal);
    let signal = match ty.shape[..] {
        [_, _, 1 | 2] => signal,
        [batch, n] => d.reshape(signal, [batch, n, 1])?,
        _ => return Err(OpError::Rank { index: 0, found: ty.rank(), expected: "3".into() }),
    };
    let step = count(d, 1)?;
    let window = d.optional(2);
    let length = match (d.optional(3), window) {
        (Some(_), _) => count(d, 3)?,
        (None, Some(window)) => d.ty(window).elements(),
        (None, None) => return Err(OpError::MissingInput { index: 3 }),
    };
    let mut frames = d.push(Frames { axis: 1, length, step }, &[signal])?;
    if let Some(window) = window {
        if d.shape(window) != [length] {
            return Err(OpError::ShapeMismatch {
                lhs: d.shape(window),
                rhs: vec![length],
                why: "the window is as long as a frame",
            });
        }
        let window = d.reshape(window, [length, 1])?;
        frames = d.map(F::Mul, &[frames, window])?;
    }
    // Of a complex signal both sides are needed.
    let real = d.shape(signal)[2] == 1;
    let onesided = real && d.int_or("onesided", 1)? != 0;
    let dft = Dft { axis: 2, length, inverse: false, onesided };
    Ok(vec![d.push(dft, &[frames])?])
}
