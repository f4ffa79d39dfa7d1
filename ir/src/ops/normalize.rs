//! Layer normalisation and root-mean-square normalisation.
//!
//! - **ONNX**: LayerNormalization (since 17), RMSNormalization (since 23); of ONNX Runtime's:
//!   SimplifiedLayerNormalization (also under ONNX's own domain, where an exporter files it),
//!   SkipLayerNormalization, SkipSimplifiedLayerNormalization. The mean and the inverse
//!   deviation as further outputs become reductions.
//! - **Semantics**: over the dimensions from `axis` on, `(x - mean) / sqrt(variance + ε)` or
//!   `x / sqrt(mean(x²) + ε)`, times a scale, plus a bias if there is one.
//! - **Split**: normalised dimensions stay whole, those before are parallel.

use super::decode::{Decoder, DecoderEntry};
use super::lanes::floats;
use super::normalize_grad::NormalizeGrad;
use super::{Build, OpDef, Vjp, Work, broadcast, factors, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::scalar::ScalarFn as F;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A normalisation. Inputs: x, scale, bias if there is one; both have the normalised extents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalize {
    /// First normalised dimension.
    pub axis: usize,
    /// Added to the variance or mean square.
    #[serde(with = "crate::number")]
    pub epsilon: f32,
    /// Root mean square instead of mean and variance.
    pub rms: bool,
}

type Outputs = Result<Vec<ValueId>, OpError>;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("LayerNormalization", 17, |d| decode(d, false)),
    DecoderEntry::onnx("RMSNormalization", 23, |d| decode(d, true)),
    DecoderEntry::onnx("SimplifiedLayerNormalization", 1, |d| decode(d, true)),
    DecoderEntry::microsoft("SimplifiedLayerNormalization", |d| decode(d, true)),
    DecoderEntry::microsoft("SkipLayerNormalization", |d| decode_skip(d, false)),
    DecoderEntry::microsoft("SkipSimplifiedLayerNormalization", |d| decode_skip(d, true)),
];

fn decode(d: &mut Decoder<'_>, rms: bool) -> Outputs {
    let x = d.input(0)?;
    let axis = d.ty(x).axis(d.int_or("axis", -1)?)?;
    let norm = Normalize { axis, epsilon: d.float_or("epsilon", 1e-5)?, rms };
    let (scale, bias) = (d.input(1)?, d.optional(2).filter(|_| !rms));
    let mut outputs = vec![normalize(d, &norm, x, scale, bias)?];
    if d.outputs > 1 {
        outputs.extend(statistics(d, &norm, x)?);
    }
    Ok(outputs)
}

/// Inputs: x, skip, scale, [beta of layer norm], bias. Output 3 is the sum that is normalised.
fn decode_skip(d: &mut Decoder<'_>, rms: bool) -> Outputs {
    let mut x = d.map(F::Add, &[d.input(0)?, d.input(1)?])?;
    let (beta, bias) = if rms { (None, d.optional(3)) } else { (d.optional(3), d.optional(4)) };
    if let Some(bias) = bias {
        x = d.map(F::Add, &[x, bias])?;
    }
    let axis = d.ty(x).axis(-1)?;
    let norm = Normalize { axis, epsilon: d.float_or("epsilon", 1e-12)?, rms };
    let scale = d.input(2)?;
    let mut outputs = vec![normalize(d, &norm, x, scale, beta)?];
    if d.outputs > 1 {
        let mut statistics = statistics(d, &norm, x)?;
        if rms {
            // Its second output would be the mean, which is not computed and nobody reads.
            statistics.insert(0, statistics[0]);
        }
        outputs.extend(statistics);
        outputs.push(x);
    }
    Ok(outputs)
}

/// The normalised value. A scale or bias of other than the normalised extents is brought to them if
/// it can be; one that also varies along other dimensions is applied by elementwise ops.
pub(super) fn normalize(
    d: &mut Decoder<'_>,
    norm: &Normalize,
    x: ValueId,
    scale: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let ty = d.ty(x);
    let inner = ty.shape[norm.axis..].to_vec();
    let mut fitted = Vec::new();
    for v in [Some(scale), bias].into_iter().flatten() {
        let v = d.cast(v, ty.dtype)?;
        let shape = d.shape(v);
        if broadcast(&ty.shape, &shape)? != ty.shape {
            return Err(OpError::ShapeMismatch {
                lhs: ty.shape,
                rhs: shape,
                why: "the scale and bias must broadcast to the input",
            });
        }
        let outer = shape.len().saturating_sub(inner.len());
        fitted.push((v, elements(&shape[..outer]) == 1, shape[outer..].to_vec()));
    }
    if fitted.iter().all(|(_, fits, _)| *fits) {
        let mut inputs = vec![x];
        for (v, _, shape) in fitted {
            let v = d.reshape(v, shape)?;
            inputs.push(d.expand(v, inner.clone())?);
        }
        return d.push(norm.clone(), &inputs);
    }
    let one = d.scalar(ty.dtype, 1.0)?;
    let ones = d.expand(one, inner)?;
    let mut result = d.push(norm.clone(), &[x, ones])?;
    for ((v, ..), f) in fitted.into_iter().zip([F::Mul, F::Add]) {
        result = d.map(f, &[result, v])?;
    }
    Ok(result)
}

/// The mean (not of RMS norm) and the inverse deviation, in f32 at least.
fn statistics(d: &mut Decoder<'_>, norm: &Normalize, x: ValueId) -> Outputs {
    let ty = d.ty(x);
    let axes: Vec<usize> = (norm.axis..ty.rank()).collect();
    let wide = if ty.dtype.bytes() < 4 { crate::DType::F32 } else { ty.dtype };
    let mut x = d.cast(x, wide)?;
    let mut outputs = Vec::new();
    if !norm.rms {
        let mean = d.mean(x, &axes)?;
        x = d.map(F::Sub, &[x, mean])?;
        outputs.push(mean);
    }
    let square = d.map(F::Mul, &[x, x])?;
    let variance = d.mean(square, &axes)?;
    let epsilon = d.scalar(wide, f64::from(norm.epsilon))?;
    let variance = d.map(F::Add, &[variance, epsilon])?;
    let deviation = d.map(F::Sqrt, &[variance])?;
    outputs.push(d.map(F::Reciprocal, &[deviation])?);
    Ok(outputs)
}

impl OpDef for Normalize {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let most = if self.rms { 2 } else { 3 };
        if inputs.len() < 2 || inputs.len() > most {
            let expected = if self.rms { "2" } else { "2 or 3" }.to_string();
            return Err(OpError::InputCount { expected, found: inputs.len() });
        }
        let x = &inputs[0];
        x.dim(self.axis)?;
        if !x.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: x.dtype });
        }
        for t in &inputs[1..] {
            same_dtype(x, t)?;
            if t.shape != x.shape[self.axis..] {
                return Err(OpError::ShapeMismatch {
                    lhs: x.shape[self.axis..].to_vec(),
                    rhs: t.shape.clone(),
                    why: "the scale and bias have the normalised extents",
                });
            }
        }
        Ok(vec![x.clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |i| i >= self.axis);
        let all = || dims.iter().copied().map(Some);
        rule.input(all());
        for _ in &inputs[1..] {
            rule.input(all().skip(self.axis));
        }
        rule.output(all());
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 8.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let mut x = inputs[0].to_f64s();
        let n = elements(&inputs[0].shape()[self.axis..]) as usize;
        let scale = inputs[1].to_f64s();
        let bias = inputs.get(2).map(|t| t.to_f64s());
        for row in x.chunks_mut(n.max(1)) {
            let mean =
                if self.rms { 0.0 } else { row.iter().sum::<f64>() / n as f64 };
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            let deviation = (variance + f64::from(self.epsilon)).sqrt();
            for (i, v) in row.iter_mut().enumerate() {
                *v = (*v - mean) / deviation * scale[i] + bias.as_ref().map_or(0.0, |b| b[i]);
            }
        }
        Ok(vec![floats(inputs[0].ty(), inputs[0].shape(), &x)?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let inputs = [v.gradient()?, v.inputs[0], v.inputs[1]];
        let bias = v.inputs.len() > 2;
        let gradients = v.push_multi(NormalizeGrad { norm: self.clone(), bias }, &inputs)?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn lower(&self) -> Kernel {
        Kernel::Normalize { axis: self.axis, epsilon: self.epsilon, rms: self.rms }
    }
}
