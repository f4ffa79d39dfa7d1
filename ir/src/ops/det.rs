//! The determinant of square matrices.
//!
//! - **ONNX**: Det (since 11).
//! - **Split**: the matrix stays whole, leading dimensions are parallel.

use super::decode::{Decoder, DecoderEntry};
use super::det_grad::DetGrad;
use super::lanes::floats;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The determinant of each matrix in the last two dimensions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Det {}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Det", 11, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    Ok(vec![d.push(Det {}, &[d.input(0)?])?])
}

impl OpDef for Det {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let x = &inputs[0];
        if !x.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: x.dtype });
        }
        match x.shape[..] {
            [ref outer @ .., n, m] if n == m => Ok(vec![TensorType::new(x.dtype, outer)]),
            _ => {
                let expected = "2 or more, the last two square".to_string();
                Err(OpError::Rank { index: 0, found: x.rank(), expected })
            }
        }
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let (x, outer) = (&inputs[0].shape, outputs[0].rank());
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, x, |d| d >= outer);
        rule.input(dims.iter().copied().map(Some));
        rule.output(dims[..outer].iter().copied().map(Some));
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let n = inputs[0].shape.last().map_or(0.0, |&n| n as f64);
        Work::memory(inputs, outputs, n)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let [ref outer @ .., n, _] = *inputs[0].shape() else {
            return Err(EvalError::Invalid("not a matrix".into()));
        };
        let (n, count) = (n as usize, crate::graph::elements(outer) as usize);
        let x = inputs[0].to_f64s();
        let matrices = (0..count).map(|i| determinant(x[i * n * n..(i + 1) * n * n].to_vec(), n));
        let results: Vec<f64> = matrices.collect();
        Ok(vec![floats(inputs[0].ty(), outer, &results)?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x) = (v.gradient()?, v.inputs[0]);
        Ok(vec![Some(v.push(DetGrad {}, &[x, g])?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

/// By elimination with the largest pivot; destroys the matrix.
pub(super) fn determinant(mut x: Vec<f64>, n: usize) -> f64 {
    let mut result = 1.0;
    for k in 0..n {
        let size = |&row: &usize| x[row * n + k].abs();
        let pivot = (k..n).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(k);
        if x[pivot * n + k] == 0.0 {
            return 0.0;
        }
        if pivot != k {
            (0..n).for_each(|j| x.swap(k * n + j, pivot * n + j));
            result = -result;
        }
        result *= x[k * n + k];
        for row in k + 1..n {
            let factor = x[row * n + k] / x[k * n + k];
            (k..n).for_each(|j| x[row * n + j] -= factor * x[k * n + j]);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn determinants_of_small_matrices() {
        let det = |shape: &[u64], x: &[f64]| {
            let x = Tensor::new(shape, x.to_vec()).unwrap();
            Det {}.eval(&[&x]).unwrap().remove(0).to_f64s()
        };
        assert_eq!(det(&[2, 2], &[0.0, 2.0, 3.0, 1.0]), [-6.0]);
        assert_eq!(det(&[2, 1, 1], &[4.0, -5.0]), [4.0, -5.0]);
        assert_eq!(det(&[2, 2], &[1.0, 2.0, 2.0, 4.0]), [0.0]);
        assert_eq!(det(&[0, 0], &[]), [1.0]);
        assert_eq!(det(&[0, 3, 3], &[]), [0.0; 0]);
    }
}
