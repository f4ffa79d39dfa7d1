//! The gradient of group normalisation.
//!
//! - **ONNX**: none; differentiating [`GroupNorm`] makes it.
//! - **Semantics**: inputs are the gradient of the result, x and the scale; results are the gradients of x,
//!   of the scale and of the bias, as of [`normalize_grad`](super::normalize_grad) with a group of one
//!   sample as a row.
//! - **Split**: groups are parallel; samples split dx, and give partial sums of the others; the channels of
//!   a group and the positions stay whole. Linear in the gradient.

use super::group_norm::GroupNorm;
use super::lanes::floats;
use super::normalize_grad::row_gradient;
use super::{DecoderEntry, OpDef, Work, expect_gradient, expect_inputs, factors};
use crate::graph::{TensorType, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a group normalisation. Inputs: gradient, x, scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNormGrad {
    /// The normalisation.
    pub norm: GroupNorm,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for GroupNormGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 3)?;
        let (x, scale) = (&inputs[1], &inputs[2]);
        self.norm.infer(&[x.clone(), scale.clone(), scale.clone()], &[None; 3])?;
        expect_gradient(&inputs[0], x)?;
        Ok(vec![x.clone(), scale.clone(), scale.clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let shape = &inputs[1].shape;
        let n = rule.factor("n", shape[0], FactorKind::Reduce(ReduceKind::Sum));
        let g = rule.factor("g", shape[1] / self.norm.channels, FactorKind::Parallel);
        let c = rule.factor("c", self.norm.channels, FactorKind::Whole);
        let positions = factors::named(&mut rule, &factors::DIMS, &shape[2..], |_| true);
        let full = || {
            let positions = positions.iter().map(|&p| vec![p]);
            [vec![n], vec![g, c]].into_iter().chain(positions).collect::<Vec<_>>()
        };
        rule.input_products(full());
        rule.input_products(full());
        rule.input_products(vec![vec![g, c]]);
        rule.output_products(full());
        rule.output_products(vec![vec![g, c]]);
        rule.output_products(vec![vec![g, c]]);
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 16.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (g, mut x, scale) = (inputs[0].to_f64s(), inputs[1].to_f64s(), inputs[2].to_f64s());
        let shape = inputs[1].shape();
        let positions = elements(&shape[2..]) as usize;
        let n = self.norm.channels as usize * positions;
        let groups = (shape[1] / self.norm.channels) as usize;
        let (mut dx, mut dscale) = (Vec::new(), vec![0.0; scale.len()]);
        let mut dbias = dscale.clone();
        for (row, (x, g)) in x.chunks_mut(n.max(1)).zip(g.chunks(n.max(1))).enumerate() {
            let channel = |i: usize| row % groups * self.norm.channels as usize + i / positions;
            let h: Vec<f64> = g.iter().enumerate().map(|(i, g)| g * scale[channel(i)]).collect();
            dx.extend(row_gradient(x, &h, self.norm.epsilon, false));
            for (i, (x, g)) in x.iter().zip(g).enumerate() {
                dscale[channel(i)] += g * x;
                dbias[channel(i)] += g;
            }
        }
        let (tx, ts) = (inputs[1].ty(), inputs[2].ty());
        Ok(vec![
            floats(tx, shape, &dx)?,
            floats(ts, &ts.shape, &dscale)?,
            floats(ts, &ts.shape, &dbias)?,
        ])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
