//! Convolution.
//!
//! - **ONNX**: Conv (since 1; its bias becomes an addition).
//! - **Semantics**: `out[n, m, p..] = Σ_{c, w..} x[n, c, p·stride + w·dilation - before] ·
//!   weight[m, c, w..]` within each group of channels; the input is 0 outside.
//! - **Split**: `n (g c) s.., (g m) c w.. -> n (g m) p..`. Groups are parallel, `c` is a sum,
//!   spatial dimensions stay whole. Linear in either operand.

use super::conv_transpose::ConvTranspose;
use super::conv_weight_grad::ConvWeightGrad;
use super::decode::{Decoder, DecoderEntry};
use super::lanes::floats;
use super::{Build, OpDef, Vjp, Work, expect_inputs, same_dtype, window};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::{Kernel, Window};
use crate::scalar::ScalarFn;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::unravel;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A convolution of `[N, C, spatial..]` with `[M, C / groups, window..]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// Strides, padding, dilation.
    pub window: Window,
    /// Groups of channels.
    pub groups: u64,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Conv", 1, decode)];

pub(super) fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (x, weight) = (d.input(0)?, d.input(1)?);
    Ok(vec![convolve(d, x, weight, d.optional(2))?])
}

/// Convolves as the node's attributes say. The operands may be others than the node's.
pub fn convolve(
    d: &mut Decoder<'_>,
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let (tx, tw) = (d.ty(x), d.ty(weight));
    let extents = kernel(d, &tx, &tw)?;
    let groups = groups(d)?;
    let window = window::decode(d, &tx.shape[2..], &extents)?;
    let result = d.push(Conv { window, groups }, &[x, weight])?;
    add_bias(d, result, bias)
}

/// The window's extents, with ranks checked and the attribute that repeats the extents.
pub fn kernel(d: &Decoder<'_>, x: &TensorType, weight: &TensorType) -> Result<Vec<u64>, OpError> {
    check_ranks(x, weight)?;
    let extents = weight.shape[2..].to_vec();
    let stated = window::extents(d, "kernel_shape", extents.len())?;
    if let Some(stated) = stated.filter(|stated| *stated != extents) {
        let why = format!("{stated:?}, but the weight is {weight}");
        return Err(OpError::BadAttribute { name: "kernel_shape", why });
    }
    Ok(extents)
}

/// The number of groups of channels.
pub fn groups(d: &Decoder<'_>) -> Result<u64, OpError> {
    let groups = d.int_or("group", 1)?;
    u64::try_from(groups).map_err(|_| OpError::BadAttribute {
        name: "group",
        why: format!("{groups} is negative"),
    })
}

/// Adds one value a channel to a convolution's result, if there is a bias.
pub fn add_bias(
    d: &mut Decoder<'_>,
    result: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let Some(bias) = bias else { return Ok(result) };
    let ty = d.ty(result);
    if d.shape(bias) != [ty.shape[1]] {
        return Err(OpError::ShapeMismatch {
            lhs: ty.shape,
            rhs: d.shape(bias),
            why: "the bias has one value an output channel",
        });
    }
    let mut along = vec![1; ty.rank() - 1];
    along[0] = ty.shape[1];
    let bias = d.reshape(bias, along)?;
    d.map(ScalarFn::Add, &[result, bias])
}

fn check_ranks(x: &TensorType, weight: &TensorType) -> Result<(), OpError> {
    window::check_rank(0, x)?;
    if weight.rank() != x.rank() {
        let expected = format!("{}, as its input", x.rank());
        return Err(OpError::Rank { index: 1, found: weight.rank(), expected });
    }
    Ok(())
}

impl OpDef for Conv {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let (x, weight) = (&inputs[0], &inputs[1]);
        let dtype = same_dtype(x, weight)?;
        if !dtype.is_float() {
            return Err(OpError::UnsupportedType { found: dtype });
        }
        check_ranks(x, weight)?;
        let (c, m, g) = (x.shape[1], weight.shape[0], self.groups);
        if g == 0 || m % g != 0 || weight.shape[1].checked_mul(g) != Some(c) {
            return Err(OpError::ShapeMismatch {
                lhs: x.shape.clone(),
                rhs: weight.shape.clone(),
                why: "groups must divide the channels, and the weight have as many as a group",
            });
        }
        let spatial = window::output(&x.shape[2..], &weight.shape[2..], &self.window, false)?;
        let mut shape = vec![x.shape[0], m];
        shape.extend(spatial);
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let (x, weight) = (&inputs[0].shape, &inputs[1].shape);
        let mut rule = RuleBuilder::new();
        let n = rule.factor("n", x[0], FactorKind::Parallel);
        let g = rule.factor("g", self.groups, FactorKind::Parallel);
        let m = rule.factor("m", weight[0] / self.groups.max(1), FactorKind::Parallel);
        let c = rule.factor("c", weight[1], FactorKind::Reduce(ReduceKind::Sum));
        let whole = || std::iter::repeat_n(Vec::new(), x.len() - 2);
        rule.input_products([vec![n], vec![g, c]].into_iter().chain(whole()).collect());
        rule.input_products([vec![g, m], vec![c]].into_iter().chain(whole()).collect());
        rule.output_products([vec![n], vec![g, m]].into_iter().chain(whole()).collect());
        rule.linear([0]);
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let (x, weight, out) = (&inputs[0].shape, &inputs[1].shape, &outputs[0].shape);
        // The local number of groups, when the types are local.
        let batch = x[1].checked_div(weight[1]).unwrap_or(0);
        let m = out[0].saturating_mul(elements(&out[2..]));
        let n = weight[0].checked_div(batch).unwrap_or(0);
        let k = elements(&weight[1..]);
        Work::conv([batch, m, n, k], inputs, outputs)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, weight) = (inputs[0].to_f64s(), inputs[1].to_f64s());
        let (tx, tw) = (inputs[0].shape(), inputs[1].shape());
        let (spatial, extents) = (&tx[2..], &tw[2..]);
        let out = window::output(spatial, extents, &self.window, false)
            .map_err(|e| EvalError::Invalid(e.to_string()))?;
        let (samples, channels) = (tx[0] as usize, tx[1] as usize);
        let (m, c) = (tw[0] as usize, tw[1] as usize);
        // As kernels do, so that evaluating a rank's part is right too.
        let groups = channels.checked_div(c).unwrap_or(0);
        let positions = elements(&out) as usize;
        let (area, taps_extent) = (elements(spatial) as usize, elements(extents) as usize);
        let shape = [&[tx[0], tw[0]], &out[..]].concat();
        let ty = TensorType::new(inputs[0].dtype(), shape.clone());
        let mut y = vec![0.0; Tensor::zeros(ty)?.len()];
        if let Some(group_outputs) = m.checked_div(groups).map(|n| n.max(1)) {
            for p in 0..positions {
                let taps = window::taps(&unravel(p, &out), spatial, extents, &self.window);
                for s in 0..samples {
                    for o in 0..m {
                        let group = o / group_outputs;
                        let sum: f64 = (0..c)
                            .map(|i| {
                                let w = (o * c + i) * taps_extent;
                                let plane = (s * channels + group * c + i) * area;
                                let product = |&(k, at): &(usize, usize)| {
                                    weight[w + k] * x[plane + at]
                                };
                                taps.iter().map(product).sum::<f64>()
                            })
                            .sum();
                        y[(s * m + o) * positions + p] = sum;
                    }
                }
            }
        }
        Ok(vec![floats(inputs[0].ty(), &shape, &y)?])
    }

    /// Of the input by the transposed convolution.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x, weight) = (v.gradient()?, v.inputs[0], v.inputs[1]);
        let (tx, tw, out) = (v.shape(x), v.shape(weight), v.shape(g));
        let mut gradients = vec![None, None];
        if v.wants(0) {
            let grouped = [&[self.groups, tw[0] / self.groups], &tw[1..]].concat();
            let grouped = v.reshape(weight, grouped)?;
            let extra = window::unreached(&tx[2..], &tw[2..], &out[2..], &self.window);
            let op = ConvTranspose { window: self.window.clone(), extra };
            gradients[0] = Some(v.push(op, &[g, grouped])?);
        }
        if v.wants(1) {
            let (window, extents) = (self.window.clone(), tw[2..].to_vec());
            let op = ConvWeightGrad { window, extents, groups: self.groups };
            gradients[1] = Some(v.push(op, &[g, x])?);
        }
        Ok(gradients)
    }

    fn lower(&self) -> Kernel {
        Kernel::Conv { window: self.window.clone(), groups: self.groups }
    }
}
