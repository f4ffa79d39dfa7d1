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
    qkv: [&In<'_>; 3],
    mask: Option<&In<'_>>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let kernel = Applied::new(attention, qkv, mask, out.shape())?;
    widen::run(&kernel, &qkv.map(|x| *x), out)
}

/// A mask that broadcasts to the scores.
struct Mask<'a> {
    mask: &'a In<'a>,
    /// Distances of batches, heads, queries and keys.
    strides: [usize; 4],
}

impl Mask<'_> {
    /// The first element for one query, and the distance of those that follow.
    const fn place(&self, batch: usize, head: usize, query: usize) -> (usize, usize) {
        let [b, h, q, k] = self.strides;
        (b * batch + h * head + q * query, k)
    }

    /// The elements for one query.
    fn row(&self, batch: usize, head: usize, query: usize, into: &mut [f64]) {
        let (first, k) = self.place(batch, head, query);
        with_elem!(self.mask.dtype(), T => {
            let elements = self.mask.elements::<T>();
            for (j, x) in into.iter_mut().enumerate() {
                *x = elements[first + j * k].to_f64();
            }
        });
    }
}

/// An attention applied to operands.
pub(super) struct Applied<'a> {
    pub attention: &'a Attention,
    mask: Option<Mask<'a>>,
    pub batch: usize,
    pub heads: usize,
    /// Query heads that share a key head.
    pub group: usize,
    pub queries: usize,
    pub keys: usize,
    pub depth: usize,
    pub width: usize,
    /// Where the rank's queries begin among all.
    first_query: u64,
}

impl<'a> Applied<'a> {
    /// The attention of these operands to a result of this shape.
    pub fn new(
        attention: &'a Attention,
        [q, k, v]: [&In<'_>; 3],
        mask: Option<&'a In<'a>>,
        out: &[u64],
    ) -> Result<Self, KernelError> {
        let mismatch = |why| Err(KernelError::Operands { kernel: "attention", why });
        let (sq, sk, sv) = (q.shape(), k.shape(), v.shape());
        let fits = [sq, sk, sv, out].iter().all(|s| s.len() == 4)
            && sq[0] == sk[0]
            && sq[3] == sk[3]
            && sk[..3] == sv[..3]
            && out[..3] == sq[..3]
            && out[3] == sv[3]
            && (sq[1] == 0 || (sk[1] > 0 && sq[1] % sk[1] == 0));
        if !fits {
            return mismatch(format!("{sq:?}, {sk:?}, {sv:?} to {out:?}"));
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
        Ok(Self {
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
        })
    }

    /// Blocks of queries: of each head its number, and the first query and how many there are.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let queries = self.queries;
        (0..self.batch * self.heads).flat_map(move |head| {
            (0..queries)
                .step_by(QUERIES)
                .map(move |first| (head, first, QUERIES.min(queries - first)))
        })
    }

    /// The number of scores of a block.
    pub fn block_scores(&self) -> usize {
        QUERIES.min(self.queries) * self.keys
    }

    /// The products of a block of queries with all keys of its head.
    pub fn products<T: Real>(
        &self,
        (head, first, m): (usize, usize, usize),
        q: &[T],
        k: &[T],
        scores: &mut [T],
    ) {
        let product = Product {
            m,
            k: self.depth,
            n: self.keys,
            a: ((head * self.queries + first) * self.depth, self.depth, 1),
            b: (head / self.group * self.keys * self.depth, 1, self.depth),
            c: (0, self.keys, 1),
        };
        T::gemm(&product, q, k, scores);
    }
}

impl RealKernel for Applied<'_> {
    const NAME: &'static str = "attention";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let mut scores = vec![T::default(); self.block_scores()];
        let mut mask = vec![0.0; self.keys];
        for (head, first, m) in self.blocks() {
            self.products((head, first, m), q, k, &mut scores);
            for (i, scores) in scores.chunks_exact_mut(self.keys.max(1)).take(m).enumerate() {
                self.row(head, first + i, &mut mask).weigh(scores);
            }
            let product = Product {
                m,
                k: self.keys,
                n: self.width,
                a: (0, self.keys, 1),
                b: (head / self.group * self.keys * self.width, self.width, 1),
                c: ((head * self.queries + first) * self.width, self.width, 1),
            };
            T::gemm(&product, &scores, v, out);
        }
        Ok(())
    }
}

impl Applied<'_> {
    /// The first element of the mask for a query of a head, and the distance of those that follow.
    pub fn mask_place(&self, head: usize, query: usize) -> Option<(usize, usize)> {
        self.mask.as_ref().map(|m| m.place(head / self.heads, head % self.heads, query))
    }

    /// One query of a head, with its part of the mask in `mask`.
    pub fn row<'r>(&'r self, head: usize, query: usize, mask: &'r mut [f64]) -> Row<'r> {
        let dtype = self.mask.as_ref().map(|m| {
            m.row(head / self.heads, head % self.heads, query, mask);
            m.mask.dtype()
        });
        let global = self.first_query + query as u64;
        Row { attention: self.attention, mask, dtype, global }
    }
}

/// One query.
pub(super) struct Row<'a> {
    attention: &'a Attention,
    mask: &'a [f64],
    /// The mask's element type, if there is one.
    dtype: Option<DType>,
    /// Which of all queries it is.
    global: u64,
}

impl Row<'_> {
    /// What is added to the score of a key, and whether the key is seen.
    pub fn masks(&self, j: usize) -> (Option<(f64, DType)>, bool) {
        let hidden = self.dtype == Some(DType::Bool) && self.mask[j] == 0.0;
        let added = self.dtype.filter(|&d| d != DType::Bool).map(|d| (self.mask[j], d));
        (added, !hidden && self.attention.reaches(self.global, j as u64))
    }

    /// Turns the query's products with all keys into weights.
    pub fn weigh<T: Real>(&self, scores: &mut [T]) {
        let mut max = f64::NEG_INFINITY;
        for (j, score) in scores.iter_mut().enumerate() {
            let (added, seen) = self.masks(j);
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
