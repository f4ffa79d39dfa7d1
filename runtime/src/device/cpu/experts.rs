//! Layers of experts: the tokens of one expert at a time, as matrix products.

use super::gather::{indices, resolve};
use super::gemm::Product;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use planc_ir::ops::mixture_of_experts::{Extents, MixtureOfExperts};
use std::borrow::Cow;

const NAME: &str = "mixture_of_experts";

/// Tokens of an expert that are processed at one time.
const ROWS: usize = 256;

/// Runs a layer; inputs as the op has them.
pub fn run(
    layer: &MixtureOfExperts,
    inputs: &[In<'_>],
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let mismatch = |why: String| KernelError::Operands { kernel: NAME, why };
    let shapes: Vec<&[u64]> = inputs.iter().map(In::shape).collect();
    let extents = layer.extents(&shapes).map_err(|e| mismatch(e.to_string()))?;
    let ([x, choices, weights, experts @ ..], Some(down)) = (inputs, inputs.last()) else {
        return Err(mismatch(format!("{} operands", inputs.len())));
    };
    let fits = out.shape().split_last().is_some_and(|(&last, tokens)| {
        last == extents.result && *tokens == x.shape()[..x.shape().len() - 1]
    });
    if !fits {
        return Err(mismatch(format!("{:?} to {:?}", x.shape(), out.shape())));
    }
    let weights: Vec<f64> = with_elem!(weights.dtype(), T => {
        weights.elements::<T>().iter().map(|w| w.to_f64()).collect()
    });
    // For each expert held here the tokens that go to it, with their weights.
    let mut routed: Vec<Vec<(usize, f64)>> = vec![Vec::new(); extents.experts as usize];
    let (first, all) = (down.local.start[0], down.local.global[0]);
    for (i, (choice, weight)) in indices(NAME, choices)?.into_iter().zip(weights).enumerate() {
        let held = resolve(choice, all)?.checked_sub(first).map(|e| e as usize);
        if let Some(tokens) = held.and_then(|e| routed.get_mut(e)) {
            tokens.push((i / extents.choices as usize, weight));
        }
    }
    let operands = [&[*x], experts].concat();
    widen::run(&Kernel { layer, extents, routed }, &operands, out)
}

struct Kernel<'a> {
    layer: &'a MixtureOfExperts,
    extents: Extents,
    routed: Vec<Vec<(usize, f64)>>,
}

impl RealKernel for Kernel<'_> {
    const NAME: &'static str = NAME;

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        out.fill(T::default());
        let Extents { width, inner, result, .. } = self.extents;
        let [width, inner, result] = [width, inner, result].map(|n| n as usize);
        let sides = self.layer.f.arity();
        let Some((down, layers)) = inputs[1..].split_last() else { return Ok(()) };
        let most = self.routed.iter().map(Vec::len).max().unwrap_or(0).min(ROWS);
        let mut x = vec![T::default(); most * width];
        let mut projected = vec![T::default(); most * sides * inner];
        let mut hidden = vec![T::default(); most * inner];
        let mut y = vec![T::default(); most * result];
        for (expert, tokens) in self.routed.iter().enumerate() {
            for tokens in tokens.chunks(ROWS) {
                let m = tokens.len();
                for (i, (token, _)) in tokens.iter().enumerate() {
                    x[i * width..][..width].copy_from_slice(&inputs[0][token * width..][..width]);
                }
                let per_layer = sides * inner / layers.len();
                for (i, weights) in layers.iter().enumerate() {
                    let start = expert * per_layer * width;
                    let product = Product {
                        m,
                        k: width,
                        n: per_layer,
                        a: (0, width, 1),
                        b: stored(self.layer.trans_in, start, width, per_layer),
                        c: (i * per_layer, sides * inner, 1),
                    };
                    T::gemm(&product, &x, weights, &mut projected);
                }
                for row in 0..m {
                    let from = &projected[row * sides * inner..][..sides * inner];
                    self.activate(from, &mut hidden[row * inner..][..inner]);
                }
                let product = Product {
                    m,
                    k: inner,
                    n: result,
                    a: (0, inner, 1),
                    b: stored(self.layer.trans_out, expert * inner * result, inner, result),
                    c: (0, result, 1),
                };
                T::gemm(&product, &hidden, down, &mut y);
                for (i, &(token, weight)) in tokens.iter().enumerate() {
                    let weight = T::from_f64(weight);
                    let out = &mut out[token * result..][..result];
                    for (out, &y) in out.iter_mut().zip(&y[i * result..]) {
                        *out = *out + weight * y;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Kernel<'_> {
    /// The function of one token's projections, which stand one behind the other.
    fn activate<T: Real>(&self, projected: &[T], hidden: &mut [T]) {
        let inner = hidden.len();
        let (gate, up) = projected.split_at(inner);
        for (i, hidden) in hidden.iter_mut().enumerate() {
            let sides = [gate[i].to_f64(), up.get(i).map_or(0.0, |up| up.to_f64())];
            *hidden = T::from_f64(self.layer.f.apply(&sides[..self.layer.f.arity()]));
        }
    }
}

/// Where a matrix of `rows` and `cols` begins and the distances of its rows and columns.
const fn stored(transposed: bool, start: usize, rows: usize, cols: usize) -> (usize, usize, usize) {
    if transposed { (start, 1, rows) } else { (start, cols, 1) }
}
