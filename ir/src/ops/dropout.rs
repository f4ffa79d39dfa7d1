//! Dropout, and operators that are random.
//!
//! Two kinds of dropout: that of a model that is run, whose draws follow one another, is made of other ops;
//! the op of this file, for a model that is trained, draws for each element on its own, so that it may be
//! split.
//!
//! - **ONNX**: Dropout (since 7; training by an input since 12). Bernoulli, Multinomial,
//!   RandomNormal, RandomNormalLike, RandomUniform, RandomUniformLike are errors that say so.
//! - **Semantics**: each element is 0 with probability `ratio` and grows by `1 / (1 - ratio)` otherwise. A
//!   model that is run passes its input through, unless the file says that it trains; without a seed
//!   that is random, and no plan computes it twice. A model that is trained drops whatever the file says:
//!   exporters leave out the dropout of a model in evaluation mode, and write the mode as it was when
//!   they ran. The op drops element `i` of the whole tensor in step `t` if the number that the
//!   generator Philox4x32-10 gives for the key `seed` and the counter `i, t` says so. The importer makes
//!   the node's place in the model the seed, and the step 0; what makes a training step fills in the rest.
//! - **Split**: all dimensions are parallel: a rank knows which elements it holds. Linear in x.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::fill::Fill;
use super::uniform::Uniform;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn as F;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Dropout. Inputs: x, and the number of the step, a scalar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The share of elements that are dropped, below 1.
    #[serde(with = "crate::number")]
    pub ratio: f64,
    /// What decides, with the step, which ones.
    pub seed: u64,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Dropout", 7, dropout)
        .results(&[ResultType::SameAs(0), ResultType::Element(DType::Bool)]),
    DecoderEntry::onnx("Bernoulli", 15, random),
    DecoderEntry::onnx("Multinomial", 7, random),
    DecoderEntry::onnx("RandomNormal", 1, random),
    DecoderEntry::onnx("RandomNormalLike", 1, random),
    DecoderEntry::onnx("RandomUniform", 1, random),
    DecoderEntry::onnx("RandomUniformLike", 1, random),
];

type Outputs = Result<Vec<ValueId>, OpError>;

fn random(_: &mut Decoder<'_>) -> Outputs {
    Err(OpError::Unsupported("its result is random".into()))
}

/// A mask that is asked for says which elements were kept.
fn dropout(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    if d.drops {
        return dropped(d, x, 1);
    }
    let training = match d.optional(2) {
        None => false,
        Some(_) => d.known(2, "training changes the result")?.to_i64s().contains(&1),
    };
    let ratio = match d.optional(1) {
        Some(_) if training => d.known(1, "it changes the result")?.to_f64s().first().copied(),
        _ => None,
    };
    let ratio = ratio.unwrap_or(0.5);
    if training && ratio != 0.0 {
        return drop_some(d, x, ratio);
    }
    kept(d, x)
}

/// A tensor of which nothing is dropped, and the mask that says so.
fn kept(d: &mut Decoder<'_>, x: ValueId) -> Outputs {
    if d.outputs < 2 {
        return Ok(vec![x]);
    }
    let mask = d.push(Fill { dtype: mask_type(d, x), shape: d.shape(x), value: 1.0 }, &[])?;
    Ok(vec![x, mask])
}

/// Until opset 10 the mask of ONNX's own operator had the input's type.
fn mask_type(d: &Decoder<'_>, x: ValueId) -> DType {
    if d.op_type == "Dropout" && d.opset < 10 { d.ty(x).dtype } else { DType::Bool }
}

/// A tensor with elements dropped, and the mask if it is asked for, in a model that is trained. Input
/// `index` is the ratio, which was an attribute at first.
pub(super) fn dropped(d: &mut Decoder<'_>, x: ValueId, index: usize) -> Outputs {
    let ratio = match d.optional(index) {
        Some(v) => d.graph.constant_of(v).and_then(|ratio| ratio.to_f64s().first().copied()),
        None => Some(f64::from(d.float_or("ratio", 0.5)?)),
    };
    let Some(ratio) = ratio else {
        let why = "the share of elements that it drops is not a constant; plan without dropout";
        return Err(OpError::Unsupported(why.into()));
    };
    if ratio == 0.0 {
        return kept(d, x);
    }
    let op = Dropout { ratio, seed: d.graph.nodes.len() as u64 };
    let step = d.scalar(DType::I64, 0.0)?;
    // Other elements are dropped in other steps, so nothing is folded.
    let drop = |d: &mut Decoder<'_>, x| {
        d.graph.push(d.name, op.clone().into(), &[x, step], &[]).map(|results| results[0])
    };
    let result = drop(d, x)?;
    if d.outputs < 2 {
        return Ok(vec![result]);
    }
    let ones = d.push(Fill { dtype: DType::F32, shape: d.shape(x), value: 1.0 }, &[])?;
    let (dropped, zero) = (drop(d, ones)?, d.scalar(DType::F32, 0.0)?);
    let mask = d.map(F::Greater, &[dropped, zero])?;
    let mask = d.cast(mask, mask_type(d, x))?;
    Ok(vec![result, mask])
}

fn drop_some(d: &mut Decoder<'_>, x: ValueId, ratio: f64) -> Outputs {
    if !(0.0..1.0).contains(&ratio) {
        return Err(OpError::Invalid(format!("drops a share of {ratio}")));
    }
    let seed = d.int("seed")?.and_then(|seed| u32::try_from(seed).ok());
    let Some(seed) = seed else {
        return Err(OpError::Unsupported("dropout in training mode without a seed is random".into()));
    };
    let ty = d.ty(x);
    let numbers = d.push(Uniform { dtype: DType::F64, shape: ty.shape, seed }, &[])?;
    let share = d.scalar(DType::F64, ratio)?;
    let mask = d.map(F::GreaterOrEqual, &[numbers, share])?;
    let (grown, none) = (d.scale(x, 1.0 / (1.0 - ratio))?, d.scalar(ty.dtype, 0.0)?);
    Ok(vec![d.map(F::Where, &[mask, grown, none])?, mask])
}

/// Four random words for a counter and a key: Philox4x32-10 of Salmon et al. (2011).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let product = |x: u32, y: u32| {
        let product = u64::from(x) * u64::from(y);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let (high0, low0) = product(0xd251_1f53, counter[0]);
        let (high1, low1) = product(0xcd9e_8d57, counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

impl Dropout {
    /// What element `index` of the whole tensor is multiplied by in a step.
    pub fn factor(&self, step: i64, index: u64) -> f64 {
        let words = |x: u64| [x as u32, (x >> 32) as u32];
        let ([i, j], [s, t]) = (words(index / 4), words(step as u64));
        let word = philox([i, j, s, t], words(self.seed))[(index % 4) as usize];
        let dropped = f64::from(word) < self.ratio * 2f64.powi(32);
        if dropped { 0.0 } else { 1.0 / (1.0 - self.ratio) }
    }
}

impl OpDef for Dropout {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let (x, step) = (&inputs[0], &inputs[1]);
        if !x.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: x.dtype });
        }
        if !matches!(step.dtype, DType::I64 | DType::I32 | DType::U32) {
            return Err(OpError::UnsupportedType { found: step.dtype });
        }
        if step.rank() != 0 {
            return Err(OpError::Rank { index: 1, found: step.rank(), expected: "0".into() });
        }
        if !(0.0..1.0).contains(&self.ratio) {
            return Err(OpError::Invalid(format!("drops a share of {}", self.ratio)));
        }
        Ok(vec![x.clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |_| false);
        rule.input(dims.iter().copied().map(Some));
        rule.input([]);
        rule.output(dims.iter().copied().map(Some));
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 20.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, step) = (inputs[0], inputs[1].int_at(0) as i64);
        let y = |i: usize| x.f64_at(i) * self.factor(step, i as u64);
        Ok(vec![Tensor::from_f64(x.ty().clone(), y)?])
    }

    /// Drops the same elements of the gradient.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let inputs = [v.gradient()?, v.inputs[1]];
        Ok(vec![Some(v.push(self.clone(), &inputs)?), None])
    }

    fn lower(&self) -> Kernel {
        Kernel::Dropout(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_the_published_ones() {
        // The known answers of the authors' implementation.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn the_ratio_is_dropped_and_steps_differ() {
        let op = Dropout { ratio: 0.25, seed: 3 };
        let kept = |step| (0..10_000).map(|i| op.factor(step, i) > 0.0).collect::<Vec<_>>();
        let count = kept(0).iter().filter(|kept| **kept).count();
        assert!((7_300..7_700).contains(&count), "{count}");
        let both = kept(0).iter().zip(kept(1)).filter(|(a, b)| **a && *b).count();
        assert!((5_400..5_850).contains(&both), "{both}");
    }
}
