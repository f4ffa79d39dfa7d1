//! The gradient of attention, a few queries of one head at a time. The weights are computed again, so
//! that only the scores of these queries are held.

use super::attention::Applied;
use super::gemm::Product;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernels};
use crate::KernelError;
use planc_ir::ops::attention::Attention;
use std::borrow::Cow;

/// The gradients of q, k and v, and of the mask if there is a fourth result, from that of the result.
pub fn run(
    attention: &Attention,
    g: &In<'_>,
    qkv: [&In<'_>; 3],
    mask: Option<&In<'_>>,
    outs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let operands: Vec<&In<'_>> = qkv.into_iter().chain(mask).collect();
    if outs.len() < 3
        || outs.len() > operands.len()
        || outs.iter().zip(&operands).any(|(out, x)| out.shape() != x.shape())
    {
        let why = "the results have not the extents of the operands".to_string();
        return Err(KernelError::Operands { kernel: "attention_grad", why });
    }
    let applied = Applied::new(attention, qkv, mask, g.shape())?;
    let [q, k, v] = qkv.map(|x| *x);
    widen::run_all(&Gradient(applied), &[*g, q, k, v], outs)
}

struct Gradient<'a>(Applied<'a>);

/// Buffers of one block of queries.
struct Block<T> {
    /// Scores before masks, where their slope depends on them.
    raw: Vec<T>,
    weights: Vec<T>,
    /// Gradients of weights, then of scores.
    gradients: Vec<T>,
    mask: Vec<f64>,
    /// The gradient of all of the mask, if it is a result.
    of_mask: Vec<f64>,
    /// What the block adds to the gradients of keys or values.
    added: Vec<T>,
}

impl RealKernels for Gradient<'_> {
    const NAME: &'static str = "attention_grad";

    fn compute<T: Real>(
        &self,
        inputs: &[Cow<'_, [T]>],
        outs: &mut [&mut [T]],
    ) -> Result<(), KernelError> {
        let (g, q, k, v) = (&inputs[0], &inputs[1], &inputs[2], &inputs[3]);
        for out in &mut *outs {
            out.fill(T::default());
        }
        if g.is_empty() {
            return Ok(()); // there may be too many keys to hold scores of
        }
        let [dq, dk, dv, dmask @ ..] = outs else { return Ok(()) };
        let h = &self.0;
        let (keys, depth, width) = (h.keys, h.depth, h.width);
        let zeros = |n: usize| vec![T::default(); n];
        let scores = h.block_scores();
        let mut b = Block {
            raw: zeros(if h.attention.softcap.is_some() { scores } else { 0 }),
            weights: zeros(scores),
            gradients: zeros(scores),
            mask: vec![0.0; keys],
            of_mask: vec![0.0; dmask.first().map_or(0, |d| d.len())],
            added: zeros(keys * depth.max(width)),
        };
        for (head, first, m) in h.blocks() {
            let (row, kv) = (head * h.queries + first, head / h.group * keys);
            h.products((head, first, m), q, k, &mut b.weights);
            let product = Product {
                m,
                k: width,
                n: keys,
                a: (row * width, width, 1),
                b: (kv * width, 1, width),
                c: (0, keys, 1),
            };
            T::gemm(&product, g, v, &mut b.gradients);
            self.rows((head, first, m), &mut b);
            // dq of the block, whole; what it adds to dk and dv.
            let product = Product {
                m,
                k: keys,
                n: depth,
                a: (0, keys, 1),
                b: (kv * depth, depth, 1),
                c: (row * depth, depth, 1),
            };
            T::gemm(&product, &b.gradients, k, dq);
            for (scores, x, n, d) in
                [(&b.gradients, q, depth, &mut *dk), (&b.weights, g, width, &mut *dv)]
            {
                let product =
                    Product { m: keys, k: m, n, a: (0, 1, keys), b: (row * n, n, 1), c: (0, n, 1) };
                T::gemm(&product, scores, x, &mut b.added);
                let d = &mut d[kv * n..][..keys * n];
                d.iter_mut().zip(&b.added).for_each(|(d, &a)| *d = *d + a);
            }
        }
        for dmask in dmask {
            dmask.iter_mut().zip(&b.of_mask).for_each(|(d, &sum)| *d = T::from_f64(sum));
        }
        Ok(())
    }
}

impl Gradient<'_> {
    /// Turns a block's products into weights, and the gradients of weights into those of the products.
    fn rows<T: Real>(&self, (head, first, m): (usize, usize, usize), b: &mut Block<T>) {
        let keys = self.0.keys.max(1);
        if !b.raw.is_empty() {
            b.raw.copy_from_slice(&b.weights);
        }
        let weights = b.weights.chunks_exact_mut(keys);
        let rows = weights.zip(b.gradients.chunks_exact_mut(keys)).take(m).enumerate();
        for (i, (weights, gradients)) in rows {
            let row = self.0.row(head, first + i, &mut b.mask);
            row.weigh(weights);
            let pairs = weights.iter().zip(&*gradients);
            let mean: f64 = pairs.map(|(p, d)| p.to_f64() * d.to_f64()).sum();
            let place = self.0.mask_place(head, first + i).filter(|_| !b.of_mask.is_empty());
            for (j, (p, d)) in weights.iter().zip(gradients).enumerate() {
                let (added, seen) = row.masks(j);
                if !Attention::follows(added, seen) {
                    *d = T::default();
                    continue;
                }
                let of_score = p.to_f64() * (d.to_f64() - mean);
                if let Some((start, step)) = place {
                    b.of_mask[start + j * step] += of_score;
                }
                let raw = b.raw.get(i * keys + j).map_or(0.0, |raw| raw.to_f64());
                *d = T::from_f64(of_score * self.0.attention.slope(raw));
            }
        }
    }
}
