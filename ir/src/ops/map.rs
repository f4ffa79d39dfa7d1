//! Elementwise functions with broadcasting.
//!
//! - **ONNX**: every operator that applies a scalar function to its operands element by element;
//!   they are decoded in [`elementwise`](super::elementwise) and [`activation`](super::activation).
//! - **Semantics**: operands broadcast to one shape; the function is applied to each position.
//! - **Split**: every output dimension is a parallel factor; an operand that is broadcast along a
//!   dimension does not have it. Linear functions carry partial sums.

mod gradient;

use super::decode::DecoderEntry;
use super::{OpDef, Vjp, Work, broadcast, broadcast_index, expect_inputs, factors, same_dtype};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// An elementwise function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// The function.
    pub f: ScalarFn,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl Map {
    /// The first operand of the type in which the function computes.
    fn first_typed(&self) -> usize {
        usize::from(self.f == ScalarFn::Where)
    }
}

impl OpDef for Map {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, self.f.arity())?;
        if self.f == ScalarFn::Where && inputs[0].dtype != crate::DType::Bool {
            return Err(OpError::UnsupportedType { found: inputs[0].dtype });
        }
        let typed = &inputs[self.first_typed()..];
        let dtype = typed[0].dtype;
        for other in &typed[1..] {
            same_dtype(&typed[0], other)?;
        }
        if !self.f.accepts(dtype) {
            return Err(OpError::UnsupportedType { found: dtype });
        }
        let mut shape = inputs[0].shape.clone();
        for other in &inputs[1..] {
            shape = broadcast(&shape, &other.shape)?;
        }
        Ok(vec![TensorType::new(self.f.output(dtype), shape)])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let out = &outputs[0].shape;
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, out, |_| false);
        for t in inputs {
            rule.input(factors::broadcast(t, out, &dims));
        }
        rule.output(dims.into_iter().map(Some));
        if outputs[0].dtype.is_float() {
            match self.f {
                ScalarFn::Identity | ScalarFn::Neg | ScalarFn::Div => rule.linear([0]),
                ScalarFn::Add | ScalarFn::Sub => rule.linear([0, 1]),
                ScalarFn::Mul => {
                    rule.linear([0]);
                    rule.linear([1]);
                }
                ScalarFn::Gated(_) | ScalarFn::Slope(_) => rule.linear([1]),
                ScalarFn::Where => rule.linear([1, 2]),
                _ => {}
            }
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 1.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let mut shape = Vec::new();
        for t in inputs {
            shape = broadcast(&shape, t.shape()).map_err(|e| EvalError::Invalid(e.to_string()))?;
        }
        let operand = inputs[self.first_typed()].dtype();
        let ty = TensorType::new(self.f.output(operand), shape);
        let at = |k: usize, i: usize| {
            let from = inputs[k].shape();
            if from == ty.shape { i } else { broadcast_index(from, &ty.shape, i) }
        };
        let n = inputs.len().min(3);
        if operand.is_float() {
            let mut args = [0.0; 3];
            let out = Tensor::from_f64(ty.clone(), |i| {
                for (k, arg) in args[..n].iter_mut().enumerate() {
                    *arg = inputs[k].f64_at(at(k, i));
                }
                self.f.apply(&args[..n])
            });
            return Ok(vec![out?]);
        }
        let mut args = [0; 3];
        let mut failed = None;
        let out = Tensor::from_int(ty.clone(), |i| {
            for (k, arg) in args[..n].iter_mut().enumerate() {
                *arg = inputs[k].int_at(at(k, i));
            }
            self.f.apply_int(&args[..n]).unwrap_or_else(|e| {
                failed = Some(e);
                0
            })
        })?;
        failed.map_or_else(|| Ok(vec![out]), Err)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        gradient::vjp(self.f, v)
    }

    fn lower(&self) -> Kernel {
        Kernel::Map { f: self.f }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn eval(f: ScalarFn, inputs: &[&Tensor]) -> Tensor {
        Map { f }.eval(inputs).unwrap().remove(0)
    }

    #[test]
    fn operands_broadcast() {
        let column = Tensor::new([2, 1], vec![10i64, 20]).unwrap();
        let row = Tensor::vector(vec![1i64, 2, 3]);
        let sum = eval(ScalarFn::Add, &[&column, &row]);
        assert_eq!(sum, Tensor::new([2, 3], vec![11i64, 12, 13, 21, 22, 23]).unwrap());
    }

    #[test]
    fn comparison_and_choice() {
        let (x, y) = (Tensor::vector(vec![1f32, 5.0]), Tensor::scalar(3f32));
        let less = eval(ScalarFn::Less, &[&x, &y]);
        assert_eq!(less, Tensor::vector(vec![true, false]));
        assert_eq!(eval(ScalarFn::Where, &[&less, &x, &y]), Tensor::vector(vec![1f32, 3.0]));
    }

    #[test]
    fn casts_truncate_and_saturate() {
        let x = Tensor::vector(vec![-1.9f32, 300.0, f32::NAN]);
        assert_eq!(eval(ScalarFn::Cast(DType::I8), &[&x]), Tensor::vector(vec![-1i8, 127, 0]));
        let y = Tensor::vector(vec![256i32, 0]);
        assert_eq!(eval(ScalarFn::Cast(DType::Bool), &[&y]), Tensor::vector(vec![true, false]));
    }

    #[test]
    fn types_are_checked() {
        let t = |d| TensorType::new(d, [2]);
        let infer = |f, types: &[TensorType]| Map { f }.infer(types, &[]);
        assert!(infer(ScalarFn::Exp, &[t(DType::I64)]).is_err());
        assert!(infer(ScalarFn::Add, &[t(DType::F32), t(DType::F64)]).is_err());
        assert!(infer(ScalarFn::Where, &[t(DType::F32), t(DType::F32), t(DType::F32)]).is_err());
        assert!(infer(ScalarFn::And, &[t(DType::I8), t(DType::I8)]).is_err());
    }

    #[test]
    fn integer_errors_are_typed() {
        let (one, zero) = (Tensor::scalar(1i32), Tensor::scalar(0i32));
        assert!(Map { f: ScalarFn::Div }.eval(&[&one, &zero]).is_err());
    }
}
