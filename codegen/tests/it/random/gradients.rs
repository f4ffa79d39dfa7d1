//! Ops of training steps, with a drawn value as the gradient that they start from.

use super::{Case, Draw, EXTENTS, divisors};
use planc_ir::ops::Op;
use planc_ir::ops::attention::Attention;
use planc_ir::ops::attention_grad::AttentionGrad;
use planc_ir::ops::conv_transpose::ConvTranspose;
use planc_ir::ops::conv_weight_grad::ConvWeightGrad;
use planc_ir::ops::dropout::Dropout;
use planc_ir::ops::group_norm::GroupNorm;
use planc_ir::ops::group_norm_grad::GroupNormGrad;
use planc_ir::ops::mixture_of_experts::MixtureOfExperts;
use planc_ir::ops::mixture_of_experts_grad::MixtureOfExpertsGrad;
use planc_ir::ops::normalize::Normalize;
use planc_ir::ops::normalize_grad::NormalizeGrad;
use planc_ir::ops::pool::Pool;
use planc_ir::ops::pool_grad::PoolGrad;
use planc_ir::program::{PoolKind, Window};
use planc_ir::scalar::ScalarFn;
use planc_ir::{Tensor, ValueId};

impl Case {
    /// An op on a gradient of this shape; dropout where the drawn op does not take it.
    pub(super) fn training(
        &mut self,
        d: &mut Draw<'_>,
        shape: &[u64],
        inputs: &mut Vec<ValueId>,
    ) -> Op {
        let rank = shape.len();
        match d.below(5) {
            4 if rank > 0 => self.experts(d, shape, inputs),
            1 if rank > 0 => {
                let (axis, rms) = (d.below(rank), d.one_in(2));
                inputs.extend([self.weight(d, shape), self.weight(d, &shape[axis..])]);
                let norm = Normalize { axis, epsilon: 0.5, rms };
                NormalizeGrad { norm, bias: !rms && d.one_in(2) }.into()
            }
            2 if rank == 4 => self.attention(d, shape, inputs),
            2 | 3 if (3..=4).contains(&rank) && !shape.contains(&0) => {
                self.windowed(d, shape, inputs)
            }
            _ => {
                inputs.push(self.given(d, Tensor::scalar(5i64)));
                Dropout { ratio: 0.5, seed: 3 }.into()
            }
        }
    }

    /// The gradient of attention.
    fn attention(&mut self, d: &mut Draw<'_>, shape: &[u64], inputs: &mut Vec<ValueId>) -> Op {
        let [batch, heads, queries, width] = [0, 1, 2, 3].map(|i| shape[i]);
        let kv_heads = d.pick(&divisors(heads));
        let (keys, depth) = (d.pick(&EXTENTS), d.pick(&EXTENTS));
        for shape in [
            [batch, heads, queries, depth],
            [batch, kv_heads, keys, depth],
            [batch, kv_heads, keys, width],
        ] {
            inputs.push(self.weight(d, &shape));
        }
        let masked = d.one_in(2);
        if masked {
            let mut mask = [batch, heads, queries, keys];
            for n in &mut mask {
                if d.one_in(2) {
                    *n = 1;
                }
            }
            inputs.push(self.weight(d, &mask));
        }
        let causal = d.one_in(2).then_some(1);
        let attention = Attention { causal, ..Attention::plain(0.5) };
        AttentionGrad { attention, mask: masked && d.one_in(2) }.into()
    }

    /// A layer of experts, or its gradient.
    fn experts(&mut self, d: &mut Draw<'_>, shape: &[u64], inputs: &mut Vec<ValueId>) -> Op {
        let (&last, tokens) = shape.split_last().expect("of rank 1 or more");
        let (experts, choices) = (2 + d.below(3) as u64, 1 + d.below(2) as u64);
        let (inner, other) = (d.pick(&EXTENTS), d.pick(&EXTENTS));
        let f = d.pick(&[ScalarFn::Mul, ScalarFn::Gelu]);
        let (trans_in, trans_out) = (d.one_in(2), d.one_in(2));
        let fused = f.arity() == 2 && d.one_in(2);
        let layer = MixtureOfExperts { experts, f, fused, trans_in, trans_out };
        let is_gradient = d.one_in(2);
        let (width, result) = if is_gradient { (other, last) } else { (last, other) };
        let of_token = |last: u64| [tokens, &[last]].concat();
        if is_gradient {
            inputs.push(self.weight(d, &of_token(width)));
        }
        inputs.push(self.indices(d, &of_token(choices), &[experts]));
        inputs.push(self.weight(d, &of_token(choices)));
        let sides: &[u64] = if fused { &[2] } else { &[] };
        let first = if trans_in {
            [&[experts], sides, &[inner, width]].concat()
        } else {
            [&[experts, width], sides, &[inner]].concat()
        };
        for _ in sides.len()..f.arity() {
            inputs.push(self.weight(d, &first));
        }
        let down = if trans_out { [experts, result, inner] } else { [experts, inner, result] };
        inputs.push(self.weight(d, &down));
        if is_gradient {
            return MixtureOfExpertsGrad { layer, experts: d.one_in(2) }.into();
        }
        layer.into()
    }

    /// Gradients of ops on `[N, C, ..]`.
    fn windowed(&mut self, d: &mut Draw<'_>, shape: &[u64], inputs: &mut Vec<ValueId>) -> Op {
        let rank = shape.len() - 2;
        let step = 1 + d.below(2) as u64;
        let window = Window {
            strides: vec![step; rank],
            dilations: vec![1; rank],
            before: vec![0; rank],
            after: vec![0; rank],
        };
        let extents = vec![2; rank];
        // What the window moves over, to give as many positions as there are.
        let spatial: Vec<u64> = shape[2..].iter().map(|&n| (n - 1) * step + 2).collect();
        let groups = d.pick(&divisors(shape[1]));
        match d.below(4) {
            0 => {
                let kind = d.pick(&[PoolKind::Max, PoolKind::Average]);
                if kind == PoolKind::Max {
                    inputs.push(self.weight(d, &[&shape[..2], &spatial].concat()));
                }
                let pool = Pool { kind, extents, window, ceil: false };
                PoolGrad { pool, spatial }.into()
            }
            1 => {
                inputs.extend([self.weight(d, shape), self.weight(d, &shape[1..2])]);
                let norm = GroupNorm { channels: groups, epsilon: 0.5 };
                GroupNormGrad { norm }.into()
            }
            2 => {
                let weight = [groups, shape[1] / groups, 1 + d.below(3) as u64];
                inputs.push(self.weight(d, &[&weight, &extents[..]].concat()));
                ConvTranspose { window, extra: vec![0; rank] }.into()
            }
            _ => {
                let channels = groups * (1 + d.below(3) as u64);
                inputs.push(self.weight(d, &[&[shape[0], channels], &spatial[..]].concat()));
                ConvWeightGrad { window, extents, groups }.into()
            }
        }
    }
}
