//! Batched matrix products.
//!
//! - **ONNX**: MatMul (since 7), Gemm (since 7; its scale and bias become elementwise nodes).
//! - **Semantics**: `out[.., i, j] = Σ_k a[.., i, k] · b[.., k, j]`, leading dimensions broadcast. With
//!   `trans_a` the left operand is stored `[.., k, i]`, with `trans_b` the right one `[.., j, k]`.
//! - **Split**: `b.. m k, b.. k n -> b.. m n`; `k` is a sum. Linear in either operand.

use super::decode::DecoderEntry;
use super::{OpDef, Work, WorkKind, broadcast, expect_inputs, same_dtype};
use crate::graph::{TensorType, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A batched matrix product. Both operands have rank 2 or more (decoding reshapes vectors).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// The left operand is stored transposed.
    #[serde(default)]
    pub trans_a: bool,
    /// The right operand is stored transposed.
    #[serde(default)]
    pub trans_b: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

/// The extents of a product.
struct Extents {
    batch: Vec<u64>,
    m: u64,
    n: u64,
    k: u64,
}

impl MatMul {
    fn extents(&self, a: &[u64], b: &[u64]) -> Result<Extents, OpError> {
        let (ra, rb) = (a.len(), b.len());
        let (m, ka) =
            if self.trans_a { (a[ra - 1], a[ra - 2]) } else { (a[ra - 2], a[ra - 1]) };
        let (kb, n) =
            if self.trans_b { (b[rb - 1], b[rb - 2]) } else { (b[rb - 2], b[rb - 1]) };
        if ka != kb {
            return Err(OpError::ShapeMismatch {
                lhs: a.to_vec(),
                rhs: b.to_vec(),
                why: "the contracted extents differ",
            });
        }
        Ok(Extents { batch: broadcast(&a[..ra - 2], &b[..rb - 2])?, m, n, k: ka })
    }
}

const BATCH: [&str; 6] = ["b0", "b1", "b2", "b3", "b4", "b5"];

impl OpDef for MatMul {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let dtype = same_dtype(&inputs[0], &inputs[1])?;
        for (index, t) in inputs.iter().enumerate() {
            if t.rank() < 2 {
                return Err(OpError::Rank {
                    index,
                    found: t.rank(),
                    expected: "2 or more".into(),
                });
            }
        }
        let e = self.extents(&inputs[0].shape, &inputs[1].shape)?;
        let mut shape = e.batch;
        shape.extend([e.m, e.n]);
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let out = &outputs[0].shape;
        let nb = out.len() - 2;
        if nb > BATCH.len() {
            let ranks: Vec<usize> = inputs.iter().map(TensorType::rank).collect();
            return FactorRule::opaque(&ranks, &[out.len()], "more than 8 dimensions");
        }
        let k = inputs[0].shape[inputs[0].rank() - if self.trans_a { 2 } else { 1 }];
        let mut rule = RuleBuilder::new();
        let batch: Vec<_> = out[..nb]
            .iter()
            .zip(BATCH)
            .map(|(&n, name)| rule.factor(name, n, FactorKind::Parallel))
            .collect();
        let m = rule.factor("m", out[nb], FactorKind::Parallel);
        let n = rule.factor("n", out[nb + 1], FactorKind::Parallel);
        let k = rule.factor("k", k, FactorKind::Reduce(ReduceKind::Sum));
        for (t, tail) in inputs.iter().zip([
            if self.trans_a { [k, m] } else { [m, k] },
            if self.trans_b { [n, k] } else { [k, n] },
        ]) {
            let own = t.rank() - 2;
            let dims = t.shape[..own].iter().enumerate().map(|(i, &extent)| {
                let at = i + nb - own;
                (extent == out[at]).then_some(batch[at])
            });
            rule.input(dims.chain(tail.map(Some)));
        }
        rule.output(batch.iter().copied().chain([m, n]).map(Some));
        rule.linear([0]);
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let out = &outputs[0].shape;
        let (m, n) = (out[out.len() - 2], out[out.len() - 1]);
        let k = inputs[0].shape[inputs[0].rank() - if self.trans_a { 2 } else { 1 }];
        let batch = elements(&out[..out.len() - 2]);
        // Rows of a broadcast right operand are one tall product, as libraries run it.
        let shared_b = elements(&inputs[1].shape[..inputs[1].rank() - 2]) == 1;
        let (batch, m) =
            if shared_b && !self.trans_a { (1, m.saturating_mul(batch)) } else { (batch, m) };
        Work {
            kind: WorkKind::Matmul { batch, m, n, k },
            flops: 2.0 * batch as f64 * m as f64 * n as f64 * k as f64,
            bytes: super::work::traffic(inputs, outputs),
        }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let _ = inputs;
        Err(EvalError::Invalid("not yet".into()))
    }

    fn lower(&self) -> Kernel {
        Kernel::MatMul { trans_a: self.trans_a, trans_b: self.trans_b }
    }
}
