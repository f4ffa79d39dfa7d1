//! Local response normalisation.
//!
//! - **ONNX**: LRN (since 1).
//! - **Semantics**: `x / (bias + alpha / size · Σ x²)^beta`, the sum over `size` neighbouring
//!   channels.
//! - **Split**: channels stay whole, all other dimensions are parallel.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::lanes::{Lanes, floats};
use super::pool::Pool;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::{Kernel, PoolKind, Window};
use crate::scalar::ScalarFn as F;
use crate::sharding::FactorRule;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A normalisation across channels of `[N, C, ..]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lrn {
    /// Window, in channels.
    pub size: u64,
    /// Scale.
    #[serde(with = "crate::number")]
    pub alpha: f32,
    /// Exponent.
    #[serde(with = "crate::number")]
    pub beta: f32,
    /// Offset.
    #[serde(with = "crate::number")]
    pub bias: f32,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("LRN", 1, decode).results(&[ResultType::SameAs(0)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let size = d.int("size")?.ok_or(OpError::MissingAttribute { name: "size" })?;
    let size = u64::try_from(size).ok().filter(|&s| s > 0).ok_or_else(|| {
        OpError::BadAttribute { name: "size", why: format!("{size} is not positive") }
    })?;
    let lrn = Lrn {
        size,
        alpha: d.float_or("alpha", 1e-4)?,
        beta: d.float_or("beta", 0.75)?,
        bias: d.float_or("bias", 1.0)?,
    };
    Ok(vec![d.push(lrn, &[d.input(0)?])?])
}

impl Lrn {
    /// The mean over a window of channels, of which those that are not there count as 0.
    fn mean(
        &self,
        v: &mut Vjp<'_>,
        x: ValueId,
        before: u64,
        after: u64,
    ) -> Result<ValueId, OpError> {
        let shape = v.shape(x);
        let lines = v.reshape(x, [shape[0], 1, shape[1], elements(&shape[2..])])?;
        let window = Window {
            strides: vec![1; 2],
            dilations: vec![1; 2],
            before: vec![before, 0],
            after: vec![after, 0],
        };
        let (kind, extents) = (PoolKind::AverageWithPadding, vec![self.size, 1]);
        let mean = v.push(Pool { kind, extents, window, ceil: false }, &[lines])?;
        v.reshape(mean, shape)
    }
}

impl OpDef for Lrn {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        inputs[0].axis(1)?;
        if !inputs[0].dtype.is_float() {
            return Err(OpError::UnsupportedType { found: inputs[0].dtype });
        }
        if self.size == 0 {
            return Err(OpError::Invalid("has an empty window".into()));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        factors::along(inputs, outputs, &[1]).build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 2.0 * self.size as f64)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0].to_f64s();
        let lanes = Lanes::new(inputs[0].shape(), 1);
        let (before, after) = ((self.size - 1) / 2, self.size / 2);
        let mut y = x.clone();
        for start in lanes.starts() {
            for c in 0..lanes.n {
                let low = (c as u64).saturating_sub(before) as usize;
                let high = (c as u64).saturating_add(after).min(lanes.n as u64 - 1) as usize;
                let sum: f64 = (low..=high).map(|k| x[lanes.at(start, k)].powi(2)).sum();
                let scale = f64::from(self.alpha) / self.size as f64;
                let base = f64::from(self.bias) + scale * sum;
                y[lanes.at(start, c)] /= base.powf(f64::from(self.beta));
            }
        }
        Ok(vec![floats(inputs[0].ty(), inputs[0].shape(), &y)?])
    }

    /// With `b` the base of the power, `p = b^-beta` and the window `W` turned around `W'`: `g p - 2 alpha beta
    /// / size · x · W' Σ g x p / b`.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x) = (v.gradient()?, v.inputs[0]);
        let ty = v.ty(x);
        let (alpha, beta) = (f64::from(self.alpha), f64::from(self.beta));
        let (behind, ahead) = ((self.size - 1) / 2, self.size / 2);
        let square = v.map(F::Mul, &[x, x])?;
        let mean = self.mean(v, square, behind, ahead)?;
        let scaled = v.scale(mean, alpha)?;
        let bias = v.scalar(ty.dtype, f64::from(self.bias))?;
        let base = v.map(F::Add, &[scaled, bias])?;
        let exponent = v.scalar(ty.dtype, -beta)?;
        let power = v.map(F::Pow, &[base, exponent])?;
        let direct = v.map(F::Mul, &[g, power])?;
        let product = v.map(F::Mul, &[direct, x])?;
        let quotient = v.map(F::Div, &[product, base])?;
        let mean = self.mean(v, quotient, ahead, behind)?;
        let scaled = v.scale(mean, 2.0 * alpha * beta)?;
        let through_base = v.map(F::Mul, &[x, scaled])?;
        Ok(vec![Some(v.map(F::Sub, &[direct, through_base])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Lrn { size: self.size, alpha: self.alpha, beta: self.beta, bias: self.bias }
    }
}
