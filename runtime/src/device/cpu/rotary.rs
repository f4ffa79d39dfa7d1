//! Rotary position embedding.

use super::operand::{In, Out};
use super::strided::{Loops, broadcast, row_major};
use super::widen::{self, Real, RealKernel};
use crate::KernelError;
use planc_ir::ops::rotary_embedding::RotaryEmbedding;
use std::borrow::Cow;

/// Rotates pairs of elements of the last dimension.
pub fn run(
    interleaved: bool,
    x: &In<'_>,
    cos: &In<'_>,
    sin: &In<'_>,
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let mismatch = |why| KernelError::Operands { kernel: "rotary_embedding", why };
    let shape = x.shape();
    let Some((&n, outer)) = shape.split_last().filter(|(n, _)| *n % 2 == 0 && shape == out.shape())
    else {
        return Err(mismatch(format!("{shape:?} to {:?}", out.shape())));
    };
    let angles = |t: &In<'_>| -> Result<(usize, Vec<isize>), KernelError> {
        let own = t.shape();
        let fits = own.len() <= shape.len()
            && own.last().is_some_and(|&m| m == n || m * 2 == n)
            && own.iter().rev().zip(shape.iter().rev()).skip(1).all(|(&a, &b)| a == b || a == 1);
        if !fits {
            return Err(mismatch(format!("angles {own:?} of {shape:?}")));
        }
        let strides = broadcast(own, shape.len());
        Ok((own[own.len() - 1] as usize, strides[..outer.len()].to_vec()))
    };
    let ((of_cos, cos_strides), (of_sin, sin_strides)) = (angles(cos)?, angles(sin)?);
    let rows = Loops::new(outer, [&row_major(shape)[..outer.len()], &cos_strides, &sin_strides]);
    let pairs = RotaryEmbedding { interleaved };
    widen::run(&Kernel { pairs, n: n as usize, of_cos, of_sin, rows }, &[*x, *cos, *sin], out)
}

struct Kernel {
    pairs: RotaryEmbedding,
    /// Elements that are rotated together.
    n: usize,
    /// Cosines and sines for them: one an element or one a pair.
    of_cos: usize,
    of_sin: usize,
    rows: Loops<3>,
}

impl RealKernel for Kernel {
    const NAME: &'static str = "rotary_embedding";

    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError> {
        let (x, cos, sin) = (&inputs[0], &inputs[1], &inputs[2]);
        let n = self.n;
        self.rows.for_each_row([0; 3], |row| {
            for i in 0..row.len as isize {
                let at = |k: usize| (row.at[k] as isize + i * row.stride[k]) as usize;
                let x = &x[at(0)..at(0) + n];
                for (j, y) in out[at(0)..at(0) + n].iter_mut().enumerate() {
                    let (other, second) = self.pairs.partner(j, n);
                    let cos = cos[at(1) + self.pairs.angle(j, n, self.of_cos)].to_f64();
                    let sin = sin[at(2) + self.pairs.angle(j, n, self.of_sin)].to_f64();
                    let across = x[other].to_f64() * sin;
                    *y = T::from_f64(x[j].to_f64() * cos + if second { across } else { -across });
                }
            }
        });
        Ok(())
    }
}
