//! The gradient of attention.
//!
//! - **ONNX**: none; differentiating [`Attention`] makes it.
//! - **Semantics**: inputs are the gradient of attention's result, then attention's operands; results are
//!   the gradients of q, k and v, and of the mask if it is asked for. With the weights `p = softmax(s)` of a query, `dv = pᵀ · g`,
//!   `dp = g · vᵀ`, and `ds = p · (dp - Σ p · dp)` flows on to q and k where the score of a key is not
//!   constant; the mask gets what it was broadcast to. The weights are computed again, a query at a time, so that nothing of the extents
//!   queries × keys is kept.
//! - **Split**: batch and key heads are parallel. Queries and groups split dq, and give partial sums of dk
//!   and dv; the elements of v split dv, and give partial sums of dq and dk. Whatever the mask was
//!   broadcast along gives partial sums of its gradient. Linear in the gradient.

use super::attention::{Attention, Extents, Scores};
use super::lanes::floats;
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
    /// Whether the gradient of a mask of floats is a result, of the element type of the others.
    #[serde(default)]
    pub mask: bool,
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
        let mut results = operands[..3].to_vec();
        if self.mask {
            let mask = operands.get(3).ok_or(OpError::MissingInput { index: 4 })?;
            if !mask.dtype.is_float() {
                return Err(OpError::UnsupportedType { found: mask.dtype });
            }
            results.push(TensorType::new(gradient.dtype, mask.shape.clone()));
        }
        Ok(results)
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let Ok(e) = Extents::new(&inputs[1..]) else {
            let ranks = |types: &[TensorType]| types.iter().map(TensorType::rank).collect::<Vec<_>>();
            return FactorRule::opaque(&ranks(inputs), &ranks(outputs), "its extents do not fit");
        };
        let mut rule = RuleBuilder::new();
        let mask = inputs.get(4).map(|mask| &mask.shape[..]);
        let scores = e.scores();
        // Only the gradient of the mask may lack batch and heads.
        let broadcast = |d: usize| {
            let of_mask = mask.and_then(|m| m.get((d + m.len()).checked_sub(4)?));
            self.mask && of_mask != Some(&scores[d])
        };
        let [b, h] = [("b", e.batch, 0), ("h", e.kv_heads, 1)].map(|(name, size, d)| {
            let summed = FactorKind::Reduce(ReduceKind::Sum);
            rule.factor(name, size, if broadcast(d) { summed } else { FactorKind::Parallel })
        });
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
        let mask = mask.map(|mask| e.mask_dims(mask, &[vec![b], heads, vec![s], vec![t]]));
        if let Some(mask) = &mask {
            rule.input_products(mask.clone());
        }
        for operand in [q, k, v].into_iter().chain(mask.filter(|_| self.mask)) {
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
            inputs[1..].iter().map(|t| vec![0.0; t.len()]).collect();
        let [dq, dk, dv, dmask @ ..] = &mut gradients[..] else {
            return Err(EvalError::Invalid("has not enough operands".into()));
        };
        // Without a gradient to start from, there may be too many keys to loop over.
        for row in 0..if g.is_empty() { 0 } else { scores.rows() } {
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
                    let ds = p * (dp - mean);
                    for dmask in &mut *dmask {
                        dmask[scores.mask_index(inputs[4].shape(), row, j)] += ds;
                    }
                    let ds = ds * self.attention.slope(scores.raw(row, j));
                    let (q, k) = scores.pair(row, j);
                    let depth = q.len();
                    dq[row * depth..].iter_mut().zip(k).for_each(|(dq, k)| *dq += ds * k);
                    dk[key * depth..].iter_mut().zip(q).for_each(|(dk, q)| *dk += ds * q);
                }
            }
        }
        let results = if self.mask { 4 } else { 3 };
        let operands = inputs[1..].iter().zip(&gradients).take(results);
        operands.map(|(t, d)| floats(inputs[0].ty(), t.shape(), d)).collect()
    }

    fn lower(&self) -> Kernel {
        Kernel::AttentionGrad(self.clone())
    }
}
