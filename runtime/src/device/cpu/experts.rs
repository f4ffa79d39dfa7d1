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
    let routed = Routed::new(NAME, layer, inputs)?;
    if !routed.gives(inputs[0].shape(), out.shape()) {
        let why = format!("{:?} to {:?}", inputs[0].shape(), out.shape());
        return Err(KernelError::Operands { kernel: NAME, why });
    }
    let operands = [&inputs[..1], &inputs[3..]].concat();
    widen::run(&Forward(routed), &operands, out)
}

/// A layer, and what goes to which expert.
pub(super) struct Routed<'a> {
    pub layer: &'a MixtureOfExperts,
    pub extents: Extents,
    /// For each expert held here the choices that fall on it.
    pub experts: Vec<Vec<Choice>>,
}

/// A token that goes to an expert.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    /// The choice's number, through all tokens.
    pub number: usize,
    pub token: usize,
    pub weight: f64,
}

impl<'a> Routed<'a> {
    /// Of a layer's operands, which are as many as it takes if there is no error.
    pub fn new(
        kernel: &'static str,
        layer: &'a MixtureOfExperts,
        inputs: &[In<'_>],
    ) -> Result<Self, KernelError> {
        let shapes: Vec<&[u64]> = inputs.iter().map(In::shape).collect();
        let mismatch = |why: String| KernelError::Operands { kernel, why };
        let extents = layer.extents(&shapes).map_err(|e| mismatch(e.to_string()))?;
        let ([_, choices, weights, ..], Some(down)) = (inputs, inputs.last()) else {
            return Err(mismatch(format!("{} operands", inputs.len())));
        };
        let weights: Vec<f64> = with_elem!(weights.dtype(), T => {
            weights.elements::<T>().iter().map(|w| w.to_f64()).collect()
        });
        let mut experts: Vec<Vec<Choice>> = vec![Vec::new(); extents.experts as usize];
        let (first, all) = (down.local.start[0], down.local.global[0]);
        let choices = indices(kernel, choices)?.into_iter().zip(weights).enumerate();
        for (number, (choice, weight)) in choices {
            let held = resolve(choice, all)?.checked_sub(first).map(|e| e as usize);
            if let Some(tokens) = held.and_then(|e| experts.get_mut(e)) {
                tokens.push(Choice { number, token: number / extents.choices as usize, weight });
            }
        }
        Ok(Self { layer, extents, experts })
    }

    /// Whether tokens of these extents give results of those.
    pub fn gives(&self, x: &[u64], out: &[u64]) -> bool {
        let (Some((_, tokens)), Some((&last, rows))) = (x.split_last(), out.split_last()) else {
            return false;
        };
        last == self.extents.result && tokens == rows
    }

    /// Elements of a token, between the layers, and of a result.
    pub fn widths(&self) -> [usize; 3] {
        let Extents { width, inner, result, .. } = self.extents;
        [width, inner, result].map(|n| n as usize)
    }

    /// Columns of each of the matrices in front of the function.
    pub fn per_matrix(&self) -> usize {
        self.extents.inner as usize * if self.layer.fused { 2 } else { 1 }
    }

    /// As many tokens of one expert as are processed at one time, at most.
    pub fn most(&self) -> usize {
        self.experts.iter().map(Vec::len).max().unwrap_or(0).min(ROWS)
    }

    /// The experts that have got tokens, with some of these at a time.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, &[Choice])> {
        let experts = self.experts.iter().enumerate();
        experts.flat_map(|(expert, tokens)| tokens.chunks(ROWS).map(move |block| (expert, block)))
    }

    /// Where an expert's matrix `width × per_matrix` lies.
    pub fn first_at(&self, expert: usize) -> (usize, usize, usize) {
        let (rows, cols) = (self.extents.width as usize, self.per_matrix());
        stored(self.layer.trans_in, expert * rows * cols, rows, cols)
    }

    /// Where an expert's matrix `inner × result` lies.
    pub fn down_at(&self, expert: usize) -> (usize, usize, usize) {
        let [_, rows, cols] = self.widths();
        stored(self.layer.trans_out, expert * rows * cols, rows, cols)
    }

    /// What the function takes, from tokens' elements: the sides of a token one behind the other.
    pub fn project<T: Real>(
        &self,
        (expert, m): (usize, usize),
        x: &[T],
        matrices: &[Cow<'_, [T]>],
        projected: &mut [T],
    ) {
        let [width, inner, _] = self.widths();
        let (sides, per_matrix) = (self.layer.f.arity(), self.per_matrix());
        for (i, matrix) in matrices.iter().enumerate() {
            let product = Product {
                m,
                k: width,
                n: per_matrix,
                a: (0, width, 1),
                b: self.first_at(expert),
                c: (i * per_matrix, sides * inner, 1),
            };
            T::gemm(&product, x, matrix, projected);
        }
    }

    /// What the function takes for element `f` of a token, from its projections.
    pub fn sides<T: Real>(&self, projected: &[T], f: usize) -> [f64; 2] {
        let second = projected.get(self.extents.inner as usize + f);
        [projected[f].to_f64(), second.map_or(0.0, |x| x.to_f64())]
    }
}

/// Copies rows of tokens next to each other.
pub(super) fn collect<T: Real>(choices: &[Choice], from: &[T], width: usize, to: &mut [T]) {
    for (i, choice) in choices.iter().enumerate() {
        to[i * width..][..width].copy_from_slice(&from[choice.token * width..][..width]);
    }
}

struct Forward<'a>(Routed<'a>);

impl RealKernel for Forward<'_> {
    const NAME: &'static str = NAME;

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        out.fill(T::default());
        let routed = &self.0;
        let [width, inner, result] = routed.widths();
        let sides = routed.layer.f.arity();
        let Some((down, matrices)) = inputs[1..].split_last() else { return Ok(()) };
        let most = routed.most();
        let mut x = vec![T::default(); most * width];
        let mut projected = vec![T::default(); most * sides * inner];
        let mut hidden = vec![T::default(); most * inner];
        let mut y = vec![T::default(); most * result];
        for (expert, choices) in routed.blocks() {
            let m = choices.len();
            collect(choices, &inputs[0], width, &mut x);
            routed.project((expert, m), &x, matrices, &mut projected);
            for row in 0..m {
                let from = &projected[row * sides * inner..][..sides * inner];
                for (f, hidden) in hidden[row * inner..][..inner].iter_mut().enumerate() {
                    *hidden = T::from_f64(routed.layer.f.apply(&routed.sides(from, f)[..sides]));
                }
            }
            let product = Product {
                m,
                k: inner,
                n: result,
                a: (0, inner, 1),
                b: routed.down_at(expert),
                c: (0, result, 1),
            };
            T::gemm(&product, &hidden, down, &mut y);
            for (i, choice) in choices.iter().enumerate() {
                let weight = T::from_f64(choice.weight);
                let out = &mut out[choice.token * result..][..result];
                for (out, &y) in out.iter_mut().zip(&y[i * result..]) {
                    *out = *out + weight * y;
                }
            }
        }
        Ok(())
    }
}

/// Where a matrix of `rows` and `cols` begins and the distances of its rows and columns.
const fn stored(transposed: bool, start: usize, rows: usize, cols: usize) -> (usize, usize, usize) {
    if transposed { (start, 1, rows) } else { (start, cols, 1) }
}
