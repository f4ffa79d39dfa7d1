//! Overlapping parts of a dimension side by side.
//!
//! - **ONNX**: what STFT transforms; see [`signal`](super::signal).
//! - **Semantics**: `out[.., f, i, ..] = in[.., f · step + i, ..]`, as many frames as fit.
//! - **Split**: the dimension stays whole, the others are parallel. Linear.

use super::decode::DecoderEntry;
use super::gather_grad::GatherGrad;
use super::lanes::Lanes;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors, range};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Frames of a dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frames {
    /// The dimension, which becomes two: frames, and elements of a frame.
    pub axis: usize,
    /// Elements of a frame.
    pub length: u64,
    /// Elements from one frame's begin to the next.
    pub step: u64,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for Frames {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let n = inputs[0].shape[inputs[0].dim(self.axis)?];
        let frames = n.checked_sub(self.length).and_then(|rest| rest.checked_div(self.step));
        let frames = frames.filter(|_| self.length > 0).ok_or_else(|| {
            let Self { length, step, .. } = self;
            OpError::Invalid(format!("has frames of {length} every {step} of {n} elements"))
        })?;
        let mut shape = inputs[0].shape.clone();
        shape[self.axis] = frames + 1;
        shape.insert(self.axis + 1, self.length);
        Ok(vec![TensorType::new(inputs[0].dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |d| d == self.axis);
        rule.input(dims.iter().copied().map(Some));
        let mut out: Vec<_> = dims.into_iter().map(Some).collect();
        out[self.axis] = None;
        out.insert(self.axis, None);
        rule.output(out);
        if inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let types = self.infer(&[x.ty().clone()], &[]);
        let ty = types.map_err(|e| EvalError::Invalid(e.to_string()))?.remove(0);
        let from = Lanes::new(x.shape(), self.axis);
        let (length, frames) = (self.length as usize, ty.shape[self.axis] as usize);
        let at = |i: usize| {
            let (rest, inner) = (i / from.inner, i % from.inner);
            let (rest, k) = (rest / length, rest % length);
            let (outer, frame) = (rest / frames, rest % frames);
            (outer * from.n + frame * self.step as usize + k) * from.inner + inner
        };
        Ok(vec![x.select(ty.shape, at)?])
    }

    /// Where frames overlap, their gradients are added.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let g = v.gradient()?;
        let frames = range::along(v, 0, v.shape(g)[self.axis], 0, 2)?;
        let step = v.scalar(DType::I64, self.step as f64)?;
        let begins = v.map(ScalarFn::Mul, &[frames, step])?;
        let within = range::along(v, 0, self.length, 1, 2)?;
        let from = v.map(ScalarFn::Add, &[begins, within])?;
        let extent = v.shape(v.inputs[0])[self.axis];
        Ok(vec![Some(v.push(GatherGrad { axis: self.axis, extent }, &[from, g])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
