//! Hands a value to another stage of a pipeline.
//!
//! - **ONNX**: none; cutting a graph into stages makes it.
//! - **Semantics**: has no result. [`Receive`](super::receive::Receive) of the same channel, in the graph of
//!   another stage, yields the operand. A stage's graph means nothing on its own, so there is no reference
//!   evaluation.
//! - **Split**: every dimension is parallel. The operand is reduced before it is sent.

use super::decode::DecoderEntry;
use super::{OpDef, Work, expect_inputs, factors};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Sends its operand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Send {
    /// The [channel](crate::plan::Channel) by which the value goes.
    pub channel: u32,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for Send {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        Ok(vec![])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        factors::along(inputs, outputs, &[]).build()
    }

    fn work(&self, _: &[TensorType], _: &[TensorType]) -> Work {
        Work::view()
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        Err(EvalError::Invalid("another stage is needed to send to".into()))
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
