//! The gradient of attention.
//!
//! - **ONNX**: none; differentiating [`Attention`] makes it.
//! - **Semantics**: inputs are the gradient of attention's result, then attention's operands; results are
//!   the gradients of q, k and v. With the weights `p = softmax(s)` of a query, `dv = pᵀ · g`,
//!   `dp = g · vᵀ`, and `ds = p · (dp - Σ p · dp)` flows on to q and k where the score of a key is not
//!   constant. The weights are computed again, a query at a time, so that nothing of the extents
//!   queries × keys is kept.
//! - **Split**: batch and key heads are parallel. Queries and groups split dq, and give partial sums of dk
//!   and dv; the elements of v split dv, and give partial sums of dq and dk. Linear in the gradient.

use super::attention::{Attention, Extents, Scores};
use super::work::traffic;
use super::{DecoderEntry, OpDef, Work, WorkKind};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of an attention. Inputs: gradient, q, k, v, mask if there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// The attention.
    pub attention: Attention,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for AttentionGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let (gradient, operands) =
            inputs.split_first().ok_or(OpError::MissingInput { index: 0 })?;
        super::expect_gradient(gradient, &self.attention.infer(operands, &[])?[0])?;
        Ok(operands[..3].to_vec())
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let Ok(e) = Extents::new(&inputs[1..]) else {
            let ranks = vec![4; inputs.len()];
            return FactorRule::opaque(&ranks, &[4; 3], "its extents do not fit");
        };
        let mut rule = RuleBuilder::new();
        let [b, h] = [("b", e.batch), ("h", e.kv_heads)]
            .map(|(name, size)| rule.factor(name, size, FactorKind::Parallel));
        let [g, s, w] = [("g", e.group()), ("s", e.queries), ("e", e.width)]
            .map(|(name, size)| rule.factor(name, size, FactorKind::Reduce(ReduceKind::Sum)));
        let [t, d] = [("t", e.keys), ("d", e.depth)]
            .map(|(name, size)| rule.factor(name, size, FactorKind::Whole));
        let heads = if e.kv_heads == 0 { vec![h] } else { vec![h, g] };
        let q = vec![vec![b], heads.clone(), vec![s], vec![d]];
        let k = vec![vec![b], vec![h], vec![t], vec![d]];
        let v = vec![vec![b], vec![h], vec![t], vec![w]];
        rule.input_products(vec![vec![b], heads.clone(), vec![s], vec![w]]);
        for operand in [&q, &k, &v] {
            rule.input_products(operand.clone());
        }
        if let Some(mask) = inputs.get(4) {
            rule.input_products(e.mask_dims(&mask.shape, &[vec![b], heads, vec![s], vec![t]]));
        }
        for operand in [q, k, v] {
            rule.output_products(operand);
        }
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let bytes = traffic(inputs, outputs);
        let Ok(e) = Extents::new(&inputs[1..]) else {
            return Work { kind: WorkKind::Memory, flops: 0.0, bytes };
        };
        // Scores, dq and dk are products over the depth, dp and dv over the width.
        let (depth, width) = (e.depth.saturating_mul(3), e.width.saturating_mul(2));
        let kind = WorkKind::Attention {
            batch: e.batch.saturating_mul(e.heads),
            queries: e.queries,
            keys: e.keys,
            depth,
            width,
        };
        let products = e.scores().iter().fold(2.0, |n, &x| n * x as f64);
        Work { kind, flops: products * (depth as f64 + width as f64), bytes }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let scores = Scores::new(&self.attention, &inputs[1..])?;
        let width = scores.extents.width as usize;
        let (g, v) = (inputs[0].to_f64s(), inputs[3].to_f64s());
        let mut gradients: Vec<Vec<f64>> =
            inputs[1..4].iter().map(|t| vec![0.0; t.len()]).collect();
        let [dq, dk, dv] = &mut gradients[..] else {
            return Err(EvalError::Invalid("has three results".into()));
        };
        for row in 0..scores.rows() {
            let (weights, first) = (scores.weights(row), scores.first_key(row));
            let g = &g[row * width..][..width];
            let of_weight = |j: usize| -> f64 {
                g.iter().zip(&v[(first + j) * width..]).map(|(g, v)| g * v).sum()
            };
            let of_weights: Vec<f64> = (0..weights.len()).map(of_weight).collect();
            let mean: f64 = weights.iter().zip(&of_weights).map(|(p, dp)| p * dp).sum();
            for (j, (p, dp)) in weights.iter().zip(&of_weights).enumerate() {
                let key = first + j;
                for (dv, g) in dv[key * width..].iter_mut().zip(g) {
                    *dv += p * g;
                }
                let (added, seen) = scores.masks(row, j);
                if Attention::follows(added, seen) {
                    let ds = p * (dp - mean) * self.attention.slope(scores.raw(row, j));
                    let (q, k) = scores.pair(row, j);
                    let depth = q.len();
                    dq[row * depth..].iter_mut().zip(k).for_each(|(dq, k)| *dq += ds * k);
                    dk[key * depth..].iter_mut().zip(q).for_each(|(dk, q)| *dk += ds * q);
                }
            }
        }
        let operands = inputs[1..4].iter().zip(&gradients);
        operands.map(|(t, d)| Tensor::from_f64(t.ty().clone(), |i| d[i])).collect()
    }

    fn lower(&self) -> Kernel {
        Kernel::AttentionGrad(self.clone())
    }
}
