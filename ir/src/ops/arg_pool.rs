//! Where the largest element of each pooling window lies.
//!
//! - **ONNX**: the second output of MaxPool (since 8), which numbers elements across all planes:
//!   decoding adds where each plane begins.
//! - **Semantics**: the index, within its plane, of a window's largest element inside the input; of
//!   equal ones the first. Row-major, or with the first spatial dimension fastest.
//! - **Split**: samples and channels are parallel, spatial dimensions stay whole.

use super::decode::DecoderEntry;
use super::pool::Pool;
use super::top_k::compare;
use super::{OpDef, Work};
use crate::graph::{TensorType, elements};
use crate::program::{Kernel, PoolKind};
use crate::sharding::FactorRule;
use crate::tensor::unravel;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// The places of the largest elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgPool {
    /// Whose elements: a pooling for the largest.
    pub pool: Pool,
    /// Whether the first spatial dimension is fastest.
    pub column_major: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for ArgPool {
    fn infer(
        &self,
        inputs: &[TensorType],
        consts: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        if self.pool.kind != PoolKind::Max {
            return Err(OpError::Invalid("only the largest element has a place".into()));
        }
        let types = self.pool.infer(inputs, consts)?;
        let place = |ty: TensorType| TensorType::new(DType::I64, ty.shape);
        Ok(types.into_iter().map(place).collect())
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        self.pool.rule(inputs, outputs)
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        self.pool.work(inputs, outputs)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let shape =
            self.pool.shape(x.shape()).map_err(|e| EvalError::Invalid(e.to_string()))?;
        let spatial = &x.shape()[2..];
        let area = (elements(spatial) as usize).max(1);
        let number = |i: usize| {
            if !self.column_major {
                return i;
            }
            let at = unravel(i, spatial).into_iter().zip(spatial).rev();
            at.fold(0, |number, (c, &n)| number * n as usize + c)
        };
        let ty = TensorType::new(DType::I64, shape);
        let y = self.pool.combine(x.shape(), &ty, |window, _| {
            let larger = |best: usize, i: usize| {
                if compare(x, i, best) == Ordering::Greater { i } else { best }
            };
            window.reduce(larger).map_or(0, |i| number(i % area))
        })?;
        Ok(vec![Tensor::from_int(ty, |i| y[i] as i128)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
