//! Transposed convolution.
//!
//! - **ONNX**: ConvTranspose (since 1; its bias becomes an addition).
//! - **Semantics**: `out[n, m, p..] = Σ x[n, c, q..] · weight[c, m, w..]` over all channels `c` of
//!   `m`'s group and all `q` and `w` with `p = q·stride + w·dilation - before`.
//! - **Split**: `n (g c) s.., g c m w.. -> n (g m) p..`. Groups are parallel, `c` is a sum,
//!   spatial dimensions stay whole. Linear in either operand.
//!
//! The weight's channels are taken apart into groups, so that a rank's part of it says how many
//! groups the rank holds.

use super::conv::{Conv, add_bias, groups, kernel};
use super::conv_weight_grad::ConvWeightGrad;
use super::decode::{Decoder, DecoderEntry};
use super::lanes::floats;
use super::window::{self, AutoPad};
use super::{Build, OpDef, Vjp, Work, expect_inputs, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::{Kernel, Window};
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::unravel;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A transposed convolution of `[N, G · C, spatial..]` with `[G, C, M, window..]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvTranspose {
    /// Strides and dilation; padding is what is cut off the result.
    pub window: Window,
    /// Positions behind the result that no window reaches, one a spatial dimension.
    pub extra: Vec<u64>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("ConvTranspose", 1, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (x, weight) = (d.input(0)?, d.input(1)?);
    let (tx, tw) = (d.ty(x), d.ty(weight));
    let extents = kernel(d, &tx, &tw)?;
    let groups = groups(d)?;
    if groups == 0 || tw.shape[0] % groups != 0 {
        let why = format!("{groups} groups of {} channels", tw.shape[0]);
        return Err(OpError::BadAttribute { name: "group", why });
    }
    let op = padding(d, &tx.shape[2..], &extents)?;
    let grouped = [&[groups, tw.shape[0] / groups], &tw.shape[1..]].concat();
    let weight = d.reshape(weight, grouped)?;
    let result = d.push(op, &[x, weight])?;
    Ok(vec![add_bias(d, result, d.optional(2))?])
}

/// The op with its padding as numbers: what `output_shape` or `auto_pad` ask for is cut off, or
/// added behind if even the whole result is smaller.
fn padding(
    d: &Decoder<'_>,
    spatial: &[u64],
    extents: &[u64],
) -> Result<ConvTranspose, OpError> {
    let rank = spatial.len();
    let mut window = window::explicit(d, rank)?;
    let mut extra =
        window::extents(d, "output_padding", rank)?.unwrap_or_else(|| vec![0; rank]);
    let auto = AutoPad::decode(d)?;
    let shape = match window::extents(d, "output_shape", rank)? {
        Some(shape) => Some(shape),
        None if matches!(auto, AutoPad::SameUpper | AutoPad::SameLower) => {
            let strides = window.strides.iter().zip(spatial);
            Some(strides.map(|(&s, &n)| n.saturating_mul(s)).collect())
        }
        None => None,
    };
    if auto == AutoPad::Valid || shape.is_some() {
        (window.before, window.after) = (vec![0; rank], vec![0; rank]);
    }
    if let Some(shape) = shape {
        let all = window::transposed_output(spatial, extents, &window, &extra)?;
        for i in 0..rank {
            (window.before[i], window.after[i]) = auto.divide(all[i].saturating_sub(shape[i]));
            extra[i] = extra[i].saturating_add(shape[i].saturating_sub(all[i]));
        }
    }
    Ok(ConvTranspose { window, extra })
}

impl ConvTranspose {
    fn shape(&self, x: &[u64], weight: &[u64]) -> Result<Vec<u64>, OpError> {
        let spatial =
            window::transposed_output(&x[2..], &weight[3..], &self.window, &self.extra)?;
        let channels = weight[0].checked_mul(weight[2]);
        let channels = channels.ok_or_else(|| OpError::Invalid("has a result too large".into()))?;
        Ok([&[x[0], channels], &spatial[..]].concat())
    }
}

impl OpDef for ConvTranspose {
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
        window::check_rank(0, x)?;
        if weight.rank() != x.rank() + 1 {
            let expected = format!("{}, one more than its input", x.rank() + 1);
            return Err(OpError::Rank { index: 1, found: weight.rank(), expected });
        }
        if weight.shape[0].checked_mul(weight.shape[1]) != Some(x.shape[1]) {
            return Err(OpError::ShapeMismatch {
                lhs: x.shape.clone(),
                rhs: weight.shape.clone(),
                why: "the weight has the input's channels",
            });
        }
        Ok(vec![TensorType::new(dtype, self.shape(&x.shape, &weight.shape)?)])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let (x, weight) = (&inputs[0].shape, &inputs[1].shape);
        let mut rule = RuleBuilder::new();
        let n = rule.factor("n", x[0], FactorKind::Parallel);
        let g = rule.factor("g", weight[0], FactorKind::Parallel);
        let m = rule.factor("m", weight[2], FactorKind::Parallel);
        let c = rule.factor("c", weight[1], FactorKind::Reduce(ReduceKind::Sum));
        let whole = || std::iter::repeat_n(Vec::new(), x.len() - 2);
        rule.input_products([vec![n], vec![g, c]].into_iter().chain(whole()).collect());
        rule.input_products([vec![g], vec![c], vec![m]].into_iter().chain(whole()).collect());
        rule.output_products([vec![n], vec![g, m]].into_iter().chain(whole()).collect());
        rule.linear([0]);
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let (x, weight) = (&inputs[0].shape, &inputs[1].shape);
        let m = x[0].saturating_mul(elements(&x[2..]));
        let (batch, k, n) = (weight[0], weight[1], elements(&weight[2..]));
        Work::conv([batch, m, n, k], inputs, outputs)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, weight) = (inputs[0].to_f64s(), inputs[1].to_f64s());
        let (tx, tw) = (inputs[0].shape(), inputs[1].shape());
        let shape = self.shape(tx, tw).map_err(|e| EvalError::Invalid(e.to_string()))?;
        let (spatial, out, extents) = (&tx[2..], &shape[2..], &tw[3..]);
        let (groups, channels, m) = (tw[0] as usize, tw[1] as usize, tw[2] as usize);
        let (area, positions) = (elements(spatial) as usize, elements(out) as usize);
        let taps_extent = elements(extents) as usize;
        let ty = TensorType::new(inputs[0].dtype(), shape.clone());
        let mut y = vec![0.0; Tensor::zeros(ty)?.len()];
        // Without elements there may still be too many positions to loop over.
        for q in 0..if x.is_empty() { 0 } else { area } {
            // What a window at `q` reads in a convolution is what `q` adds to here.
            let taps = window::taps(&unravel(q, spatial), out, extents, &self.window);
            for s in 0..tx[0] as usize {
                for (g, c) in (0..groups).flat_map(|g| (0..channels).map(move |c| (g, c))) {
                    let value = x[((s * groups + g) * channels + c) * area + q];
                    for o in 0..m {
                        let w = ((g * channels + c) * m + o) * taps_extent;
                        let plane = ((s * groups + g) * m + o) * positions;
                        for &(k, p) in &taps {
                            y[plane + p] += value * weight[w + k];
                        }
                    }
                }
            }
        }
        Ok(vec![floats(inputs[0].ty(), &shape, &y)?])
    }

    /// Of the input by a convolution: the positions behind `extra` may make it longer. Of the weight as
    /// that convolution's, with input and gradient in each other's place.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x, weight) = (v.gradient()?, v.inputs[0], v.inputs[1]);
        let (tx, tw) = (v.shape(x), v.shape(weight));
        let (window, groups) = (self.window.clone(), tw[0]);
        let mut gradients = vec![None, None];
        if v.wants(0) {
            let flat = [&[tx[1]], &tw[2..]].concat();
            let flat = v.reshape(weight, flat)?;
            let mut dx = v.push(Conv { window: window.clone(), groups }, &[g, flat])?;
            for (axis, &n) in tx.iter().enumerate().skip(2) {
                dx = v.slice(dx, axis, 0, n)?;
            }
            gradients[0] = Some(dx);
        }
        if v.wants(1) {
            let op = ConvWeightGrad { window, extents: tw[3..].to_vec(), groups };
            let flat = v.push(op, &[x, g])?;
            gradients[1] = Some(v.reshape(flat, tw)?);
        }
        Ok(gradients)
    }

    fn lower(&self) -> Kernel {
        Kernel::ConvTranspose(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_overlap_and_gaps_are_zero() {
        let line = |stride, extra| ConvTranspose {
            window: Window {
                strides: vec![stride],
                dilations: vec![1],
                before: vec![0],
                after: vec![0],
            },
            extra: vec![extra],
        };
        let x = Tensor::new([1, 1, 2], vec![1f32, 10.0]).unwrap();
        let w = Tensor::new([1, 1, 1, 2], vec![2f32, 3.0]).unwrap();
        let y = |op: ConvTranspose| op.eval(&[&x, &w]).unwrap().remove(0).to_f64s();
        assert_eq!(y(line(1, 0)), [2.0, 23.0, 30.0]);
        assert_eq!(y(line(3, 1)), [2.0, 3.0, 0.0, 20.0, 30.0, 0.0]);
    }
}
