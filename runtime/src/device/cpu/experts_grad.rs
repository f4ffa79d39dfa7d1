//! The gradient of layers of experts: the tokens of one expert at a time, as matrix products. What stands
//! between the layers is computed again, so that only that of these tokens is held.

use super::experts::{Routed, collect};
use super::gemm::Product;
use super::operand::{In, Out};
use super::widen::{self, Real, RealKernels};
use crate::KernelError;
use planc_ir::ops::mixture_of_experts::MixtureOfExperts;
use std::borrow::Cow;

const NAME: &str = "mixture_of_experts_grad";

/// The gradients of tokens, of the router's weights, and of the experts' matrices if they are asked for; inputs
/// as the op has them.
pub fn run(
    layer: &MixtureOfExperts,
    inputs: &[In<'_>],
    outs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let mismatch = |why: &str| KernelError::Operands { kernel: NAME, why: why.to_string() };
    let (g, operands) = inputs.split_first().ok_or_else(|| mismatch("no operands"))?;
    let routed = Routed::new(NAME, layer, operands)?;
    if !routed.gives(operands[0].shape(), g.shape()) {
        return Err(mismatch("the gradient has not the extents of the result"));
    }
    let differentiated = || [0, 2].into_iter().chain(3..operands.len()).map(|i| &operands[i]);
    if ![2, operands.len() - 1].contains(&outs.len())
        || outs.iter().zip(differentiated()).any(|(out, x)| out.shape() != x.shape())
    {
        return Err(mismatch("the results have not the extents of the operands"));
    }
    let read = [&inputs[..2], &operands[3..]].concat();
    widen::run_all(&Gradient(routed), &read, outs)
}

struct Gradient<'a>(Routed<'a>);

/// Buffers of one block of tokens of one expert.
struct Block<T> {
    x: Vec<T>,
    /// Gradients of results.
    g: Vec<T>,
    /// What the function takes, then the gradients of that.
    projected: Vec<T>,
    hidden: Vec<T>,
    /// Gradients of `hidden`, but for the router's weights.
    of_hidden: Vec<T>,
    dx: Vec<T>,
}

impl RealKernels for Gradient<'_> {
    const NAME: &'static str = NAME;

    fn compute<T: Real>(
        &self,
        inputs: &[Cow<'_, [T]>],
        outs: &mut [&mut [T]],
    ) -> Result<(), KernelError> {
        for out in &mut *outs {
            out.fill(T::default());
        }
        let routed = &self.0;
        let [width, inner, result] = routed.widths();
        let sides = routed.layer.f.arity();
        let (Some((down, matrices)), [dx, dweights, of_experts @ ..]) =
            (inputs[2..].split_last(), outs)
        else {
            return Ok(());
        };
        let zeros = |n: usize| vec![T::default(); routed.most() * n];
        let mut b = Block {
            x: zeros(width),
            g: zeros(result),
            projected: zeros(sides * inner),
            hidden: zeros(inner),
            of_hidden: zeros(inner),
            dx: zeros(width),
        };
        let mut added = Vec::new();
        for (expert, choices) in routed.blocks() {
            let m = choices.len();
            collect(choices, &inputs[0], result, &mut b.g);
            collect(choices, &inputs[1], width, &mut b.x);
            routed.project((expert, m), &b.x, matrices, &mut b.projected);
            let down_at = routed.down_at(expert);
            let product = Product {
                m,
                k: result,
                n: inner,
                a: (0, result, 1),
                b: transposed(down_at),
                c: (0, inner, 1),
            };
            T::gemm(&product, &b.g, down, &mut b.of_hidden);
            for (i, choice) in choices.iter().enumerate() {
                dweights[choice.number] = T::from_f64(self.row(i, choice.weight, &mut b)?);
            }
            if let Some((ddown, dmatrices)) = of_experts.split_last_mut() {
                let product = Product {
                    m: inner,
                    k: m,
                    n: result,
                    a: (0, 1, inner),
                    b: (0, result, 1),
                    c: down_at,
                };
                add_product(&product, &b.hidden, &b.g, ddown, &mut added);
                for (i, dmatrix) in dmatrices.iter_mut().enumerate() {
                    let product = Product {
                        m: width,
                        k: m,
                        n: routed.per_matrix(),
                        a: (0, 1, width),
                        b: (i * routed.per_matrix(), sides * inner, 1),
                        c: routed.first_at(expert),
                    };
                    add_product(&product, &b.x, &b.projected, dmatrix, &mut added);
                }
            }
            for (i, matrix) in matrices.iter().enumerate() {
                let product = Product {
                    m,
                    k: routed.per_matrix(),
                    n: width,
                    a: (i * routed.per_matrix(), sides * inner, 1),
                    b: transposed(routed.first_at(expert)),
                    c: (0, width, 1),
                };
                T::gemm(&product, &b.projected, matrix, &mut b.dx);
                for (choice, row) in choices.iter().zip(b.dx.chunks_exact(width.max(1))) {
                    let dx = &mut dx[choice.token * width..][..width];
                    dx.iter_mut().zip(row).for_each(|(d, &a)| *d = *d + a);
                }
            }
        }
        Ok(())
    }
}

impl Gradient<'_> {
    /// Turns what the function takes for one token into its gradients, and weighs the gradient of the token's
    /// result. Gives the gradient of the weight.
    fn row<T: Real>(&self, row: usize, weight: f64, b: &mut Block<T>) -> Result<f64, KernelError> {
        let [_, inner, result] = self.0.widths();
        let f = self.0.layer.f;
        let sides = f.arity();
        let projected = &mut b.projected[row * sides * inner..][..sides * inner];
        let mut of_weight = 0.0;
        for i in 0..inner {
            let taken = self.0.sides(projected, i);
            let slopes = f.derivatives(&taken[..sides]).ok_or_else(|| KernelError::Operands {
                kernel: NAME,
                why: format!("the derivative of {f:?} is not known"),
            })?;
            let y = f.apply(&taken[..sides]);
            let of_hidden = b.of_hidden[row * inner + i].to_f64();
            of_weight += of_hidden * y;
            b.hidden[row * inner + i] = T::from_f64(y);
            for (side, slope) in slopes[..sides].iter().enumerate() {
                projected[side * inner + i] = T::from_f64(weight * of_hidden * slope);
            }
        }
        let weight = T::from_f64(weight);
        b.g[row * result..][..result].iter_mut().for_each(|g| *g = *g * weight);
        Ok(of_weight)
    }
}

/// `c = c + a · b`, where `c` is all of one expert's matrix; `added` is a buffer.
fn add_product<T: Real>(product: &Product, a: &[T], b: &[T], c: &mut [T], added: &mut Vec<T>) {
    let ((start, row, col), len) = (product.c, product.m * product.n);
    added.resize(len, T::default());
    T::gemm(&Product { c: (0, row, col), ..*product }, a, b, added);
    c[start..][..len].iter_mut().zip(&*added).for_each(|(c, &a)| *c = *c + a);
}

/// A matrix with its rows and columns exchanged.
const fn transposed((start, row, col): (usize, usize, usize)) -> (usize, usize, usize) {
    (start, col, row)
}
