//! Samples of ops that differentiation makes.

use super::{Add, RandomOf, window};
use planc_ir::Tensor;
use planc_ir::ops::attention::Attention;
use planc_ir::ops::attention_grad::AttentionGrad;
use planc_ir::ops::conv_weight_grad::ConvWeightGrad;
use planc_ir::ops::dropout::Dropout;
use planc_ir::ops::group_norm::GroupNorm;
use planc_ir::ops::group_norm_grad::GroupNormGrad;
use planc_ir::ops::normalize::Normalize;
use planc_ir::ops::normalize_grad::NormalizeGrad;
use planc_ir::ops::pool::Pool;
use planc_ir::ops::pool_grad::PoolGrad;
use planc_ir::program::PoolKind;

pub fn add(add: Add<'_>, x: RandomOf<'_>) {
    let operands = |heads, kv_heads| {
        [[2, heads, 5, 4], [2, heads, 5, 3], [2, kv_heads, 7, 3], [2, kv_heads, 7, 4]]
    };
    let causal = Attention { causal: Some(2), ..Attention::plain(0.5) };
    for (attention, shapes, mask) in [
        (Attention::plain(0.5), operands(3, 3), None),
        (Attention { softcap: Some(0.5), ..causal.clone() }, operands(4, 2), None),
        (causal, operands(6, 1), Some(vec![2, 1, 1, 7])),
        (Attention::plain(1.0), operands(4, 2), Some(vec![4, 5, 7])),
    ] {
        let mut inputs: Vec<Tensor> = shapes.iter().map(|s| x(s)).collect();
        inputs.extend(mask.iter().map(|m| x(m)));
        add(AttentionGrad { attention: attention.clone(), mask: false }.into(), inputs.clone());
        if mask.is_some() {
            add(AttentionGrad { attention, mask: true }.into(), inputs);
        }
    }
    let seen = Tensor::new([5, 7], (0..35).map(|i| i % 3 > 0 && i > 6).collect()).unwrap();
    let attention = Attention { zero_unseeing: true, ..Attention::plain(1.0) };
    let mut inputs: Vec<Tensor> = operands(2, 2).iter().map(|s| x(s)).collect();
    inputs.push(seen);
    add(AttentionGrad { attention, mask: false }.into(), inputs);

    for (rms, bias) in [(true, false), (false, false), (false, true)] {
        let norm = Normalize { axis: 1, epsilon: 1e-5, rms };
        let inputs = vec![x(&[5, 3, 4]), x(&[5, 3, 4]), x(&[3, 4])];
        add(NormalizeGrad { norm, bias }.into(), inputs);
    }
    for channels in [1, 2, 6] {
        let norm = GroupNorm { channels, epsilon: 1e-5 };
        let inputs = vec![x(&[3, 6, 2, 5]), x(&[3, 6, 2, 5]), x(&[6])];
        add(GroupNormGrad { norm }.into(), inputs);
    }
    let w = window(&[2, 1], &[1, 2], &[1, 0], &[0, 2]);
    for groups in [1, 2, 4] {
        // A position less than the window has along the last dimension.
        let inputs = vec![x(&[3, 8, 2, 5]), x(&[3, 4, 5, 6])];
        let extents = vec![3, 2];
        add(ConvWeightGrad { window: w.clone(), extents, groups }.into(), inputs);
    }
    for kind in [PoolKind::Max, PoolKind::Average, PoolKind::AverageWithPadding] {
        let window = window(&[2, 2], &[1, 1], &[1, 0], &[0, 1]);
        let pool = Pool { kind, extents: vec![3, 2], window, ceil: true };
        let mut inputs = vec![x(&[2, 5, 3, 2])];
        if kind == PoolKind::Max {
            inputs.push(x(&[2, 5, 5, 4]));
        }
        add(PoolGrad { pool, spatial: vec![5, 4] }.into(), inputs);
    }
    let step = Tensor::scalar(7i64);
    add(Dropout { ratio: 0.375, seed: 11 }.into(), vec![x(&[3, 5, 4]), step]);
}
