//! The gradient of what a matrix product multiplies every row with.
//!
//! - **ONNX**: none; it comes from differentiating MatMul.
//! - **Semantics**: `out[i, j] = Σ_r x[r.., i] · y[r.., j]`: the leading dimensions, which are the same, are
//!   summed together, so that no sum is left for later and nothing of every batch is held.
//! - **Split**: `r.. i, r.. j -> i j`; the leading dimensions are sums. Linear in either operand.

use super::decode::DecoderEntry;
use super::{OpDef, Vjp, Work, WorkKind, expect_inputs, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::ops::Build;
use crate::ops::matmul::MatMul;
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The sum over all leading dimensions of the products of two operands' rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatMulGrad {}

/// No ONNX operator is this.
pub const DECODERS: &[DecoderEntry] = &[];

const ROWS: [&str; 7] = ["r0", "r1", "r2", "r3", "r4", "r5", "r6"];

impl MatMulGrad {
    /// An operand as a matrix of rows.
    fn rows(ty: &TensorType) -> (u64, u64) {
        let last = ty.rank() - 1;
        (elements(&ty.shape[..last]), ty.shape[last])
    }
}

impl OpDef for MatMulGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let dtype = same_dtype(&inputs[0], &inputs[1])?;
        if !dtype.is_float() {
            return Err(OpError::UnsupportedType { found: dtype });
        }
        for (index, t) in inputs.iter().enumerate() {
            if t.rank() < 2 {
                let expected = "2 or more".into();
                return Err(OpError::Rank { index, found: t.rank(), expected });
            }
        }
        let (x, y) = (&inputs[0].shape, &inputs[1].shape);
        if x[..x.len() - 1] != y[..y.len() - 1] {
            return Err(OpError::ShapeMismatch {
                lhs: x.clone(),
                rhs: y.clone(),
                why: "the leading dimensions differ",
            });
        }
        Ok(vec![TensorType::new(dtype, [x[x.len() - 1], y[y.len() - 1]])])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let leading = &inputs[0].shape[..inputs[0].rank() - 1];
        let rows: Vec<_> = leading
            .iter()
            .zip(ROWS)
            .map(|(&n, name)| rule.factor(name, n, FactorKind::Reduce(ReduceKind::Sum)))
            .collect();
        let i = rule.factor("i", outputs[0].shape[0], FactorKind::Parallel);
        let j = rule.factor("j", outputs[0].shape[1], FactorKind::Parallel);
        for last in [i, j] {
            rule.input(rows.iter().copied().chain([last]).map(Some));
        }
        rule.output([Some(i), Some(j)]);
        rule.linear([0]);
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let ((k, m), (_, n)) = (Self::rows(&inputs[0]), Self::rows(&inputs[1]));
        Work {
            kind: WorkKind::Matmul { batch: 1, m, n, k },
            flops: 2.0 * m as f64 * n as f64 * k as f64,
            bytes: super::work::traffic(inputs, outputs),
        }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let ((rows, m), (_, n)) = (Self::rows(inputs[0].ty()), Self::rows(inputs[1].ty()));
        let (rows, m, n) = (rows as usize, m as usize, n as usize);
        let ty = TensorType::new(inputs[0].dtype(), [m as u64, n as u64]);
        if ty.elements() == 0 {
            return Ok(vec![Tensor::zeros(ty)?]);
        }
        let (x, y) = (inputs[0].to_f64s(), inputs[1].to_f64s());
        let sum = |at: usize| (0..rows).map(|r| x[r * m + at / n] * y[r * n + at % n]).sum();
        Ok(vec![Tensor::from_f64(ty, sum)?])
    }

    /// Each operand's gradient is the other's rows times the result's gradient.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x, y) = (v.gradient()?, v.inputs[0], v.inputs[1]);
        let product = |v: &mut Vjp<'_>, index: usize, rows: ValueId, trans_b: bool| {
            let wanted = v.wants(index);
            wanted.then(|| v.push(MatMul { trans_a: false, trans_b }, &[rows, g])).transpose()
        };
        Ok(vec![product(v, 0, y, true)?, product(v, 1, x, false)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::MatMulGrad
    }
}
