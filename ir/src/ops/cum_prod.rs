//! Running products.
//!
//! - **ONNX**: CumProd (since 26).
//! - **Semantics**: `out[i] = Π_{j ≤ i} x[j]` along a dimension; `exclusive` leaves `i` itself out,
//!   `reverse` multiplies from the end.
//! - **Split**: the dimension stays whole, the others are parallel.

use super::cum_prod_grad::CumProdGrad;
use super::cumsum::{Running, decode_running};
use super::decode::{Decoder, DecoderEntry};
use super::{Build, OpDef, Vjp, Work, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Running products along a dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CumProd {
    /// The dimension.
    pub axis: usize,
    /// Whether an element's own value is left out.
    pub exclusive: bool,
    /// Whether products run from the end.
    pub reverse: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("CumProd", 26, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let Running { axis, exclusive, reverse } = decode_running(d)?;
    Ok(vec![d.push(CumProd { axis, exclusive, reverse }, &[d.input(0)?])?])
}

impl CumProd {
    fn running(&self) -> Running {
        Running { axis: self.axis, exclusive: self.exclusive, reverse: self.reverse }
    }
}

impl OpDef for CumProd {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        self.running().infer(inputs)
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        factors::along(inputs, outputs, &[self.axis]).build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 1.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (x, ty) = (inputs[0], inputs[0].ty().clone());
        Ok(vec![if ty.dtype.is_float() {
            let mut products = x.to_f64s();
            self.running().run(x.shape(), &mut products, 1.0, |a, b| a * b);
            Tensor::from_f64(ty, |i| products[i])?
        } else {
            // Wrapping in 128 bits is wrapping in the element type.
            let mut products: Vec<i128> = (0..x.len()).map(|i| x.int_at(i)).collect();
            self.running().run(x.shape(), &mut products, 1, i128::wrapping_mul);
            Tensor::from_int(ty, |i| products[i])?
        }])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x) = (v.gradient()?, v.inputs[0]);
        let Self { axis, exclusive, reverse } = *self;
        Ok(vec![Some(v.push(CumProdGrad { axis, exclusive, reverse }, &[x, g])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
