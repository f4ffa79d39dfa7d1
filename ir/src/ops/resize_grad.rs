//! The gradient of resampling.
//!
//! - **ONNX**: none; differentiating [`Resize`] makes it.
//! - **Semantics**: the transposed map: `out[p] = Σ_i weight(p - x) · g[i]` along one resized dimension after the
//!   other, with `x` the place of `i` in what was resized.
//! - **Split**: resized dimensions stay whole, the others are parallel. Linear.

use super::lanes::{Lanes, floats};
use super::resize::{Axis, Resize};
use super::{DecoderEntry, OpDef, Work, expect_gradient, expect_inputs, factors};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::tensor::check_size;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a resampling. Input: the gradient of its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResizeGrad {
    /// The resampling.
    pub resize: Resize,
    /// What the extents of its dimensions were, one for each that it changes.
    pub extents: Vec<u64>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl ResizeGrad {
    /// The type of what was resized.
    fn x(&self, gradient: &TensorType) -> Result<TensorType, OpError> {
        let mut x = gradient.clone();
        if self.extents.len() != self.resize.axes.len() {
            return Err(OpError::Invalid("has not one extent for each dimension".into()));
        }
        for (a, &n) in self.resize.axes.iter().zip(&self.extents) {
            x.dim(a.axis)?;
            x.shape[a.axis] = n;
        }
        Ok(x)
    }

    /// Goes back along one dimension.
    fn back(
        &self,
        axis: &Axis,
        n: u64,
        g: &[f64],
        shape: &mut [u64],
    ) -> Result<Vec<f64>, EvalError> {
        let from = Lanes::new(shape, axis.axis);
        shape[axis.axis] = n;
        let to = Lanes::new(shape, axis.axis);
        let mut dx = vec![0.0; check_size(&TensorType::new(DType::F64, &*shape))?];
        for i in 0..from.n {
            let taps = self.resize.taps(axis, n, i).unwrap_or_default();
            for (start, out) in from.starts().zip(to.starts()) {
                for &(p, w) in &taps {
                    dx[to.at(out, p)] += w * g[from.at(start, i)];
                }
            }
        }
        Ok(dx)
    }
}

impl OpDef for ResizeGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        if !inputs[0].dtype.is_float() {
            return Err(OpError::UnsupportedType { found: inputs[0].dtype });
        }
        let x = self.x(&inputs[0])?;
        let result = self.resize.infer(std::slice::from_ref(&x), &[None])?;
        expect_gradient(&inputs[0], &result[0])?;
        Ok(vec![x])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let axes: Vec<usize> = self.resize.axes.iter().map(|a| a.axis).collect();
        let mut rule = factors::along(inputs, outputs, &axes);
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let forward = self.resize.work(outputs, inputs);
        Work::memory(inputs, outputs, 0.0).with_flops(forward.flops)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let g = inputs[0];
        let ty = self.x(g.ty()).map_err(|e| EvalError::Invalid(e.to_string()))?;
        if check_size(&ty)? == 0 {
            return Ok(vec![Tensor::zeros(ty)?]);
        }
        let (mut dx, mut shape) = (g.to_f64s(), g.shape().to_vec());
        // Shrinking first keeps what lies between small: what grew shrinks on the way back.
        let mut axes: Vec<(&Axis, u64)> =
            self.resize.axes.iter().zip(self.extents.iter().copied()).collect();
        axes.sort_by(|a, b| b.0.scale.total_cmp(&a.0.scale));
        for (axis, n) in axes {
            dx = self.back(axis, n, &dx, &mut shape)?;
        }
        Ok(vec![floats(g.ty(), &shape, &dx)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
