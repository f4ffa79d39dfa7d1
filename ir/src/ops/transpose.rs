//! Permuting dimensions.
//!
//! - **ONNX**: Transpose (since 1).
//! - **Semantics**: output dimension `i` is input dimension `perm[i]`.
//! - **Split**: every dimension is parallel.

use super::decode::{Decoder, DecoderEntry};
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::tensor::{strides, unravel};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A permutation of dimensions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transpose {
    /// For each output dimension, the input's.
    pub perm: Vec<usize>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Transpose", 1, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let perm = match d.ints("perm")? {
        None => (0..ty.rank()).rev().collect(),
        Some(perm) => perm.iter().map(|&a| ty.axis(a)).collect::<Result<Vec<_>, _>>()?,
    };
    check(&perm, ty.rank())?;
    Ok(vec![d.transpose(x, &perm)?])
}

fn check(perm: &[usize], rank: usize) -> Result<(), OpError> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if sorted.len() == rank && sorted.iter().enumerate().all(|(i, &p)| i == p) {
        return Ok(());
    }
    let why = format!("{perm:?} is not a permutation of {rank} dimensions");
    Err(OpError::BadAttribute { name: "perm", why })
}

impl Transpose {
    fn apply<T: Copy>(&self, list: &[T]) -> Vec<T> {
        self.perm.iter().map(|&p| list[p]).collect()
    }
}

impl OpDef for Transpose {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        check(&self.perm, inputs[0].rank())?;
        Ok(vec![TensorType::new(inputs[0].dtype, self.apply(&inputs[0].shape))])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |_| false);
        rule.input(dims.iter().copied().map(Some));
        rule.output(self.apply(&dims).into_iter().map(Some));
        if inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let shape = self.apply(inputs[0].shape());
        let steps = self.apply(&strides(inputs[0].shape()));
        let index = |i| unravel(i, &shape).iter().zip(&steps).map(|(c, s)| c * s).sum();
        Ok(vec![inputs[0].select(shape.clone(), index)?])
    }

    /// By the inverse permutation.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let mut inverse = vec![0; self.perm.len()];
        self.perm.iter().enumerate().for_each(|(i, &p)| inverse[p] = i);
        let g = v.gradient()?;
        Ok(vec![Some(v.transpose(g, &inverse)?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Transpose { perm: self.perm.clone() }
    }
}
