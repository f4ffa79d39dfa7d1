//! Batched matrix products.
//!
//! - **ONNX**: MatMul (since 1; vectors become matrices of one row or column). Gemm is made of it.
//! - **Semantics**: `out[.., i, j] = Σ_k a[.., i, k] · b[.., k, j]`, leading dimensions broadcast.
//!   With `trans_a` the left operand is stored `[.., k, i]`, with `trans_b` the right one `[.., j,
//!   k]`.
//! - **Split**: `b.. m k, b.. k n -> b.. m n`; `k` is a sum. Linear in either operand.

use super::decode::{Decoder, DecoderEntry};
use super::matmul_grad::MatMulGrad;
use super::{Build, OpDef, Vjp, Work, WorkKind, broadcast, broadcast_index, expect_inputs, factors, same_dtype,};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
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
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("MatMul", 1, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (a, b) = (d.input(0)?, d.input(1)?);
    Ok(vec![product(d, a, b)?])
}

/// The product of two values as NumPy defines it: vectors become matrices and lose the dimension
/// again.
pub fn product(d: &mut Decoder<'_>, mut a: ValueId, mut b: ValueId) -> Result<ValueId, OpError> {
    let (rank_a, rank_b) = (d.shape(a).len(), d.shape(b).len());
    for (index, rank) in [rank_a, rank_b].into_iter().enumerate() {
        if rank == 0 {
            return Err(OpError::Rank { index, found: 0, expected: "1 or more".into() });
        }
    }
    if rank_a == 1 {
        let k = d.shape(a)[0];
        a = d.reshape(a, [1, k])?;
    }
    if rank_b == 1 {
        let k = d.shape(b)[0];
        b = d.reshape(b, [k, 1])?;
    }
    let product = d.push(MatMul { trans_a: false, trans_b: false }, &[a, b])?;
    let mut shape = d.shape(product);
    if rank_b == 1 {
        shape.pop();
    }
    if rank_a == 1 {
        shape.remove(shape.len() - if rank_b == 1 { 1 } else { 2 });
    }
    d.reshape(product, shape)
}

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

impl MatMul {
    /// Where an operand holds the factor of summand `k` of result element `i`.
    fn indexed(&self, t: &Tensor, e: &Extents, side: usize) -> impl Fn(usize, usize) -> usize {
        let (m, n, k_extent) = (e.m as usize, e.n as usize, e.k as usize);
        let batch = e.batch.clone();
        let own = t.shape()[..t.shape().len() - 2].to_vec();
        let (left, stored_k_first) =
            (side == 0, if side == 0 { self.trans_a } else { !self.trans_b });
        let rows = if left { m } else { n };
        move |i, k| {
            let row = if left { i / n % m } else { i % n };
            let matrix = broadcast_index(&own, &batch, i / (m * n));
            let within = if stored_k_first { k * rows + row } else { row * k_extent + k };
            matrix * rows * k_extent + within
        }
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
        if dtype == DType::Bool {
            return Err(OpError::UnsupportedType { found: dtype });
        }
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
        let k = inputs[0].shape[inputs[0].rank() - if self.trans_a { 2 } else { 1 }];
        let mut rule = RuleBuilder::new();
        let batch = factors::named(&mut rule, &BATCH, &out[..nb], |_| false);
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
        if outputs[0].dtype.is_float() {
            rule.linear([0]);
            rule.linear([1]);
        }
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
        let (a, b) = (inputs[0], inputs[1]);
        let e = self
            .extents(a.shape(), b.shape())
            .map_err(|e| EvalError::Invalid(e.to_string()))?;
        let mut shape = e.batch.clone();
        shape.extend([e.m, e.n]);
        let ty = TensorType::new(a.dtype(), shape);
        // Allocated before the loop, so that a result that is too large is refused first.
        let zeros = Tensor::zeros(ty.clone())?;
        if zeros.is_empty() || e.k == 0 {
            return Ok(vec![zeros]);
        }
        Ok(vec![if ty.dtype.is_float() {
            let (a, b) = (self.indexed(a, &e, 0), self.indexed(b, &e, 1));
            let (x, y) = (inputs[0].to_f64s(), inputs[1].to_f64s());
            Tensor::from_f64(ty, |i| (0..e.k as usize).map(|k| x[a(i, k)] * y[b(i, k)]).sum())?
        } else {
            let (at_a, at_b) = (self.indexed(a, &e, 0), self.indexed(b, &e, 1));
            Tensor::from_int(ty, |i| {
                (0..e.k as usize).fold(0i128, |sum, k| {
                    let (x, y) = (a.int_at(at_a(i, k)), b.int_at(at_b(i, k)));
                    sum.wrapping_add(x.wrapping_mul(y))
                })
            })?
        }])
    }

    /// `da = g · bᵀ` and `db = aᵀ · g`, each as it is stored, summed where it was broadcast: over all leading
    /// dimensions at once where one right operand serves all rows.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, a, b) = (v.gradient()?, v.inputs[0], v.inputs[1]);
        let (trans_a, trans_b) = (self.trans_a, self.trans_b);
        let da = if trans_a { (b, g, trans_b, true) } else { (g, b, false, !trans_b) };
        let db = if trans_b { (g, a, true, trans_a) } else { (a, g, !trans_a, false) };
        let (shape_a, shape_b, shape_g) = (v.shape(a), v.shape(b), v.shape(g));
        let serves_all = !trans_a && shape_b.len() == 2 && shape_a.len() == shape_g.len();
        let mut gradients = Vec::with_capacity(2);
        for (index, (x, y, trans_a, trans_b)) in [da, db].into_iter().enumerate() {
            gradients.push(if !v.wants(index) {
                None
            } else if index == 1 && serves_all {
                Some(v.push(MatMulGrad {}, &[x, y])?)
            } else {
                let product = v.push(Self { trans_a, trans_b }, &[x, y])?;
                let shape = v.shape(v.inputs[index]);
                Some(v.sum_to(product, &shape)?)
            });
        }
        Ok(gradients)
    }

    fn lower(&self) -> Kernel {
        Kernel::MatMul { trans_a: self.trans_a, trans_b: self.trans_b }
    }
}
