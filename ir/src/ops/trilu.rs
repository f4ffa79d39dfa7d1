//! The upper or lower triangle of matrices.
//!
//! - **ONNX**: Trilu (since 14).
//! - **Semantics**: elements beyond the `k`-th diagonal are kept, the others are 0.
//! - **Split**: the matrix stays whole, leading dimensions are parallel. Linear.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::lanes::pick;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A triangle of each matrix in the last two dimensions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trilu {
    /// Whether the upper triangle is kept.
    pub upper: bool,
    /// The diagonal up to which elements are kept; 0 is the main one, positive ones lie above it.
    pub k: i64,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Trilu", 14, decode).results(&[ResultType::SameAs(0)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let k = d.optional_ints(1, "it names the diagonal")?.unwrap_or_default();
    let op = Trilu {
        upper: d.int_or("upper", 1)? != 0,
        k: k.first().copied().unwrap_or(0),
    };
    Ok(vec![d.push(op, &[d.input(0)?])?])
}

impl OpDef for Trilu {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let found = inputs[0].rank();
        if found < 2 {
            return Err(OpError::Rank { index: 0, found, expected: "2 or more".into() });
        }
        Ok(vec![inputs[0].clone()])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let rank = inputs[0].rank();
        let mut rule = factors::along(inputs, outputs, &[rank - 2, rank - 1]);
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
        let [.., rows, columns] = *x.shape() else {
            return Err(EvalError::Invalid("not a matrix".into()));
        };
        let zero = Tensor::zeros(TensorType::new(x.dtype(), []))?;
        let kept = pick(&[x, &zero], x.shape(), |i| {
            let (row, column) = (i as u64 / columns % rows, i as u64 % columns);
            let diagonal = i128::from(column) - i128::from(row) - i128::from(self.k);
            let keep = if self.upper { diagonal >= 0 } else { diagonal <= 0 };
            if keep { (0, i) } else { (1, 0) }
        })?;
        Ok(vec![kept])
    }

    /// The same triangle.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let g = v.gradient()?;
        Ok(vec![Some(v.push(self.clone(), &[g])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
