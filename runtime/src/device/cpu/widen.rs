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

/// A kernel of one result that computes in any [`Real`].
pub trait RealKernel {
    /// Its name in messages.
    const NAME: &'static str;
    /// Computes `out` from the elements of all operands.
    fn compute<T: Real>(&self, inputs: &[Cow<'_, [T]>], out: &mut [T]) -> Result<(), KernelError>;
}

/// A kernel of several results that computes in any [`Real`].
pub trait RealKernels {
    /// Its name in messages.
    const NAME: &'static str;
    /// Computes all results from the elements of all operands.
    fn compute<T: Real>(
        &self,
        inputs: &[Cow<'_, [T]>],
        outs: &mut [&mut [T]],
    ) -> Result<(), KernelError>;
}

impl<K: RealKernel> RealKernels for K {
    const NAME: &'static str = K::NAME;

    fn compute<T: Real>(
        &self,
        inputs: &[Cow<'_, [T]>],
        outs: &mut [&mut [T]],
    ) -> Result<(), KernelError> {
        outs.iter_mut().try_for_each(|out| RealKernel::compute(self, inputs, out))
    }
}

/// Runs a floating-point kernel on operands of one type.
pub fn run<K: RealKernel>(
    kernel: &K,
    inputs: &[In<'_>],
    out: &mut Out<'_>,
) -> Result<(), KernelError> {
    run_all(kernel, inputs, std::slice::from_mut(out))
}

/// Runs a floating-point kernel on operands and results of one type.
pub fn run_all<K: RealKernels>(
    kernel: &K,
    inputs: &[In<'_>],
    outs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let types = || inputs.iter().map(In::dtype).chain(outs.iter().map(Out::dtype));
    let Some(dtype) = types().next_back() else { return Ok(()) };
    if types().any(|other| other != dtype) {
        let why = "operands differ in element type".to_string();
        return Err(KernelError::Operands { kernel: K::NAME, why });
    }
    match dtype {
        DType::F32 => native::<K, f32>(kernel, inputs, outs),
        DType::F64 => native::<K, f64>(kernel, inputs, outs),
        DType::F16 => half::<K, f16>(kernel, inputs, outs),
        DType::BF16 => half::<K, bf16>(kernel, inputs, outs),
        dtype => Err(KernelError::Type { kernel: K::NAME, dtype }),
    }
}

fn native<K: RealKernels, T: Real>(
    kernel: &K,
    inputs: &[In<'_>],
    outs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let inputs: Vec<Cow<'_, [T]>> = inputs.iter().map(|x| Cow::Borrowed(x.elements())).collect();
    let mut outs: Vec<&mut [T]> = outs.iter_mut().map(Out::elements).collect();
    kernel.compute(&inputs, &mut outs)
}

fn half<K: RealKernels, H: Elem>(
    kernel: &K,
    inputs: &[In<'_>],
    outs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let inputs: Vec<Cow<'_, [f32]>> = inputs
        .iter()
        .map(|x| Cow::Owned(x.elements::<H>().iter().map(|h| h.to_f64() as f32).collect()))
        .collect();
    let mut wide: Vec<Vec<f32>> =
        outs.iter_mut().map(|out| vec![0f32; out.elements::<H>().len()]).collect();
    let mut results: Vec<&mut [f32]> = wide.iter_mut().map(Vec::as_mut_slice).collect();
    kernel.compute(&inputs, &mut results)?;
    for (out, wide) in outs.iter_mut().zip(wide) {
        for (h, w) in out.elements::<H>().iter_mut().zip(wide) {
            *h = H::from_f64(f64::from(w));
        }
    }
    Ok(())
}
