//! Padding and cropping.
//!
//! - **ONNX**: Pad (since 2; widths and value are attributes before 11, axes may be listed since
//!   18).
//! - **Semantics**: each dimension gets `before` and `after` elements; negative widths crop.
//! - **Split**: dimensions without padding are parallel, the others whole. Linear unless a constant
//!   other than 0 is written.

use super::decode::{Decoder, DecoderEntry, MAX_FOLDED_BYTES};
use super::gather_grad::GatherGrad;
use super::lanes::pick;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::program::kernel::PadMode;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::tensor::{strides, unravel};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A padding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pad {
    /// Elements in front, one number a dimension.
    pub before: Vec<i64>,
    /// Elements behind, one number a dimension.
    pub after: Vec<i64>,
    /// What the padding is.
    pub mode: PadMode,
    /// The value of constant padding.
    #[serde(with = "crate::number")]
    pub value: f64,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Pad", 2, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let widths = d
        .ints_or_input("pads", 1, "it decides the output's shape")?
        .ok_or(OpError::MissingAttribute { name: "pads" })?;
    let axes = match d.optional_ints(3, "it lists the axes")? {
        Some(axes) => {
            super::reshape::distinct_axes(&axes, ty.rank())?;
            axes.iter().map(|&a| ty.axis(a)).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..ty.rank()).collect(),
    };
    if widths.len() != 2 * axes.len() {
        let why = format!("{} numbers for {} axes", widths.len(), axes.len());
        return Err(OpError::BadAttribute { name: "pads", why });
    }
    let (mut before, mut after) = (vec![0; ty.rank()], vec![0; ty.rank()]);
    for (i, &axis) in axes.iter().enumerate() {
        (before[axis], after[axis]) = (widths[i], widths[i + axes.len()]);
    }
    let mode = match d.string_or("mode", "constant")?.as_str() {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => {
            let why = format!("expected constant, reflect, edge or wrap, found {other:?}");
            return Err(OpError::BadAttribute { name: "mode", why });
        }
    };
    let value = if d.optional(2).is_some() {
        let value = d.known(2, "it is the value of the padding")?;
        if value.len() != 1 || value.dtype() != ty.dtype {
            return Err(OpError::Invalid("the padding's value is not one element".into()));
        }
        if !ty.dtype.is_float() && value.f64_at(0) as i128 != value.int_at(0) {
            return Err(OpError::Unsupported("a padding value beyond 2^53".into()));
        }
        value.f64_at(0)
    } else {
        f64::from(d.float_or("value", 0.0)?)
    };
    if before.iter().chain(&after).all(|&w| w == 0) {
        return Ok(vec![x]);
    }
    Ok(vec![d.push(Pad { before, after, mode, value }, &[x])?])
}

impl Pad {
    fn touches(&self, axis: usize) -> bool {
        self.before[axis] != 0 || self.after[axis] != 0
    }

    fn shape(&self, from: &[u64]) -> Result<Vec<u64>, OpError> {
        let extent = |(i, &n): (usize, &u64)| {
            let padded = i128::from(n) + i128::from(self.before[i]) + i128::from(self.after[i]);
            u64::try_from(padded).map_err(|_| OpError::BadAttribute {
                name: "pads",
                why: format!("axis {i} of extent {n} would get extent {padded}"),
            })
        };
        from.iter().enumerate().map(extent).collect()
    }

    /// The index in an axis of extent `n` that position `i` of the padded axis shows, if any.
    fn source(&self, i: i64, n: i64) -> Option<i64> {
        match self.mode {
            _ if (0..n).contains(&i) => Some(i),
            PadMode::Constant => None,
            PadMode::Edge => Some(i.clamp(0, n - 1)),
            PadMode::Wrap => Some(i.rem_euclid(n)),
            PadMode::Reflect if n == 1 => Some(0),
            PadMode::Reflect => {
                let i = i.rem_euclid(2 * (n - 1));
                Some(i.min(2 * (n - 1) - i))
            }
        }
    }
}

impl OpDef for Pad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let ty = &inputs[0];
        if self.before.len() != ty.rank() || self.after.len() != ty.rank() {
            let expected = self.before.len().to_string();
            return Err(OpError::Rank { index: 0, found: ty.rank(), expected });
        }
        let shape = self.shape(&ty.shape)?;
        if let Some(i) = (0..ty.rank()).find(|&i| {
            i128::from(self.before[i].min(self.after[i])) < -i128::from(ty.shape[i])
        }) {
            let why = format!("more is cropped than axis {i} of {ty} holds");
            return Err(OpError::BadAttribute { name: "pads", why });
        }
        let grows = |i: usize| self.before[i] > 0 || self.after[i] > 0;
        if self.mode != PadMode::Constant && (0..ty.rank()).any(|i| grows(i) && ty.shape[i] == 0) {
            return Err(OpError::Invalid("pads an empty axis with its own elements".into()));
        }
        Ok(vec![TensorType::new(ty.dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |i| self.touches(i));
        rule.input(dims.iter().copied().map(Some));
        rule.output(dims.iter().enumerate().map(|(i, &f)| (!self.touches(i)).then_some(f)));
        let zero = self.mode != PadMode::Constant || self.value == 0.0;
        if zero && inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let shape = self.shape(x.shape()).map_err(|e| EvalError::Invalid(e.to_string()))?;
        let value = Tensor::from_f64(TensorType::new(x.dtype(), []), |_| self.value)?;
        let strides = strides(x.shape());
        let padded = pick(&[x, &value], &shape, |i| {
            let mut index = 0;
            for (d, c) in unravel(i, &shape).into_iter().enumerate() {
                match self.source(c as i64 - self.before[d], x.shape()[d] as i64) {
                    Some(at) => index += at as usize * strides[d],
                    None => return (1, 0),
                }
            }
            (0, index)
        })?;
        Ok(vec![padded])
    }

    /// Crops what was padded and pads with zeros what was cropped; padding that shows elements gives its
    /// gradient to those.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (mut g, shape) = (v.gradient()?, v.shape(v.inputs[0]));
        if self.mode == PadMode::Constant {
            let negated = |widths: &[i64]| widths.iter().map(|w| w.saturating_neg()).collect();
            let (before, after) = (negated(&self.before), negated(&self.after));
            let mode = PadMode::Constant;
            return Ok(vec![Some(v.push(Self { before, after, mode, value: 0.0 }, &[g])?)]);
        }
        for (axis, &extent) in shape.iter().enumerate().filter(|&(axis, _)| self.touches(axis)) {
            let padded = v.shape(g)[axis];
            if padded.saturating_mul(DType::I64.bytes()) > MAX_FOLDED_BYTES {
                let why = format!("it pads axis {axis} with its own elements, {padded} in all");
                return Err(OpError::NotDifferentiable { why });
            }
            let shown = (0..padded as i64)
                .map(|i| self.source(i - self.before[axis], extent as i64).unwrap_or(0));
            let shown = v.constant(Tensor::vector(shown.collect::<Vec<i64>>()));
            g = v.push(GatherGrad { axis, extent }, &[shown, g])?;
        }
        Ok(vec![Some(g)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Pad { before: self.before.clone(), mode: self.mode, value: self.value }
    }
}
