//! Scaled dot-product attention, a few queries of one head at a time, so that only their scores are
//! held.

use super::gemm::Product;
use super::operand::{In, Out};
use super::strided::broadcast;
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use planc_ir::DType;
use planc_ir::ops::attention::Attention;
use std::borrow::Cow;

/// Queries whose scores are held at one time.
const QUERIES: usize = 64;

/// `softmax(mask(q · kᵀ)) · v` for each head.
pub fn run(
    attention: &Attention,
    [q, k, v]: [&In<'_>; 3],
    mask: Option<&In<'_>>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let mismatch = |why| Err(KernelError::Operands { kernel: "attention", why });
    let (sq, sk, sv, so) = (q.shape(), k.shape(), v.shape(), out.shape());
    let fits = [sq, sk, sv, so].iter().all(|s| s.len() == 4)
        && sq[0] == sk[0]
        && sq[3] == sk[3]
        && sk[..3] == sv[..3]
        && so[..3] == sq[..3]
        && so[3] == sv[3]
        && (sq[1] == 0 || (sk[1] > 0 && sq[1] % sk[1] == 0));
    if !fits {
        return mismatch(format!("{sq:?}, {sk:?}, {sv:?} to {so:?}"));
    }
    let scores = [sq[0], sq[1], sq[2], sk[2]];
    if let Some(mask) = mask {
        let own = mask.shape().iter().rev().zip(scores.iter().rev());
        if mask.shape().len() > 4 || !own.into_iter().all(|(&a, &n)| a == n || a == 1) {
            return mismatch(format!("the mask {:?} of scores {scores:?}", mask.shape()));
        }
    }
    let mask = mask.map(|mask| {
        let strides = broadcast(mask.shape(), 4);
        Mask { mask, strides: [0, 1, 2, 3].map(|i| strides[i] as usize) }
    });
    let [batch, heads, queries, keys] = scores.map(|n| n as usize);
    let kernel = Kernel {
        attention,
        mask,
        batch,
        heads,
        group: heads / (sk[1] as usize).max(1),
        queries,
        keys,
        depth: sq[3] as usize,
        width: sv[3] as usize,
        first_query: q.local.start[2],
    };
    widen::run(&kernel, &[*q, *k, *v], out)
}

/// A mask that broadcasts to the scores.
struct Mask<'a> {
    mask: &'a In<'a>,
    /// Distances of batches, heads, queries and keys.
    strides: [usize; 4],
}

impl Mask<'_> {
    /// The elements for one query.
    fn row(&self, batch: usize, head: usize, query: usize, into: &mut [f64]) {
        let [b, h, q, k] = self.strides;
        let first = b * batch + h * head + q * query;
        with_elem!(self.mask.dtype(), T => {
            let elements = self.mask.elements::<T>();
            for (j, x) in into.iter_mut().enumerate() {
                *x = elements[first + j * k].to_f64();
            }
        });
    }
}

struct Kernel<'a> {
    attention: &'a Attention,
    mask: Option<Mask<'a>>,
    batch: usize,
    heads: usize,
    /// Query heads that share a key head.
    group: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    width: usize,
    /// Where the rank's queries begin among all.
    first_query: u64,
}

impl RealKernel for Kernel<'_> {
    const NAME: &'static str = "attention";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let mut scores = vec![T::default(); QUERIES.min(self.queries) * self.keys];
        let mut mask = vec![0.0; self.keys];
        for head in 0..self.batch * self.heads {
            let kv = head / self.group * self.keys;
            for first in (0..self.queries).step_by(QUERIES) {
                let m = QUERIES.min(self.queries - first);
                let row = head * self.queries + first;
                let product = Product {
                    m,
                    k: self.depth,
                    n: self.keys,
                    a: (row * self.depth, self.depth, 1),
                    b: (kv * self.depth, 1, self.depth),
                    c: (0, self.keys, 1),
                };
                T::gemm(&product, q, k, &mut scores);
                for (i, scores) in scores.chunks_exact_mut(self.keys.max(1)).take(m).enumerate() {
                    self.weigh(head, first + i, &mut mask, scores);
                }
                let product = Product {
                    m,
                    k: self.keys,
                    n: self.width,
                    a: (0, self.keys, 1),
                    b: (kv * self.width, self.width, 1),
                    c: (row * self.width, self.width, 1),
                };
                T::gemm(&product, &scores, v, out);
            }
        }
        Ok(())
    }
}

impl Kernel<'_> {
    /// Turns one query's products with all keys into weights.
    fn weigh<T: Real>(&self, head: usize, query: usize, mask: &mut [f64], scores: &mut [T]) {
        let dtype = self.mask.as_ref().map(|m| {
            m.row(head / self.heads, head % self.heads, query, mask);
            m.mask.dtype()
        });
        let global = self.first_query + query as u64;
        let mut max = f64::NEG_INFINITY;
        for (j, score) in scores.iter_mut().enumerate() {
            let hidden = dtype == Some(DType::Bool) && mask[j] == 0.0;
            let added = dtype.filter(|&d| d != DType::Bool).map(|d| (mask[j], d));
            let seen = !hidden && self.attention.reaches(global, j as u64);
            let masked = self.attention.masked(score.to_f64(), added, seen);
            *score = T::from_f64(masked);
            if masked > max || masked.is_nan() {
                max = masked;
            }
        }
        if max == f64::NEG_INFINITY && self.attention.zero_unseeing {
            scores.fill(T::default());
            return;
        }
        let mut sum = 0.0;
        for score in scores.iter_mut() {
            *score = T::from_f64(score.to_f64() - max).exp();
            sum += score.to_f64();
        }
        for score in scores.iter_mut() {
            *score = T::from_f64(score.to_f64() / sum);
        }
    }
}
