//! Elementwise loops over operands of any strides, as loops over contiguous slices.

use crate::device::cpu::strided::{Loops, Row, broadcast, row_major};
use crate::device::element::Elem;

/// Elements of a piece: few enough that a broadcast operand's copy stays in the nearest cache.
pub const PIECE: usize = 512;

/// The loops of an elementwise function of up to three operands.
pub struct Pieces(Loops<4>);

/// Consecutive elements of the output.
#[derive(Clone, Copy)]
pub struct Piece {
    row: Row<4>,
    begin: usize,
    len: usize,
}

impl Pieces {
    /// The loops over `shape`, to which all of `operands` broadcast.
    pub fn new(shape: &[u64], operands: &[&[u64]]) -> Self {
        let is_scalar = |s: &[u64]| s.iter().all(|&n| n == 1);
        if operands.iter().all(|&s| s == shape || is_scalar(s)) {
            let len = shape.iter().product::<u64>() as usize;
            let stride = |i: usize| isize::from(operands.get(i).is_some_and(|s| !is_scalar(s)));
            return Self(Loops::flat(len, [1, stride(0), stride(1), stride(2)]));
        }
        let (own, still) = (row_major(shape), vec![0; shape.len()]);
        let strides: Vec<Vec<isize>> = operands.iter().map(|s| broadcast(s, shape.len())).collect();
        let of = |i: usize| strides.get(i).unwrap_or(&still).as_slice();
        Self(Loops::new(shape, [&own, of(0), of(1), of(2)]))
    }

    /// Calls `f` for each piece of the output, in order.
    pub fn for_each(&self, mut f: impl FnMut(Piece)) {
        self.0.for_each_row([0; 4], |row| {
            for begin in (0..row.len).step_by(PIECE) {
                f(Piece { row, begin, len: PIECE.min(row.len - begin) });
            }
        });
    }

    /// `out = f(x)`.
    pub fn unary<X: Elem, O: Elem>(&self, x: &[X], out: &mut [O], f: impl Fn(X) -> O) {
        let mut xs = [X::default(); PIECE];
        self.for_each(|p| {
            let x = p.operand(0, x, &mut xs);
            for (o, &x) in p.output(out).iter_mut().zip(x) {
                *o = f(x);
            }
        });
    }

    /// `out = f(x, y)`.
    pub fn binary<X: Elem, Y: Elem, O: Elem>(
        &self,
        x: &[X],
        y: &[Y],
        out: &mut [O],
        f: impl Fn(X, Y) -> O,
    ) {
        let (mut xs, mut ys) = ([X::default(); PIECE], [Y::default(); PIECE]);
        self.for_each(|p| {
            let (x, y) = (p.operand(0, x, &mut xs), p.operand(1, y, &mut ys));
            for ((o, &x), &y) in p.output(out).iter_mut().zip(x).zip(y) {
                *o = f(x, y);
            }
        });
    }

    /// `out = f(x, y, z)`.
    pub fn ternary<X: Elem, Y: Elem, Z: Elem, O: Elem>(
        &self,
        (x, y, z): (&[X], &[Y], &[Z]),
        out: &mut [O],
        f: impl Fn(X, Y, Z) -> O,
    ) {
        let (mut xs, mut ys, mut zs) =
            ([X::default(); PIECE], [Y::default(); PIECE], [Z::default(); PIECE]);
        self.for_each(|p| {
            let (x, y) = (p.operand(0, x, &mut xs), p.operand(1, y, &mut ys));
            let z = p.operand(2, z, &mut zs);
            for (((o, &x), &y), &z) in p.output(out).iter_mut().zip(x).zip(y).zip(z) {
                *o = f(x, y, z);
            }
        });
    }
}

impl Piece {
    /// The piece's elements of operand `i`: a slice of it, or `copies` of the one that stands still.
    pub fn operand<'a, T: Elem>(
        &self,
        i: usize,
        x: &'a [T],
        copies: &'a mut [T; PIECE],
    ) -> &'a [T] {
        // The innermost extent that is not 1 is one of the operand's own, or it is repeated.
        if self.row.stride[i + 1] == 1 {
            &x[self.row.at[i + 1] + self.begin..][..self.len]
        } else {
            let copies = &mut copies[..self.len];
            copies.fill(x[self.row.at[i + 1]]);
            copies
        }
    }

    /// The piece of the output.
    pub fn output<'a, T>(&self, out: &'a mut [T]) -> &'a mut [T] {
        &mut out[self.row.at[0] + self.begin..][..self.len]
    }
}
