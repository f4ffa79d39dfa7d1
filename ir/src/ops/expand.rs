//! Broadcasting to fixed extents.
//!
//! - **ONNX**: Expand (since 8).
//! - **Semantics**: the input broadcast together with the shape.
//! - **Split**: every output dimension is parallel; one that the input is broadcast along is
//!   split in the output only.

use super::decode::{Decoder, DecoderEntry};
use super::{Build, OpDef, Vjp, Work, broadcast, broadcast_index, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A broadcast to fixed extents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expand {
    /// The result's extents.
    pub shape: Vec<u64>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Expand", 8, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let wanted = d
        .known_ints(1, "it decides the output's shape")?
        .into_iter()
        .map(|n| {
            u64::try_from(n).map_err(|_| OpError::Invalid(format!("asks for an extent of {n}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let shape = broadcast(&d.shape(x), &wanted)?;
    Ok(vec![d.expand(x, shape)?])
}

impl OpDef for Expand {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        if broadcast(&inputs[0].shape, &self.shape)? != self.shape {
            return Err(OpError::ShapeMismatch {
                lhs: inputs[0].shape.clone(),
                rhs: self.shape.clone(),
                why: "the first does not broadcast to the second",
            });
        }
        Ok(vec![TensorType::new(inputs[0].dtype, self.shape.clone())])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let out = &outputs[0].shape;
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, out, |_| false);
        rule.input(factors::broadcast(&inputs[0], out, &dims));
        rule.output(dims.into_iter().map(Some));
        if outputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let from = inputs[0].shape();
        let index = |i| broadcast_index(from, &self.shape, i);
        Ok(vec![inputs[0].select(self.shape.clone(), index)?])
    }

    /// Summed where it was broadcast.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, shape) = (v.gradient()?, v.shape(v.inputs[0]));
        Ok(vec![Some(v.sum_to(g, &shape)?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Map { f: ScalarFn::Identity }
    }
}
