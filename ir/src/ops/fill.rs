//! A tensor of one value.
//!
//! - **ONNX**: ConstantOfShape (since 9).
//! - **Semantics**: every element is `value`.
//! - **Split**: every dimension is parallel: each rank makes its part.

use super::decode::{Attribute, Decoder, DecoderEntry, ResultType};
use super::{Build, OpDef, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A tensor of one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<u64>,
    /// The value; `dtype` holds it exactly.
    #[serde(with = "crate::number")]
    pub value: f64,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("ConstantOfShape", 9, decode).results(&[ResultType::Attribute("value", None)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let bad = |name, why: String| OpError::BadAttribute { name, why };
    let shape = d
        .known_ints(0, "it is the output's shape")?
        .into_iter()
        .map(|n| u64::try_from(n).map_err(|_| bad("shape", format!("extent {n} is negative"))))
        .collect::<Result<Vec<_>, _>>()?;
    let value = match d.attribute("value") {
        None => Tensor::scalar(0f32),
        Some(Attribute::Tensor(t)) if t.len() == 1 => (**t).clone(),
        Some(_) => return Err(bad("value", "expected a tensor of one element".into())),
    };
    let (dtype, x) = (value.dtype(), value.f64_at(0));
    if !dtype.is_float() && x as i128 != value.int_at(0) {
        // An integer that f64 does not hold.
        let value = value.reshape([]).map_err(|e| bad("value", e.to_string()))?;
        let value = d.constant(value);
        return Ok(vec![d.expand(value, shape)?]);
    }
    Ok(vec![d.push(Fill { dtype, shape, value: x }, &[])?])
}

impl OpDef for Fill {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 0)?;
        Ok(vec![TensorType::new(self.dtype, self.shape.clone())])
    }

    fn rule(&self, _: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &outputs[0].shape, |_| false);
        rule.output(dims.into_iter().map(Some));
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let ty = TensorType::new(self.dtype, self.shape.clone());
        Ok(vec![Tensor::from_f64(ty, |_| self.value)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Fill { value: self.value }
    }
}
