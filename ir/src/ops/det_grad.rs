//! The gradient of determinants.
//!
//! - **ONNX**: none; the gradient of Det is made of it.
//! - **Semantics**: `dx[i, j] = g · cofactor(i, j)`: the determinant with row `i` replaced by the unit vector
//!   of `j`, which singular matrices have too.
//! - **Split**: the matrix stays whole, leading dimensions are parallel. Linear in `g`.

use super::decode::DecoderEntry;
use super::det::{Det, determinant};
use super::lanes::floats;
use super::{OpDef, Work, expect_inputs, factors};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of [`Det`]. Inputs: matrices, the gradient `g` of their determinants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetGrad {}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for DetGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let determinants = Det {}.infer(&inputs[..1], &[])?;
        if determinants[0] != inputs[1] {
            return Err(OpError::ShapeMismatch {
                lhs: determinants[0].shape.clone(),
                rhs: inputs[1].shape.clone(),
                why: "each determinant has one gradient",
            });
        }
        Ok(vec![inputs[0].clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let outer = inputs[1].rank();
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |d| d >= outer);
        rule.input(dims.iter().copied().map(Some));
        rule.input(dims[..outer].iter().copied().map(Some));
        rule.output(dims.iter().copied().map(Some));
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let n = inputs[0].shape.last().map_or(0.0, |&n| n as f64);
        Work::memory(inputs, outputs, n.powi(3))
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, g) = (inputs[0].to_f64s(), inputs[1].to_f64s());
        let n = inputs[0].shape().last().map_or(0, |&n| n as usize);
        let cofactor = |at: usize| {
            let (matrix, row, column) = (at / (n * n), at / n % n, at % n);
            let mut minor = x[matrix * n * n..][..n * n].to_vec();
            minor[row * n..][..n].fill(0.0);
            minor[row * n + column] = 1.0;
            g[matrix] * determinant(minor, n)
        };
        let cofactors: Vec<f64> = (0..x.len()).map(cofactor).collect();
        Ok(vec![floats(inputs[0].ty(), inputs[0].shape(), &cofactors)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
