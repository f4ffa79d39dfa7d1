//! The gradient of running products.
//!
//! - **ONNX**: none; the gradient of CumProd is made of it.
//! - **Semantics**: `dx[k] = Σ_{i ≥ k} g[i] · Π_{j ≤ i, j ≠ k} x[j]`, without a division, so that zeros
//!   among `x` do no harm; `exclusive` and `reverse` as for the products.
//! - **Split**: the dimension stays whole, the others are parallel. Linear in `g`.

use super::cumsum::Running;
use super::decode::DecoderEntry;
use super::lanes::{Lanes, floats};
use super::{OpDef, Work, expect_inputs, factors, same_dtype};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of [`CumProd`](super::cum_prod::CumProd). Inputs: `x`, the gradient `g` of the products.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CumProdGrad {
    /// The dimension.
    pub axis: usize,
    /// Whether an element's own value is left out.
    pub exclusive: bool,
    /// Whether products run from the end.
    pub reverse: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for CumProdGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        same_dtype(&inputs[0], &inputs[1])?;
        inputs[0].dim(self.axis)?;
        if !inputs[0].dtype.is_float() {
            return Err(OpError::UnsupportedType { found: inputs[0].dtype });
        }
        if inputs[0].shape != inputs[1].shape {
            return Err(OpError::ShapeMismatch {
                lhs: inputs[0].shape.clone(),
                rhs: inputs[1].shape.clone(),
                why: "each product has one gradient",
            });
        }
        Ok(vec![inputs[0].clone()])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = factors::along(inputs, outputs, &[self.axis]);
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 4.0)
    }

    /// The product of the elements before `k`, times the gradients of those from `k` on, each with the
    /// product of what lies between.
    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (ty, x, g) = (inputs[0].ty(), inputs[0].to_f64s(), inputs[1].to_f64s());
        let mut dx = x.clone();
        let before = Running { axis: self.axis, exclusive: true, reverse: self.reverse };
        before.run(&ty.shape, &mut dx, 1.0, |a, b| a * b);
        let lanes = Lanes::new(&ty.shape, self.axis);
        for start in lanes.starts() {
            let mut after = 0.0;
            for k in 0..lanes.n {
                let at = lanes.at(start, if self.reverse { k } else { lanes.n - 1 - k });
                let own = if self.exclusive { after } else { g[at] + after };
                dx[at] *= own;
                after = if self.exclusive { g[at] + x[at] * after } else { x[at] * own };
            }
        }
        Ok(vec![floats(ty, &ty.shape, &dx)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
