//! The bits of each element read as another type of the same size.
//!
//! - **ONNX**: BitCast (since 26).
//! - **Split**: every dimension is parallel.

use super::decode::{Decoder, DecoderEntry, ResultType, element_type};
use super::{Build, OpDef, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Bits read as another type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BitCast {
    /// The type.
    pub to: DType,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("BitCast", 26, decode).results(&[ResultType::Attribute("to", None)]),
];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let to = d.int("to")?.ok_or(OpError::MissingAttribute { name: "to" })?;
    Ok(vec![d.push(BitCast { to: element_type(to)? }, &[d.input(0)?])?])
}

impl OpDef for BitCast {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let from = inputs[0].dtype;
        if from.bytes() != self.to.bytes() {
            let why = format!("{} has not as many bytes as {from}", self.to);
            return Err(OpError::BadAttribute { name: "to", why });
        }
        Ok(vec![TensorType::new(self.to, inputs[0].shape.clone())])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        factors::along(inputs, outputs, &[]).build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let ty = TensorType::new(self.to, inputs[0].shape());
        Ok(vec![Tensor::from_bytes(ty, &inputs[0].to_bytes())?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
