//! Floating-point kernels are written once, for f32 and f64; half precision is widened to f32 and
//! rounded when stored.

use super::gemm::{self, Product};
use super::operand::{In, Out};
use super::thin;
use crate::KernelError;
use crate::device::element::Elem;
use half::{bf16, f16};
use planc_ir::DType;
use std::borrow::Cow;
use std::ops::{Add, Mul, Sub};

/// The types that floating-point kernels compute in.
pub trait Real: Elem + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// `c = a · b` by the library (see [`super::gemm`]).
    fn library_gemm(product: &Product, a: &[Self], b: &[Self], c: &mut [Self]);
    /// `c = a · b`.
    fn gemm(product: &Product, a: &[Self], b: &[Self], c: &mut [Self]) {
        if !thin::run(product, a, b, c) {
            Self::library_gemm(product, a, b, c);
        }
    }
    /// e to the power.
    fn exp(self) -> Self;
}

impl Real for f32 {
    fn library_gemm(product: &Product, a: &[f32], b: &[f32], c: &mut [f32]) {
        gemm::sgemm(product, a, b, c);
    }
    #[inline]
    fn exp(self) -> f32 {
        super::elementary::exp(self)
    }
}

impl Real for f64 {
    fn library_gemm(product: &Product, a: &[f64], b: &[f64], c: &mut [f64]) {
        gemm::dgemm(product, a, b, c);
    }
    fn exp(self) -> f64 {
        f64::exp(self)
    }
}

/// A kernel that computes in any [`Real`].
pub trait RealKernel {
    /// Its name in messages.
    const NAME: &'static str;
    /// Computes `out` from the elements of all operands.
    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError>;
}

/// Runs a floating-point kernel on operands of one type.
pub fn run<K: RealKernel>(
    kernel: &K,
    inputs: &[In<'_>],
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let dtype = out.dtype();
    if inputs.iter().any(|x| x.dtype() != dtype) {
        let why = "operands differ in element type".to_string();
        return Err(KernelError::Operands { kernel: K::NAME, why });
    }
    match dtype {
        DType::F32 => native::<K, f32>(kernel, inputs, out),
        DType::F64 => native::<K, f64>(kernel, inputs, out),
        DType::F16 => half::<K, f16>(kernel, inputs, out),
        DType::BF16 => half::<K, bf16>(kernel, inputs, out),
        dtype => Err(KernelError::Type { kernel: K::NAME, dtype }),
    }
}

fn native<K: RealKernel, T: Real>(
    kernel: &K,
    inputs: &[In<'_>],
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let inputs: Vec<Cow<'_, [T]>> = inputs.iter().map(|x| Cow::Borrowed(x.elements())).collect();
    kernel.compute(&inputs, out.elements())
}

fn half<K: RealKernel, H: Elem>(
    kernel: &K,
    inputs: &[In<'_>],
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    let inputs: Vec<Cow<'_, [f32]>> = inputs
        .iter()
        .map(|x| Cow::Owned(x.elements::<H>().iter().map(|h| h.to_f64() as f32).collect()))
        .collect();
    let out = out.elements::<H>();
    let mut wide = vec![0f32; out.len()];
    kernel.compute(&inputs, &mut wide)?;
    for (h, w) in out.iter_mut().zip(wide) {
        *h = H::from_f64(f64::from(w));
    }
    Ok(())
}
