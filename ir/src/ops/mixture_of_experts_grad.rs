//! The gradient of a layer of experts.
//!
//! - **ONNX**: none; differentiating [`MixtureOfExperts`] makes it.
//! - **Semantics**: inputs are the gradient of the layer's result, then the layer's operands; results are the
//!   gradients of x, of the router's weights (of the element type of x), and of the experts' matrices if they are
//!   asked for. With `y` what stands between the layers of expert `e`, and `t[j] = down[e] · g`, the weight
//!   gets `t · y`, down `weight · y · gᵀ`, and `weight · t · f'` flows on to x and to the matrices in front. What
//!   stands between the layers is computed again, a few tokens of one expert at a time, so that nothing
//!   of the extents tokens × inner is kept.
//! - **Split**: tokens give partial sums of the matrices' gradients. Experts and what is between the layers
//!   split the matrices' gradients and give partial sums of the others; so do the elements of
//!   results, but that the matrices in front get partial sums, too. Linear in the gradient.

use super::lanes::floats;
use super::mixture_of_experts::{Dims, MixtureOfExperts, ROUTED, Routed};
use super::work::traffic;
use super::{DecoderEntry, OpDef, Work, WorkKind, expect_gradient};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a layer of experts. Inputs: gradient, then the layer's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixtureOfExpertsGrad {
    /// The layer.
    pub layer: MixtureOfExperts,
    /// Whether the gradients of the experts' matrices are results.
    pub experts: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl MixtureOfExpertsGrad {
    /// # Errors
    /// If a layer's function has no derivatives that are known.
    pub fn check(layer: &MixtureOfExperts) -> Result<(), OpError> {
        if layer.f.has_derivatives() {
            return Ok(());
        }
        let why = format!("{:?} between layers of experts has no gradient in planc", layer.f);
        Err(OpError::NotDifferentiable { why })
    }
}

impl OpDef for MixtureOfExpertsGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let (gradient, operands) =
            inputs.split_first().ok_or(OpError::MissingInput { index: 0 })?;
        expect_gradient(gradient, &self.layer.infer(operands, &[])?[0])?;
        Self::check(&self.layer)?;
        let weights = TensorType::new(gradient.dtype, operands[2].shape.clone());
        let mut results = vec![operands[0].clone(), weights];
        if self.experts {
            results.extend_from_slice(&operands[ROUTED..]);
        }
        Ok(results)
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let Ok(extents) = self.layer.extents_of(&inputs[1..]) else {
            let ranks = |types: &[TensorType]| types.iter().map(TensorType::rank).collect::<Vec<_>>();
            return FactorRule::opaque(&ranks(inputs), &ranks(outputs), "its extents do not fit");
        };
        let sum = FactorKind::Reduce(ReduceKind::Sum);
        let of_tokens = if self.experts { sum } else { FactorKind::Parallel };
        let tokens = &inputs[1].shape[..inputs[1].rank() - 1];
        let mut rule = RuleBuilder::new();
        let dims = Dims::new(&mut rule, tokens, &extents, [of_tokens, sum]);
        let operands = dims.operands(&self.layer);
        rule.input(dims.of_token(dims.o));
        for operand in &operands {
            rule.input(operand.iter().copied());
        }
        rule.output(dims.of_token(dims.h));
        rule.output(dims.of_token(dims.k));
        for operand in operands.into_iter().skip(ROUTED).filter(|_| self.experts) {
            rule.output(operand);
        }
        rule.linear([0]);
        rule.build()
    }

    /// The layer's work for the tokens' gradients and projections, and again for the experts' if there are any.
    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let layer = self.layer.work(&inputs[1..], &inputs[..1]);
        let written = traffic(&[], outputs);
        let kind = match layer.kind {
            WorkKind::Matmul { batch, m, n, k } => {
                WorkKind::Matmul { batch, m, n: n.saturating_mul(2), k }
            }
            other => other,
        };
        let flops = layer.flops * if self.experts { 3.0 } else { 2.0 };
        Work { kind, flops, bytes: layer.bytes + written }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let routed = Routed::new(&self.layer, &inputs[1..])?;
        let g = inputs[0].to_f64s();
        let [width, inner, result] =
            [routed.extents.width, routed.extents.inner, routed.extents.result].map(|n| n as usize);
        let zeros = |t: &&Tensor| vec![0.0; t.len()];
        let (mut dx, mut dweights) = (zeros(&inputs[1]), zeros(&inputs[3]));
        let mut matrices: Vec<Vec<f64>> = inputs[1 + ROUTED..].iter().map(zeros).collect();
        let Some((down, first)) = matrices.split_last_mut() else {
            return Err(EvalError::Invalid("has no experts".into()));
        };
        routed.for_each_choice(|c| {
            let g = &g[c.token * result..][..result];
            for f in 0..inner {
                let projected = routed.projected(&c, f);
                let y = self.layer.f.apply(&projected);
                let mut t = 0.0;
                for (o, g) in g.iter().enumerate() {
                    let at = routed.down_at(&c, f, o);
                    t += g * routed.down(at);
                    down[at] += c.weight * y * g;
                }
                dweights[c.number] += t * y;
                let slopes = self.layer.f.derivatives(&projected).unwrap_or_default();
                for (side, slope) in slopes[..projected.len()].iter().enumerate() {
                    let of_side = c.weight * t * slope;
                    for (h, x) in routed.token(c.token).iter().enumerate() {
                        let (matrix, at) = routed.first_at(&c, side, h, f);
                        dx[c.token * width + h] += of_side * routed.first((matrix, at));
                        first[matrix][at] += of_side * x;
                    }
                }
            }
        })?;
        let like = inputs[0].ty();
        let mut results =
            vec![floats(like, inputs[1].shape(), &dx)?, floats(like, inputs[3].shape(), &dweights)?];
        for (t, d) in inputs[1 + ROUTED..].iter().zip(&matrices).filter(|_| self.experts) {
            results.push(floats(like, t.shape(), d)?);
        }
        Ok(results)
    }

    fn lower(&self) -> Kernel {
        Kernel::MixtureOfExpertsGrad(self.clone())
    }
}
