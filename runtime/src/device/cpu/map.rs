//! Elementwise functions with broadcasting.
//!
//! The common functions of f32 and half precision have loops of their own. Everything else is
//! evaluated a chunk at a time by the function's definition in the IR, in f64 or in i128.

use super::operand::{In, Out};
use super::strided::{Loops, Row, broadcast, row_major};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use half::{bf16, f16};
use planc_ir::DType;
use planc_ir::scalar::ScalarFn;

/// The output and up to three inputs; an operand that the function does not have stands still.
type MapLoops = Loops<4>;

/// Elements that the definition is evaluated for at a time.
const CHUNK: usize = 512;

/// Applies `f` element by element.
pub fn run(f: ScalarFn, inputs: &[In<'_>], out: &mut Out<'_>) -> Result<(), KernelError> {
    let loops = loops(f, inputs, out)?;
    let dtype = out.dtype();
    match f {
        ScalarFn::Identity | ScalarFn::Cast(_) => {
            with_elem!(inputs[0].dtype(), S => with_elem!(dtype, T => {
                cast::<S, T>(&loops, inputs[0].elements(), out.elements());
            }));
            return Ok(());
        }
        ScalarFn::Where if inputs[1..].iter().all(|x| x.dtype() == dtype) => {
            with_elem!(inputs[0].dtype(), C => with_elem!(dtype, T => {
                let (c, x, y) = (&inputs[0], &inputs[1], &inputs[2]);
                select::<C, T>(&loops, c.elements(), x.elements(), y.elements(), out.elements());
            }));
            return Ok(());
        }
        _ => {}
    }
    let done = inputs.iter().all(|x| x.dtype() == dtype)
        && match dtype {
            DType::F32 => in_f32::<f32>(f, &loops, inputs, out),
            DType::F16 => in_f32::<f16>(f, &loops, inputs, out),
            DType::BF16 => in_f32::<bf16>(f, &loops, inputs, out),
            _ => false,
        };
    if done {
        Ok(())
    } else if inputs.iter().any(|x| x.dtype().is_float()) {
        by_definition::<f64>(&loops, inputs, out, |args| Ok(f.apply(args)))
    } else {
        by_definition::<i128>(&loops, inputs, out, |args| Ok(f.apply_int(args)?))
    }
}

fn loops(f: ScalarFn, inputs: &[In<'_>], out: &Out<'_>) -> Result<MapLoops, KernelError> {
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
    let own = row_major(shape);
    let still = vec![0; shape.len()];
    let strides: Vec<Vec<isize>> =
        inputs.iter().map(|x| broadcast(x.shape(), shape.len())).collect();
    let of = |i: usize| strides.get(i).unwrap_or(&still).as_slice();
    Ok(Loops::new(shape, [&own, of(0), of(1), of(2)]))
}

fn cast<S: Elem, T: Elem>(loops: &MapLoops, x: &[S], out: &mut [T]) {
    let convert = |x: S| {
        if S::DTYPE.is_float() { T::from_f64(x.to_f64()) } else { T::from_int(x.to_int()) }
    };
    loops.for_each_row([0; 4], |row| {
        let out = &mut out[row.at[0]..row.at[0] + row.len];
        if row.stride[1] == 0 {
            out.fill(convert(x[row.at[1]]));
        } else {
            for (y, &x) in out.iter_mut().zip(&x[row.at[1]..]) {
                *y = convert(x);
            }
        }
    });
}

fn select<C: Elem, T: Elem>(loops: &MapLoops, c: &[C], x: &[T], y: &[T], out: &mut [T]) {
    loops.for_each_row([0; 4], |row| {
        let [_, sc, sx, sy] = row.stride.map(|s| s as usize);
        for i in 0..row.len {
            let truth = c[row.at[1] + i * sc].to_int() != 0;
            out[row.at[0] + i] = if truth { x[row.at[2] + i * sx] } else { y[row.at[3] + i * sy] };
        }
    });
}

/// Types whose arithmetic is done in f32.
trait Single: Elem {
    fn single(self) -> f32;
    fn of(x: f32) -> Self;
}

impl Single for f32 {
    fn single(self) -> f32 {
        self
    }
    fn of(x: f32) -> Self {
        x
    }
}

impl Single for f16 {
    fn single(self) -> f32 {
        self.to_f32()
    }
    fn of(x: f32) -> Self {
        f16::from_f32(x)
    }
}

impl Single for bf16 {
    fn single(self) -> f32 {
        self.to_f32()
    }
    fn of(x: f32) -> Self {
        bf16::from_f32(x)
    }
}

/// The functions that have loops of their own; false for any other.
fn in_f32<T: Single>(f: ScalarFn, loops: &MapLoops, inputs: &[In<'_>], out: &mut Out<'_>) -> bool {
    let out = out.elements::<T>();
    match inputs {
        [x] => {
            let x = x.elements::<T>();
            match f {
                ScalarFn::Neg => unary(loops, x, out, |x| -x),
                ScalarFn::Abs => unary(loops, x, out, f32::abs),
                ScalarFn::Reciprocal => unary(loops, x, out, |x| 1.0 / x),
                ScalarFn::Sqrt => unary(loops, x, out, f32::sqrt),
                ScalarFn::Exp => unary(loops, x, out, f32::exp),
                ScalarFn::Log => unary(loops, x, out, f32::ln),
                ScalarFn::Sin => unary(loops, x, out, f32::sin),
                ScalarFn::Cos => unary(loops, x, out, f32::cos),
                ScalarFn::Tanh => unary(loops, x, out, f32::tanh),
                ScalarFn::Relu => unary(loops, x, out, |x| if x < 0.0 { 0.0 } else { x }),
                ScalarFn::Sigmoid => unary(loops, x, out, |x| 1.0 / (1.0 + (-x).exp())),
                _ => return false,
            }
        }
        [x, y] => {
            let (x, y) = (x.elements::<T>(), y.elements::<T>());
            match f {
                ScalarFn::Add => binary(loops, x, y, out, |x, y| x + y),
                ScalarFn::Sub => binary(loops, x, y, out, |x, y| x - y),
                ScalarFn::Mul => binary(loops, x, y, out, |x, y| x * y),
                ScalarFn::Div => binary(loops, x, y, out, |x, y| x / y),
                ScalarFn::Pow => binary(loops, x, y, out, f32::powf),
                _ => return false,
            }
        }
        _ => return false,
    }
    true
}

fn unary<T: Single>(loops: &MapLoops, x: &[T], out: &mut [T], f: impl Fn(f32) -> f32) {
    loops.for_each_row([0; 4], |row| {
        let out = &mut out[row.at[0]..row.at[0] + row.len];
        if row.stride[1] == 0 {
            out.fill(T::of(f(x[row.at[1]].single())));
        } else {
            for (y, &x) in out.iter_mut().zip(&x[row.at[1]..]) {
                *y = T::of(f(x.single()));
            }
        }
    });
}

fn binary<T: Single>(
    loops: &MapLoops,
    x: &[T],
    y: &[T],
    out: &mut [T],
    f: impl Fn(f32, f32) -> f32,
) {
    loops.for_each_row([0; 4], |row| {
        let out = &mut out[row.at[0]..row.at[0] + row.len];
        let (x, y) = (&x[row.at[1]..], &y[row.at[2]..]);
        match (row.stride[1], row.stride[2]) {
            (0, 0) => out.fill(T::of(f(x[0].single(), y[0].single()))),
            (0, _) => {
                let x = x[0].single();
                for (o, &y) in out.iter_mut().zip(y) {
                    *o = T::of(f(x, y.single()));
                }
            }
            (_, 0) => {
                let y = y[0].single();
                for (o, &x) in out.iter_mut().zip(x) {
                    *o = T::of(f(x.single(), y));
                }
            }
            _ => {
                for ((o, &x), &y) in out.iter_mut().zip(x).zip(y) {
                    *o = T::of(f(x.single(), y.single()));
                }
            }
        }
    });
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
    loops: &MapLoops,
    inputs: &[In<'_>],
    out: &mut Out<'_>,
    f: impl Fn(&[D]) -> Result<D, KernelError>,
) -> Result<(), KernelError> {
    let mut args = [[D::default(); CHUNK]; 3];
    let mut results = [D::default(); CHUNK];
    let mut failed = None;
    loops.for_each_row([0; 4], |row: Row<4>| {
        for begin in (0..row.len).step_by(CHUNK) {
            let n = CHUNK.min(row.len - begin);
            for (i, x) in inputs.iter().enumerate() {
                let stride = row.stride[i + 1] as usize;
                let first = row.at[i + 1] + begin * stride;
                with_elem!(x.dtype(), T => {
                    let x = &x.elements::<T>()[first..];
                    for (j, a) in args[i][..n].iter_mut().enumerate() {
                        *a = D::load(x[j * stride]);
                    }
                });
            }
            for (j, y) in results[..n].iter_mut().enumerate() {
                let one = [args[0][j], args[1][j], args[2][j]];
                match f(&one[..inputs.len()]) {
                    Ok(value) => *y = value,
                    Err(e) => failed = failed.take().or(Some(e)),
                }
            }
            let at = row.at[0] + begin;
            with_elem!(out.dtype(), T => {
                for (y, r) in out.elements::<T>()[at..at + n].iter_mut().zip(&results) {
                    *y = r.store();
                }
            });
        }
    });
    failed.map_or(Ok(()), Err)
}
