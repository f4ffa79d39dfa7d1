//! The gradient of a convolution by its weight.
//!
//! - **ONNX**: none; differentiating [`Conv`](super::conv::Conv) makes it.
//! - **Semantics**: `dweight[m, c, w..] = Σ_{n, p..} g[n, m, p..] · x[n, c, p·stride + w·dilation -
//!   before]` within each group of channels. The gradient may have fewer positions than the window
//!   has: then only these count.
//! - **Split**: `n (g m) p.., n (g c) s.. -> (g m) c w..`. Groups, `m` and `c` are parallel, `n` is a sum,
//!   spatial dimensions stay whole. Linear in either operand.

use super::lanes::floats;
use super::{DecoderEntry, OpDef, Work, expect_inputs, same_dtype, window};
use crate::graph::{TensorType, elements};
use crate::program::{Kernel, Window};
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::unravel;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a convolution by its weight. Inputs: gradient, x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvWeightGrad {
    /// Strides, padding, dilation.
    pub window: Window,
    /// The window's extents.
    pub extents: Vec<u64>,
    /// Groups of channels.
    pub groups: u64,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for ConvWeightGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let (g, x) = (&inputs[0], &inputs[1]);
        let dtype = same_dtype(g, x)?;
        if !dtype.is_float() {
            return Err(OpError::UnsupportedType { found: dtype });
        }
        window::check_rank(1, x)?;
        let whole = window::output(&x.shape[2..], &self.extents, &self.window, false)?;
        let reached = g.rank() == x.rank() && g.shape[2..].iter().zip(&whole).all(|(p, n)| p <= n);
        let grouped = |t: &TensorType| t.shape[1].checked_rem(self.groups) == Some(0);
        if !reached || g.shape[0] != x.shape[0] || !grouped(g) || !grouped(x) {
            return Err(OpError::ShapeMismatch {
                lhs: g.shape.clone(),
                rhs: x.shape.clone(),
                why: "the gradient has the input's samples and groups, and no more positions than \
                      the window",
            });
        }
        let shape = [&[g.shape[1], x.shape[1] / self.groups], &self.extents[..]].concat();
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let (x, weight) = (&inputs[1].shape, &outputs[0].shape);
        let mut rule = RuleBuilder::new();
        let n = rule.factor("n", x[0], FactorKind::Reduce(ReduceKind::Sum));
        let g = rule.factor("g", self.groups, FactorKind::Parallel);
        let m = rule.factor("m", weight[0] / self.groups.max(1), FactorKind::Parallel);
        let c = rule.factor("c", weight[1], FactorKind::Parallel);
        let whole = || std::iter::repeat_n(Vec::new(), x.len() - 2);
        rule.input_products([vec![n], vec![g, m]].into_iter().chain(whole()).collect());
        rule.input_products([vec![n], vec![g, c]].into_iter().chain(whole()).collect());
        rule.output_products([vec![g, m], vec![c]].into_iter().chain(whole()).collect());
        rule.linear([0]);
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let (g, x, weight) = (&inputs[0].shape, &inputs[1].shape, &outputs[0].shape);
        // The local number of groups, when the types are local.
        let batch = x[1].checked_div(weight[1]).unwrap_or(0);
        let m = weight[0].checked_div(batch).unwrap_or(0);
        let n = elements(&weight[1..]);
        let k = g[0].saturating_mul(elements(&g[2..]));
        Work::conv([batch, m, n, k], inputs, outputs)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (g, x) = (inputs[0].to_f64s(), inputs[1].to_f64s());
        let (tg, tx) = (inputs[0].shape(), inputs[1].shape());
        let (out, spatial) = (&tg[2..], &tx[2..]);
        let groups = self.groups as usize;
        let (m, c) = (tg[1] as usize / groups, tx[1] as usize / groups);
        let (positions, area) = (elements(out) as usize, elements(spatial) as usize);
        let taps_extent = elements(&self.extents) as usize;
        let shape = [&[tg[1], tx[1] / self.groups], &self.extents[..]].concat();
        let ty = TensorType::new(inputs[0].dtype(), shape);
        let mut dw = vec![0.0; Tensor::zeros(ty.clone())?.len()];
        // Without elements there may still be too many positions to loop over.
        let positions = if g.is_empty() { 0 } else { positions };
        for p in 0..positions {
            let taps = window::taps(&unravel(p, out), spatial, &self.extents, &self.window);
            for plane in 0..tg[0] as usize * groups * m {
                // Output channels are numbered through the groups of all samples.
                let (group, o) = (plane / m, plane % (groups * m));
                let g = g[plane * positions + p];
                for i in 0..c {
                    let (w, from) = ((o * c + i) * taps_extent, (group * c + i) * area);
                    for &(k, at) in &taps {
                        dw[w + k] += g * x[from + at];
                    }
                }
            }
        }
        Ok(vec![floats(&ty, &ty.shape, &dw)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::ConvWeightGrad(self.clone())
    }
}
