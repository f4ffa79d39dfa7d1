//! The gradient of linear attention's recurrence.
//!
//! - **ONNX**: none; the gradient of LinearAttention is made of it.
//! - **Semantics**: the states are computed again, then walked backwards. With `D` the gradient of the state
//!   after a step, to which the reads of that step add `q ⊗ dy`: of queries `S dy`, of keys `D v`, of values
//!   `Dᵀk`; through a correction `v = β (v₀ - Sᵀk)` and a decay as the chain rule says.
//! - **Split**: as the recurrence; the elements of a value are a sum for all gradients but those of values
//!   and states. Linear in the gradients of its results.

use super::decode::DecoderEntry;
use super::lanes::floats;
use super::linear_recurrence::{LinearRecurrence, read};
use super::{OpDef, Work, expect_inputs};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::check_size;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a [`LinearRecurrence`]. Inputs: those of the recurrence, the gradient of what was read, the
/// gradient of the last state. Outputs: one gradient an input of the recurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearRecurrenceGrad {
    /// What it is the gradient of.
    pub of: LinearRecurrence,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl LinearRecurrenceGrad {
    /// How many operands the recurrence has.
    fn operands(&self) -> usize {
        4 + usize::from(self.of.decays) + usize::from(self.of.corrects)
    }
}

impl OpDef for LinearRecurrenceGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, self.operands() + 2)?;
        let (operands, gradients) = inputs.split_at(self.operands());
        let results = self.of.infer(operands, &[])?;
        if let Some((lhs, rhs)) = results.iter().zip(gradients).find(|(x, g)| x != g) {
            return Err(OpError::ShapeMismatch {
                lhs: lhs.shape.clone(),
                rhs: rhs.shape.clone(),
                why: "a gradient has the type of its result",
            });
        }
        Ok(operands.to_vec())
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let state = &outputs[3].shape;
        let mut rule = RuleBuilder::new();
        let b = rule.factor("b", state[0], FactorKind::Parallel);
        let h = rule.factor("h", state[1], FactorKind::Parallel);
        let v = rule.factor("v", state[3], FactorKind::Reduce(ReduceKind::Sum));
        let of_values = [2, 3, self.operands(), self.operands() + 1];
        let dims = |i: usize, ty: &TensorType| {
            let mut dims = vec![None; ty.rank()];
            (dims[0], dims[1]) = (Some(b), Some(h));
            if of_values.contains(&i) {
                dims[ty.rank() - 1] = Some(v);
            }
            dims
        };
        inputs.iter().enumerate().for_each(|(i, ty)| rule.input(dims(i, ty)));
        outputs.iter().enumerate().for_each(|(i, ty)| rule.output(dims(i, ty)));
        rule.linear([self.operands(), self.operands() + 1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let operands = self.operands();
        // Forwards once more, then about twice that backwards.
        let forwards = self.of.work(&inputs[..operands], &inputs[operands..]);
        Work::memory(inputs, outputs, 0.0).with_flops(3.0 * forwards.flops)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let operands = self.operands();
        let shape = |i: usize| inputs[i].shape();
        let ([_, _, group, steps, key], [batch, heads, _, value]) = (shape(0), shape(3)) else {
            return Err(EvalError::Invalid("not the operands of a recurrence".into()));
        };
        // Loops run over all queries, even where they have no elements.
        check_size(inputs[operands].ty())?;
        // The states of one head.
        check_size(&TensorType::new(DType::F64, [steps.saturating_add(1), *key, *value]))?;
        let [group, steps, key, value] = [group, steps, key, value].map(|&n| n as usize);
        let x: Vec<Vec<f64>> = inputs.iter().map(|t| t.to_f64s()).collect();
        let mut out: Vec<Vec<f64>> = x[..operands].iter().map(|t| vec![0.0; t.len()]).collect();
        for index in 0..(batch * heads) as usize {
            Head { op: self, x: &x, index, group, steps, key, value }.differentiate(&mut out);
        }
        let types = inputs[..operands].iter().map(|t| t.ty());
        types.zip(&out).map(|(ty, x)| floats(ty, &ty.shape, x)).collect()
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

/// One head's recurrence.
struct Head<'a> {
    op: &'a LinearRecurrenceGrad,
    x: &'a [Vec<f64>],
    index: usize,
    group: usize,
    steps: usize,
    key: usize,
    value: usize,
}

impl Head<'_> {
    /// Row `t` of an operand that has one a step, of the given length.
    fn row(&self, i: usize, t: usize, len: usize) -> &[f64] {
        &self.x[i][(self.index * self.steps + t) * len..][..len]
    }

    fn rate(&self, t: usize) -> Option<f64> {
        let last = self.op.operands() - 1;
        self.op.of.corrects.then(|| self.x[last][self.index * self.steps + t])
    }

    /// The state after decay, and how far each value is from what the state holds (without a correction, the
    /// value itself).
    fn decayed(&self, before: &[f64], t: usize) -> (Vec<f64>, Vec<f64>) {
        let mut s = before.to_vec();
        if self.op.of.decays {
            let decay = self.row(4, t, self.key);
            s.iter_mut().enumerate().for_each(|(i, s)| *s *= decay[i / self.value]);
        }
        let mut v = self.row(2, t, self.value).to_vec();
        if self.op.of.corrects {
            let k = self.row(1, t, self.key);
            v.iter_mut().enumerate().for_each(|(j, v)| *v -= read(&s, k, self.value, j));
        }
        (s, v)
    }

    /// Adds the head's part to the gradients of the operands.
    fn differentiate(&self, out: &mut [Vec<f64>]) {
        let (key, value, operands) = (self.key, self.value, self.op.operands());
        let size = key * value;
        let whole = self.index * size..(self.index + 1) * size;
        let mut states = vec![self.x[3][whole.clone()].to_vec()];
        for t in 0..self.steps {
            let (mut s, v) = self.decayed(&states[t], t);
            let (k, rate) = (self.row(1, t, key), self.rate(t).unwrap_or(1.0));
            s.iter_mut().enumerate().for_each(|(i, s)| *s += k[i / value] * rate * v[i % value]);
            states.push(s);
        }
        let mut ds = self.x[operands + 1][whole.clone()].to_vec();
        for t in (0..self.steps).rev() {
            let at = self.index * self.steps + t;
            for g in 0..self.group {
                let at = (self.index * self.group + g) * self.steps + t;
                let (q, dy) = (&self.x[0][at * key..][..key], &self.x[operands][at * value..]);
                for i in 0..size {
                    out[0][at * key + i / value] += states[t + 1][i] * dy[i % value];
                    ds[i] += q[i / value] * dy[i % value];
                }
            }
            let (s, v) = self.decayed(&states[t], t);
            let (k, rate) = (self.row(1, t, key), self.rate(t));
            let dv: Vec<f64> = (0..value).map(|j| read(&ds, k, value, j)).collect();
            for i in 0..size {
                out[1][at * key + i / value] += ds[i] * rate.unwrap_or(1.0) * v[i % value];
            }
            for j in 0..value {
                out[2][at * value + j] = dv[j] * rate.unwrap_or(1.0);
            }
            if let Some(rate) = rate {
                out[operands - 1][at] = v.iter().zip(&dv).map(|(v, d)| v * d).sum();
                for i in 0..size {
                    out[1][at * key + i / value] -= s[i] * rate * dv[i % value];
                    ds[i] -= k[i / value] * rate * dv[i % value];
                }
            }
            if self.op.of.decays {
                let decay = self.row(4, t, key);
                for i in 0..size {
                    out[4][at * key + i / value] += ds[i] * states[t][i];
                    ds[i] *= decay[i / value];
                }
            }
        }
        out[3][whole].copy_from_slice(&ds);
    }
}
