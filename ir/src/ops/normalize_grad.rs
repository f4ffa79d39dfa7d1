//! The gradient of layer and root-mean-square normalisation.
//!
//! - **ONNX**: none; differentiating [`Normalize`] makes it.
//! - **Semantics**: inputs are the gradient of the result, x and the scale; results are the gradients of x,
//!   of the scale, and of the bias if there is one. With the normalised `n = (x - mean) · r` of a row, where
//!   `r = 1 / sqrt(variance + ε)`: `dscale = Σ g · n` and `dbias = Σ g` over all rows, and
//!   `dx = r · (h - mean(h) - n · mean(h · n))` of `h = g · scale`, without `mean(h)` for root mean squares.
//! - **Split**: normalised dimensions stay whole. Those before split dx, and give partial sums of the
//!   others. Linear in the gradient.

use super::lanes::floats;
use super::normalize::Normalize;
use super::{DecoderEntry, OpDef, Work, expect_gradient, expect_inputs, factors};
use crate::graph::{TensorType, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a normalisation. Inputs: gradient, x, scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormalizeGrad {
    /// The normalisation.
    pub norm: Normalize,
    /// Whether it has a bias.
    pub bias: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

/// Normalises a row in place; dx from `h`, as above.
pub(super) fn row_gradient(x: &mut [f64], h: &[f64], epsilon: f32, rms: bool) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = if rms { 0.0 } else { x.iter().sum::<f64>() / n };
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    let r = 1.0 / (variance + f64::from(epsilon)).sqrt();
    for v in &mut *x {
        *v = (*v - mean) * r;
    }
    let along = h.iter().zip(&*x).map(|(h, x)| h * x).sum::<f64>() / n;
    let level = if rms { 0.0 } else { h.iter().sum::<f64>() / n };
    h.iter().zip(&*x).map(|(h, x)| r * (h - level - x * along)).collect()
}

impl OpDef for NormalizeGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 3)?;
        let (x, scale) = (&inputs[1], &inputs[2]);
        self.norm.infer(&inputs[1..], &[])?;
        expect_gradient(&inputs[0], x)?;
        if self.bias && self.norm.rms {
            return Err(OpError::Invalid("normalises root mean squares with a bias".into()));
        }
        let mut outputs = vec![x.clone(), scale.clone()];
        outputs.extend(self.bias.then(|| scale.clone()));
        Ok(outputs)
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let axis = self.norm.axis;
        let dims: Vec<_> = inputs[1]
            .shape
            .iter()
            .zip(factors::DIMS)
            .enumerate()
            .map(|(i, (&n, name))| {
                let rows = FactorKind::Reduce(ReduceKind::Sum);
                rule.factor(name, n, if i < axis { rows } else { FactorKind::Whole })
            })
            .collect();
        let all = || dims.iter().copied().map(Some);
        rule.input(all());
        rule.input(all());
        rule.input(all().skip(axis));
        rule.output(all());
        for _ in &outputs[1..] {
            rule.output(all().skip(axis));
        }
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 16.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (g, mut x, scale) = (inputs[0].to_f64s(), inputs[1].to_f64s(), inputs[2].to_f64s());
        let n = elements(inputs[2].shape()) as usize;
        let (mut dx, mut dscale, mut dbias) = (Vec::new(), vec![0.0; n], vec![0.0; n]);
        for (x, g) in x.chunks_mut(n.max(1)).zip(g.chunks(n.max(1))) {
            let h: Vec<f64> = g.iter().zip(&scale).map(|(g, s)| g * s).collect();
            dx.extend(row_gradient(x, &h, self.norm.epsilon, self.norm.rms));
            for (i, (x, g)) in x.iter().zip(g).enumerate() {
                dscale[i] += g * x;
                dbias[i] += g;
            }
        }
        let (tx, ts) = (inputs[1].ty(), inputs[2].ty());
        let mut gradients = vec![floats(tx, &tx.shape, &dx)?, floats(ts, &ts.shape, &dscale)?];
        if self.bias {
            gradients.push(floats(ts, &ts.shape, &dbias)?);
        }
        Ok(gradients)
    }

    fn lower(&self) -> Kernel {
        Kernel::NormalizeGrad(self.clone())
    }
}
