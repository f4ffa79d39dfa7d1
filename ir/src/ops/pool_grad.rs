//! The gradient of pooling.
//!
//! - **ONNX**: none; differentiating [`Pool`] makes it.
//! - **Semantics**: inputs are the gradient of the result, and x for maxima; the result is the gradient of
//!   x. What a window has got goes to the first of its largest elements (the last NaN, if there is one), or
//!   evenly to the elements that its mean was taken over.
//! - **Split**: samples and channels are parallel, spatial dimensions stay whole. Linear in the gradient.

use super::lanes::floats;
use super::pool::Pool;
use super::{DecoderEntry, OpDef, Work, expect_gradient, expect_inputs};
use crate::graph::{TensorType, elements};
use crate::program::{Kernel, PoolKind};
use crate::sharding::{FactorKind, FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a pooling. Inputs: gradient, and x for maxima.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolGrad {
    /// The pooling.
    pub pool: Pool,
    /// The spatial extents of x.
    pub spatial: Vec<u64>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl PoolGrad {
    /// The type of x.
    fn x(&self, gradient: &TensorType) -> TensorType {
        let outer = &gradient.shape[..gradient.rank().min(2)];
        TensorType::new(gradient.dtype, [outer, &self.spatial].concat())
    }
}

impl OpDef for PoolGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, if self.pool.kind == PoolKind::Max { 2 } else { 1 })?;
        let x = self.x(&inputs[0]);
        if !x.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: x.dtype });
        }
        if let Some(given) = inputs.get(1) {
            expect_gradient(&x, given)?;
        }
        expect_gradient(&inputs[0], &self.pool.infer(std::slice::from_ref(&x), &[None])?[0])?;
        Ok(vec![x])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let g = &inputs[0].shape;
        let mut rule = RuleBuilder::new();
        let n = rule.factor("n", g[0], FactorKind::Parallel);
        let c = rule.factor("c", g[1], FactorKind::Parallel);
        let dims =
            || [Some(n), Some(c)].into_iter().chain(std::iter::repeat_n(None, g.len() - 2));
        for _ in inputs {
            rule.input(dims());
        }
        rule.output(dims());
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let per_window = elements(&self.pool.extents) as f64;
        Work::memory(inputs, outputs, 0.0)
            .with_flops(inputs[0].elements() as f64 * per_window)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (ty, g) = (self.x(inputs[0].ty()), inputs[0].to_f64s());
        let mut dx = vec![0.0; Tensor::zeros(ty.clone())?.len()];
        let x = inputs.get(1).map(|x| x.to_f64s());
        self.pool.for_each_window(&ty.shape, inputs[0].shape(), |at, window, count| match &x {
            Some(x) => {
                let larger = |m: usize, i: usize| if x[i] > x[m] || x[i].is_nan() { i } else { m };
                if let Some(i) = window.reduce(larger) {
                    dx[i] += g[at];
                }
            }
            None => window.for_each(|i| dx[i] += g[at] / count),
        });
        Ok(vec![floats(&ty, &ty.shape, &dx)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::PoolGrad(self.clone())
    }
}
