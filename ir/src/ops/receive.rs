//! Takes a value from another stage of a pipeline.
//!
//! - **ONNX**: none; cutting a graph into stages makes it.
//! - **Semantics**: yields what [`Send`](super::send::Send) of the same channel, in the graph of another stage,
//!   has as its operand. A stage's graph means nothing on its own, so there is no reference evaluation.
//! - **Split**: every dimension is parallel: each rank receives its part, whatever the split on the other side.

use super::decode::DecoderEntry;
use super::{OpDef, Work, expect_inputs, factors};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Receives its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receive {
    /// The [channel](crate::plan::Channel) by which the value comes.
    pub channel: u32,
    /// Its type.
    pub ty: TensorType,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for Receive {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 0)?;
        Ok(vec![self.ty.clone()])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        factors::along(inputs, outputs, &[]).build()
    }

    fn work(&self, _: &[TensorType], _: &[TensorType]) -> Work {
        Work::view()
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        Err(EvalError::Invalid("another stage is needed to receive from".into()))
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
