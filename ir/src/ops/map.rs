//! Elementwise functions with broadcasting.
//!
//! - **ONNX**: every operator that applies a scalar function to its operands element by element:
//!   Add, Mul, Relu, Erf, Where, Cast, Equal, …; `DECODERS` lists them.
//! - **Semantics**: operands broadcast to one shape; the function is applied to each position.
//! - **Split**: every output dimension is a parallel factor; an operand that is broadcast along a
//!   dimension does not have it. Linear functions carry partial sums.

use super::decode::{Decoder, DecoderEntry};
use super::{OpDef, Work, broadcast, broadcast_index, expect_inputs, same_dtype};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorKind, FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// An elementwise function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// The function.
    pub f: ScalarFn,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry {
    domain: "",
    name: "Add",
    since: 7,
    decode: |d| binary(d, ScalarFn::Add),
}];

fn binary(d: &mut Decoder<'_>, f: ScalarFn) -> Result<Vec<ValueId>, OpError> {
    let inputs = [d.input(0)?, d.input(1)?];
    Ok(vec![d.push(Map { f }, &inputs)?])
}

/// Names of output dimensions as factors, innermost last.
const FACTORS: [&str; 8] = ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"];

impl OpDef for Map {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, self.f.arity())?;
        let typed = if self.f == ScalarFn::Where { &inputs[1..] } else { inputs };
        let dtype = typed[0].dtype;
        for other in &typed[1..] {
            same_dtype(&typed[0], other)?;
        }
        let mut shape = inputs[0].shape.clone();
        for other in &inputs[1..] {
            shape = broadcast(&shape, &other.shape)?;
        }
        Ok(vec![TensorType::new(self.f.output(dtype), shape)])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let out = &outputs[0].shape;
        if out.len() > FACTORS.len() {
            let ranks: Vec<usize> = inputs.iter().map(TensorType::rank).collect();
            return FactorRule::opaque(&ranks, &[out.len()], "more than 8 dimensions");
        }
        let mut rule = RuleBuilder::new();
        let factors: Vec<_> = out
            .iter()
            .zip(FACTORS)
            .map(|(&n, name)| rule.factor(name, n, FactorKind::Parallel))
            .collect();
        for t in inputs {
            let skip = out.len() - t.rank();
            rule.input(
                t.shape.iter().enumerate().map(|(i, &n)| {
                    (n == out[i + skip]).then_some(factors[i + skip])
                }),
            );
        }
        rule.output(factors.iter().map(|&f| Some(f)));
        if outputs[0].dtype.is_float() {
            match self.f {
                ScalarFn::Identity | ScalarFn::Neg => rule.linear([0]),
                ScalarFn::Add | ScalarFn::Sub => rule.linear([0, 1]),
                ScalarFn::Mul => {
                    rule.linear([0]);
                    rule.linear([1]);
                }
                ScalarFn::Div => rule.linear([0]),
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
        let _ = (inputs, broadcast_index);
        Err(EvalError::Invalid("not yet".into()))
    }

    fn lower(&self) -> Kernel {
        Kernel::Map { f: self.f }
    }
}
