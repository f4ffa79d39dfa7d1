//! Functions of floats of at most 32 bits, computed in f32 and rounded when stored.

use super::pieces::Pieces;
use crate::device::cpu::elementary;
use crate::device::cpu::operand::{In, Out};
use crate::device::element::Elem;
use half::{bf16, f16};
use planc_ir::scalar::{Gate, ScalarFn, Slope};

/// Types whose arithmetic is done in f32.
pub trait Single: Elem {
    /// As f32.
    fn single(self) -> f32;
    /// Rounded from f32.
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

/// Applies `f` to operands that are all of type `T`, if it is one of the functions that have a loop
/// here; false for any other.
pub fn run<T: Single>(f: ScalarFn, pieces: &Pieces, inputs: &[In<'_>], out: &mut Out<'_>) -> bool {
    let out = out.elements::<T>();
    match inputs {
        [x] => unary(f, pieces, x.elements::<T>(), out),
        [x, y] => binary(f, pieces, x.elements::<T>(), y.elements::<T>(), out),
        [x, low, high] if f == ScalarFn::Clip => {
            let operands = (x.elements::<T>(), low.elements::<T>(), high.elements::<T>());
            pieces.ternary(operands, out, |x, low, high| {
                T::of(min(max(x.single(), low.single()), high.single()))
            });
            true
        }
        _ => false,
    }
}

fn unary<T: Single>(f: ScalarFn, pieces: &Pieces, x: &[T], out: &mut [T]) -> bool {
    use ScalarFn as F;
    macro_rules! by {
        ($f:expr) => {{
            let f = $f;
            pieces.unary(x, out, |x: T| T::of(f(x.single())));
        }};
    }
    match f {
        F::Neg => by!(|x: f32| -x),
        F::Abs => by!(f32::abs),
        F::Reciprocal => by!(|x: f32| 1.0 / x),
        F::Sqrt => by!(f32::sqrt),
        F::Exp => by!(elementary::exp),
        F::Log => by!(f32::ln),
        F::Sin => by!(f32::sin),
        F::Cos => by!(f32::cos),
        F::Tanh => by!(elementary::tanh),
        F::Erf => by!(elementary::erf),
        F::Relu => by!(|x: f32| if x < 0.0 { 0.0 } else { x }),
        F::LeakyRelu { alpha } => by!(|x: f32| if x < 0.0 { alpha * x } else { x }),
        F::Sigmoid => by!(elementary::sigmoid),
        F::Swish { alpha } => by!(|x: f32| x * elementary::sigmoid(alpha * x)),
        F::HardSigmoid { alpha, beta } => by!(|x: f32| min(max(alpha * x + beta, 0.0), 1.0)),
        F::HardSwish => by!(|x: f32| x * min(max(x / 6.0 + 0.5, 0.0), 1.0)),
        F::Gelu => by!(elementary::gelu),
        F::GeluTanh => by!(elementary::gelu_tanh),
        _ => return false,
    }
    true
}

fn binary<T: Single>(f: ScalarFn, pieces: &Pieces, x: &[T], y: &[T], out: &mut [T]) -> bool {
    use ScalarFn as F;
    macro_rules! by {
        ($f:expr) => {{
            let f = $f;
            pieces.binary(x, y, out, |x: T, y: T| T::of(f(x.single(), y.single())));
        }};
    }
    match f {
        F::Add => by!(|x, y| x + y),
        F::Sub => by!(|x, y| x - y),
        F::Mul => by!(|x, y| x * y),
        F::Div => by!(|x, y| x / y),
        F::Min => by!(min),
        F::Max => by!(max),
        F::Gated(Gate::Silu) => by!(|x: f32, y: f32| x * elementary::sigmoid(x) * y),
        F::Gated(Gate::Gelu) => by!(|x: f32, y: f32| elementary::gelu(x) * y),
        F::Gated(Gate::GeluTanh) => by!(|x: f32, y: f32| elementary::gelu_tanh(x) * y),
        F::Slope(slope) => return slope_times(slope, pieces, x, y, out),
        F::PRelu => by!(|x: f32, y: f32| if x < 0.0 { x * y } else { x }),
        F::Pow => match y {
            // Exporters write squares and cubes as powers.
            [y] if y.to_f64().to_bits() == 2f64.to_bits() => {
                pieces.unary(x, out, |x| T::of(x.single() * x.single()));
            }
            [y] if y.to_f64().to_bits() == 3f64.to_bits() => {
                pieces.unary(x, out, |x| T::of(x.single() * x.single() * x.single()));
            }
            _ => by!(f32::powf),
        },
        _ => return false,
    }
    true
}

/// `slope(z) · g`, of the derivatives that training meets most.
fn slope_times<T: Single>(slope: Slope, pieces: &Pieces, z: &[T], g: &[T], out: &mut [T]) -> bool {
    macro_rules! by {
        ($slope:expr) => {{
            let slope = $slope;
            pieces.binary(z, g, out, |z: T, g: T| T::of(slope(z.single()) * g.single()));
        }};
    }
    match slope {
        Slope::Relu => by!(|z: f32| if z > 0.0 { 1.0 } else { 0.0 }),
        Slope::LeakyRelu { alpha } => by!(|z: f32| if z < 0.0 { alpha } else { 1.0 }),
        Slope::Sigmoid => by!(|z: f32| z * (1.0 - z)),
        Slope::Tanh => by!(|z: f32| 1.0 - z * z),
        Slope::Swish { alpha } => by!(|z: f32| elementary::swish_slope(alpha, z)),
        Slope::Gelu => by!(elementary::gelu_slope),
        Slope::GeluTanh => by!(elementary::gelu_tanh_slope),
        _ => return false,
    }
    true
}

/// The larger; NaN if either is.
fn max(x: f32, y: f32) -> f32 {
    if x > y || x.is_nan() { x } else { y }
}

/// The smaller; NaN if either is.
fn min(x: f32, y: f32) -> f32 {
    if x < y || x.is_nan() { x } else { y }
}
