//! Elementwise functions with broadcasting.
//!
//! The common functions have loops of their own: those of floats in f32 (`single`), those that do not
//! round in their operands' type (`exact`). Everything else is evaluated a piece at a time by the
//! function's definition in the IR, in f64 or in i128.

mod exact;
mod pieces;
mod single;

use super::operand::{In, Out};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use half::{bf16, f16};
use pieces::{PIECE, Pieces};
use planc_ir::DType;
use planc_ir::scalar::ScalarFn;

/// Applies `f` element by element.
pub fn run(f: ScalarFn, inputs: &[In<'_>], out: &mut Out<'_>) -> Result<(), KernelError> {
    let pieces = pieces(f, inputs, out)?;
    let dtype = out.dtype();
    if matches!(f, ScalarFn::Identity | ScalarFn::Cast(_)) {
        with_elem!(inputs[0].dtype(), S => with_elem!(dtype, T => {
            pieces.unary(inputs[0].elements::<S>(), out.elements::<T>(), cast);
        }));
        return Ok(());
    }
    let same = inputs.iter().all(|x| x.dtype() == dtype);
    let done = exact::run(f, &pieces, inputs, out)
        || same
            && match dtype {
                DType::F32 => single::run::<f32>(f, &pieces, inputs, out),
                DType::F16 => single::run::<f16>(f, &pieces, inputs, out),
                DType::BF16 => single::run::<bf16>(f, &pieces, inputs, out),
                _ => false,
            };
    if done {
        Ok(())
    } else if inputs.iter().any(|x| x.dtype().is_float()) {
        by_definition::<f64>(&pieces, inputs, out, |args| Ok(f.apply(args)))
    } else {
        by_definition::<i128>(&pieces, inputs, out, |args| Ok(f.apply_int(args)?))
    }
}

fn pieces(f: ScalarFn, inputs: &[In<'_>], out: &Out<'_>) -> Result<Pieces, KernelError> {
    let mismatch = |why| KernelError::Operands { kernel: "map", why };
    if inputs.len() != f.arity() {
        return Err(mismatch(format!("{f:?} of {} operands", inputs.len())));
    }
    let shape = out.shape();
    for x in inputs {
        let fits = x.shape().len() <= shape.len()
            && x.shape().iter().rev().zip(shape.iter().rev()).all(|(&a, &n)| a == n || a == 1);
        if !fits {
            return Err(mismatch(format!("{:?} does not broadcast to {shape:?}", x.shape())));
        }
    }
    let shapes: Vec<&[u64]> = inputs.iter().map(In::shape).collect();
    Ok(Pieces::new(shape, &shapes))
}

fn cast<S: Elem, T: Elem>(x: S) -> T {
    if S::DTYPE.is_float() { T::from_f64(x.to_f64()) } else { T::from_int(x.to_int()) }
}

/// The domain in which a definition is evaluated.
trait Domain: Copy + Default {
    fn load<T: Elem>(x: T) -> Self;
    fn store<T: Elem>(self) -> T;
}

impl Domain for f64 {
    fn load<T: Elem>(x: T) -> Self {
        x.to_f64()
    }
    fn store<T: Elem>(self) -> T {
        T::from_f64(self)
    }
}

impl Domain for i128 {
    fn load<T: Elem>(x: T) -> Self {
        x.to_int()
    }
    fn store<T: Elem>(self) -> T {
        T::from_int(self)
    }
}

fn by_definition<D: Domain>(
    pieces: &Pieces,
    inputs: &[In<'_>],
    out: &mut Out<'_>,
    f: impl Fn(&[D]) -> Result<D, KernelError>,
) -> Result<(), KernelError> {
    let mut args = [[D::default(); PIECE]; 3];
    let mut failed = None;
    pieces.for_each(|piece| {
        for (i, (x, args)) in inputs.iter().zip(&mut args).enumerate() {
            with_elem!(x.dtype(), T => {
                let mut copies = [T::default(); PIECE];
                let x = piece.operand(i, x.elements::<T>(), &mut copies);
                args.iter_mut().zip(x).for_each(|(a, &x)| *a = D::load(x));
            });
        }
        with_elem!(out.dtype(), T => {
            for (j, y) in piece.output(out.elements::<T>()).iter_mut().enumerate() {
                match f(&[args[0][j], args[1][j], args[2][j]][..inputs.len()]) {
                    Ok(value) => *y = value.store(),
                    Err(e) => failed = failed.take().or(Some(e)),
                }
            }
        });
    });
    failed.map_or(Ok(()), Err)
}
