//! Group normalisation, and instance normalisation as groups of one channel.
//!
//! - **ONNX**: InstanceNormalization (since 6), GroupNormalization (since 18; scale and bias have
//!   one value a group before 21, one a channel since).
//! - **Semantics**: of x `[N, C, ..]`: `(x - mean) / sqrt(variance + ε) · scale + bias`, statistics
//!   over each group of channels and all positions of one sample; scale and bias are `[C]`.
//! - **Split**: samples and groups are parallel; the channels of a group and the positions stay whole.

use super::decode::{Decoder, DecoderEntry};
use super::group_norm_grad::GroupNormGrad;
use super::lanes::floats;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A group normalisation. Inputs: x, scale, bias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNorm {
    /// Channels of a group.
    pub channels: u64,
    /// Added to the variance.
    #[serde(with = "crate::number")]
    pub epsilon: f32,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("InstanceNormalization", 6, instance),
    DecoderEntry::onnx("GroupNormalization", 18, group),
];

type Outputs = Result<Vec<ValueId>, OpError>;

fn instance(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    channels(d, x, 3)?;
    let norm = GroupNorm { channels: 1, epsilon: d.float_or("epsilon", 1e-5)? };
    Ok(vec![d.push(norm, &[x, d.input(1)?, d.input(2)?])?])
}

fn group(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let channels = channels(d, x, 2)?;
    let groups =
        d.int("num_groups")?.ok_or(OpError::MissingAttribute { name: "num_groups" })?;
    let groups = u64::try_from(groups).ok().filter(|&g| g > 0 && channels % g == 0);
    let groups = groups.ok_or_else(|| OpError::BadAttribute {
        name: "num_groups",
        why: format!("does not divide {channels} channels"),
    })?;
    let norm = GroupNorm { channels: channels / groups, epsilon: d.float_or("epsilon", 1e-5)? };
    let mut inputs = vec![x];
    for index in [1, 2] {
        let mut v = d.input(index)?;
        if d.opset < 21 {
            // One value a group: each counts for all channels of its group.
            v = d.reshape(v, [groups, 1])?;
            v = d.expand(v, [groups, channels / groups])?;
            v = d.reshape(v, [channels])?;
        }
        inputs.push(v);
    }
    Ok(vec![d.push(norm, &inputs)?])
}

/// The number of channels of an input of at least some rank.
fn channels(d: &Decoder<'_>, x: ValueId, least: usize) -> Result<u64, OpError> {
    let ty = d.ty(x);
    if ty.rank() < least {
        let expected = format!("{least} or more");
        return Err(OpError::Rank { index: 0, found: ty.rank(), expected });
    }
    Ok(ty.shape[1])
}

impl OpDef for GroupNorm {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 3)?;
        let x = &inputs[0];
        if !x.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: x.dtype });
        }
        let channels = x.shape[x.dim(1)?];
        if self.channels == 0 || !channels.is_multiple_of(self.channels) {
            return Err(OpError::Invalid(format!(
                "{channels} channels are not groups of {}",
                self.channels
            )));
        }
        for t in &inputs[1..] {
            same_dtype(x, t)?;
            if t.shape != [channels] {
                return Err(OpError::ShapeMismatch {
                    lhs: x.shape.clone(),
                    rhs: t.shape.clone(),
                    why: "the scale and bias have one value a channel",
                });
            }
        }
        Ok(vec![x.clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let shape = &inputs[0].shape;
        let n = rule.factor("n", shape[0], FactorKind::Parallel);
        let g = rule.factor("g", shape[1] / self.channels, FactorKind::Parallel);
        let c = rule.factor("c", self.channels, FactorKind::Whole);
        let positions = factors::named(&mut rule, &factors::DIMS, &shape[2..], |_| true);
        let full = || {
            let mut dims = vec![vec![n], vec![g, c]];
            dims.extend(positions.iter().map(|&p| vec![p]));
            dims
        };
        rule.input_products(full());
        rule.input_products(vec![vec![g, c]]);
        rule.input_products(vec![vec![g, c]]);
        rule.output_products(full());
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 8.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let mut x = inputs[0].to_f64s();
        let shape = inputs[0].shape();
        let positions = elements(&shape[2..]) as usize;
        let n = self.channels as usize * positions;
        let groups = (shape[1] / self.channels) as usize;
        for (row, group) in x.chunks_mut(n.max(1)).enumerate() {
            let mean = group.iter().sum::<f64>() / n as f64;
            let variance = group.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            let deviation = (variance + f64::from(self.epsilon)).sqrt();
            let first = row % groups * self.channels as usize;
            for (i, v) in group.iter_mut().enumerate() {
                let channel = first + i / positions;
                let [scale, bias] = [inputs[1].f64_at(channel), inputs[2].f64_at(channel)];
                *v = (*v - mean) / deviation * scale + bias;
            }
        }
        Ok(vec![floats(inputs[0].ty(), shape, &x)?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let inputs = [v.gradient()?, v.inputs[0], v.inputs[1]];
        let gradients = v.push_multi(GroupNormGrad { norm: self.clone() }, &inputs)?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
