//! Functions whose results are not rounded: selections, comparisons, logic, sums and products of
//! integers. Each works in its operands' own type.

use super::pieces::Pieces;
use crate::device::cpu::operand::{In, Out};
use crate::device::element::{Accumulator, Elem, Flag, with_elem};
use planc_ir::DType;
use planc_ir::scalar::ScalarFn;

/// Applies `f` if it is one of the functions that have a loop here for these types; false otherwise.
pub fn run(f: ScalarFn, pieces: &Pieces, inputs: &[In<'_>], out: &mut Out<'_>) -> bool {
    match inputs {
        [x] => unary(f, pieces, x, out),
        [x, y] if x.dtype() == y.dtype() => {
            with_elem!(x.dtype(), T => binary::<T>(f, pieces, x, y, out))
        }
        [c, x, y]
            if f == ScalarFn::Where
                && c.dtype() == DType::Bool
                && x.dtype() == out.dtype()
                && y.dtype() == out.dtype() =>
        {
            with_elem!(out.dtype(), T => {
                let operands = (c.elements::<Flag>(), x.elements::<T>(), y.elements::<T>());
                pieces.ternary(operands, out.elements(), |c, x, y| if c.get() { x } else { y });
            });
            true
        }
        _ => false,
    }
}

fn unary(f: ScalarFn, pieces: &Pieces, x: &In<'_>, out: &mut Out<'_>) -> bool {
    match f {
        ScalarFn::IsNaN if out.dtype() == DType::Bool => {
            with_elem!(x.dtype(), T => {
                pieces.unary(x.elements(), out.elements(), |x: T| flag(Elem::to_f64(x).is_nan()));
            });
        }
        ScalarFn::Not if x.dtype() == DType::Bool && out.dtype() == DType::Bool => {
            pieces.unary(x.elements(), out.elements(), |x: Flag| flag(!x.get()));
        }
        _ => return false,
    }
    true
}

fn binary<T: Elem>(
    f: ScalarFn,
    pieces: &Pieces,
    x: &In<'_>,
    y: &In<'_>,
    out: &mut Out<'_>,
) -> bool {
    use ScalarFn as F;
    if out.dtype() == DType::Bool {
        let (x, y, out) = (x.elements::<T>(), y.elements::<T>(), out.elements::<Flag>());
        let is_bool = T::DTYPE == DType::Bool;
        let truth = |x: T| x.to_int() != 0;
        match f {
            F::Equal => pieces.binary(x, y, out, |x, y| flag(x == y)),
            F::Less => pieces.binary(x, y, out, |x, y| flag(x < y)),
            F::LessOrEqual => pieces.binary(x, y, out, |x, y| flag(x <= y)),
            F::Greater => pieces.binary(x, y, out, |x, y| flag(x > y)),
            F::GreaterOrEqual => pieces.binary(x, y, out, |x, y| flag(x >= y)),
            F::And if is_bool => pieces.binary(x, y, out, |x, y| flag(truth(x) & truth(y))),
            F::Or if is_bool => pieces.binary(x, y, out, |x, y| flag(truth(x) | truth(y))),
            F::Xor if is_bool => pieces.binary(x, y, out, |x, y| flag(truth(x) ^ truth(y))),
            _ => return false,
        }
        return true;
    }
    if !T::DTYPE.is_int() || out.dtype() != T::DTYPE {
        return false;
    }
    let (x, y, out) = (x.elements::<T>(), y.elements::<T>(), out.elements::<T>());
    macro_rules! by {
        ($f:path) => {
            pieces.binary(x, y, out, |x, y| T::narrow($f(x.widen(), y.widen())))
        };
    }
    match f {
        F::Add => by!(Accumulator::add),
        F::Mul => by!(Accumulator::mul),
        F::Min => by!(Accumulator::min),
        F::Max => by!(Accumulator::max),
        _ => return false,
    }
    true
}

fn flag(truth: bool) -> Flag {
    Flag(u8::from(truth))
}
