//! A tensor in memory: what constants are made of and what the reference evaluation works on.

use crate::graph::TensorType;
use crate::{DType, EvalError};
use half::{bf16, f16};

/// The largest tensor that the importer and the reference evaluation make, in bytes; extents of 0 count
/// as 1.
pub const MAX_TENSOR_BYTES: u64 = 4 << 30;

/// Elements, row-major.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // one variant an element type
pub enum Data {
    F64(Vec<f64>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    I64(Vec<i64>),
    I32(Vec<i32>),
    I16(Vec<i16>),
    I8(Vec<i8>),
    U64(Vec<u64>),
    U32(Vec<u32>),
    U16(Vec<u16>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

/// A tensor: its type and its elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    ty: TensorType,
    data: Data,
}

/// Runs `$body` with `$v` bound to the vector of elements, whatever their type.
#[macro_export]
macro_rules! for_each_dtype {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            $crate::tensor::Data::F64($v) => $body,
            $crate::tensor::Data::F32($v) => $body,
            $crate::tensor::Data::F16($v) => $body,
            $crate::tensor::Data::BF16($v) => $body,
            $crate::tensor::Data::I64($v) => $body,
            $crate::tensor::Data::I32($v) => $body,
            $crate::tensor::Data::I16($v) => $body,
            $crate::tensor::Data::I8($v) => $body,
            $crate::tensor::Data::U64($v) => $body,
            $crate::tensor::Data::U32($v) => $body,
            $crate::tensor::Data::U16($v) => $body,
            $crate::tensor::Data::U8($v) => $body,
            $crate::tensor::Data::Bool($v) => $body,
        }
    };
}

/// A Rust type that is an element type: conversion to and from the two domains in which the
/// reference evaluation computes.
pub trait Element: Copy + Default + PartialEq + Send + Sync + 'static {
    /// The element type.
    const DTYPE: DType;
    /// Wraps a vector.
    fn wrap(v: Vec<Self>) -> Data;
    /// The elements if they are of this type.
    fn slice(data: &Data) -> Option<&[Self]>;
    /// To f64 (integers beyond 2^53 round).
    fn to_f64(self) -> f64;
    /// From f64: rounds floats to nearest even; saturates integers (NaN becomes 0).
    fn from_f64(x: f64) -> Self;
    /// To an integer (floats truncate toward zero).
    fn to_int(self) -> i128;
    /// From an integer, wrapping.
    fn from_int(x: i128) -> Self;
    /// Little-endian bytes, as many as the type has.
    fn write(self, out: &mut [u8]);
    /// From little-endian bytes, as many as the type has.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($t:ty, $variant:ident, $to_f64:expr, $from_f64:expr, $to_int:expr, $from_int:expr) => {
        impl Element for $t {
            const DTYPE: DType = DType::$variant;
            fn wrap(v: Vec<Self>) -> Data {
                Data::$variant(v)
            }
            fn slice(data: &Data) -> Option<&[Self]> {
                match data {
                    Data::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
            fn from_f64(x: f64) -> Self {
                $from_f64(x)
            }
            fn to_int(self) -> i128 {
                $to_int(self)
            }
            fn from_int(x: i128) -> Self {
                $from_int(x)
            }
            #[inline]
            fn write(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                let mut b = [0; size_of::<Self>()];
                b.copy_from_slice(bytes);
                Self::from_le_bytes(b)
            }
        }
    };
}

element!(f64, F64, |x: f64| x, |x: f64| x, |x: f64| x as i128, |x: i128| x as f64);
element!(f32, F32, f64::from, |x: f64| x as f32, |x: f32| x as i128, |x: i128| x as f32);
element!(f16, F16, f16::to_f64, f16::from_f64, |x: f16| x.to_f64() as i128, |x: i128| {
    f16::from_f64(x as f64)
});
element!(bf16, BF16, bf16::to_f64, bf16::from_f64, |x: bf16| x.to_f64() as i128, |x: i128| {
    bf16::from_f64(x as f64)
});
element!(i64, I64, |x: i64| x as f64, |x: f64| x as i64, i128::from, |x: i128| x as i64);
element!(i32, I32, f64::from, |x: f64| x as i32, i128::from, |x: i128| x as i32);
element!(i16, I16, f64::from, |x: f64| x as i16, i128::from, |x: i128| x as i16);
element!(i8, I8, f64::from, |x: f64| x as i8, i128::from, |x: i128| x as i8);
element!(u64, U64, |x: u64| x as f64, |x: f64| x as u64, i128::from, |x: i128| x as u64);
element!(u32, U32, f64::from, |x: f64| x as u32, i128::from, |x: i128| x as u32);
element!(u16, U16, f64::from, |x: f64| x as u16, i128::from, |x: i128| x as u16);
element!(u8, U8, f64::from, |x: f64| x as u8, i128::from, |x: i128| x as u8);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn wrap(v: Vec<Self>) -> Data {
        Data::Bool(v)
    }
    fn slice(data: &Data) -> Option<&[Self]> {
        match data {
            Data::Bool(v) => Some(v),
            _ => None,
        }
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn from_f64(x: f64) -> Self {
        x != 0.0
    }
    fn to_int(self) -> i128 {
        i128::from(self)
    }
    fn from_int(x: i128) -> Self {
        x != 0
    }
    fn write(self, out: &mut [u8]) {
        out[0] = u8::from(self);
    }
    fn read(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
}

/// Runs `$body` with `$t` bound to the Rust type of the element type `$dtype`.
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F16 => {
                type $t = ::half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $t = ::half::bf16;
                $body
            }
            $crate::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::DType::I16 => {
                type $t = i16;
                $body
            }
            $crate::DType::I8 => {
                type $t = i8;
                $body
            }
            $crate::DType::U64 => {
                type $t = u64;
                $body
            }
            $crate::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::DType::U16 => {
                type $t = u16;
                $body
            }
            $crate::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::DType::Bool => {
                type $t = bool;
                $body
            }
        }
    };
}

impl Tensor {
    /// A tensor of these elements.
    ///
    /// # Errors
    /// If their number is not that of the shape, or it would be larger than [`MAX_TENSOR_BYTES`].
    pub fn new<T: Element>(shape: impl Into<Vec<u64>>, v: Vec<T>) -> Result<Self, EvalError> {
        let ty = TensorType::new(T::DTYPE, shape);
        check_size(&ty)?;
        if ty.elements() != v.len() as u64 {
            return Err(EvalError::Invalid(format!("{} elements for {ty}", v.len())));
        }
        Ok(Self { ty, data: T::wrap(v) })
    }

    /// A scalar.
    pub fn scalar<T: Element>(x: T) -> Self {
        Self { ty: TensorType::new(T::DTYPE, []), data: T::wrap(vec![x]) }
    }

    /// A one-dimensional tensor.
    pub fn vector<T: Element>(v: Vec<T>) -> Self {
        Self { ty: TensorType::new(T::DTYPE, [v.len() as u64]), data: T::wrap(v) }
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// If it would be larger than [`MAX_TENSOR_BYTES`].
    pub fn zeros(ty: TensorType) -> Result<Self, EvalError> {
        let n = check_size(&ty)?;
        let data = with_element!(ty.dtype, T => T::wrap(vec![T::default(); n]));
        Ok(Self { ty, data })
    }

    /// A float tensor whose element `i` (row-major) is `f(i)`, rounded to the element type.
    ///
    /// # Errors
    /// If it would be larger than [`MAX_TENSOR_BYTES`].
    pub fn from_f64(ty: TensorType, mut f: impl FnMut(usize) -> f64) -> Result<Self, EvalError> {
        let n = check_size(&ty)?;
        let data =
            with_element!(ty.dtype, T => T::wrap((0..n).map(|i| T::from_f64(f(i))).collect()));
        Ok(Self { ty, data })
    }

    /// A tensor whose element `i` (row-major) is `f(i)`, wrapped to the element type.
    ///
    /// # Errors
    /// If it would be larger than [`MAX_TENSOR_BYTES`].
    pub fn from_int(ty: TensorType, mut f: impl FnMut(usize) -> i128) -> Result<Self, EvalError> {
        let n = check_size(&ty)?;
        let data =
            with_element!(ty.dtype, T => T::wrap((0..n).map(|i| T::from_int(f(i))).collect()));
        Ok(Self { ty, data })
    }

    /// Element `i` of the result is element `index(i)` of `self`; the element type stays.
    ///
    /// # Errors
    /// If it would be larger than [`MAX_TENSOR_BYTES`], or an index is out of range.
    pub fn select(
        &self,
        shape: impl Into<Vec<u64>>,
        mut index: impl FnMut(usize) -> usize,
    ) -> Result<Self, EvalError> {
        let ty = TensorType::new(self.ty.dtype, shape);
        let n = check_size(&ty)?;
        let data = for_each_dtype!(&self.data, v => {
            let picked: Option<Vec<_>> = (0..n).map(|i| v.get(index(i)).copied()).collect();
            Element::wrap(picked.ok_or_else(|| EvalError::Invalid("index out of range".into()))?)
        });
        Ok(Self { ty, data })
    }

    /// From little-endian bytes, row-major.
    ///
    /// # Errors
    /// If the length is not that of the type.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Result<Self, EvalError> {
        check_size(&ty)?;
        if ty.bytes() != bytes.len() as u64 {
            return Err(EvalError::Invalid(format!("{} bytes for {ty}", bytes.len())));
        }
        let data = with_element!(ty.dtype, T => {
            T::wrap(bytes.chunks_exact(size_of::<T>()).map(T::read).collect())
        });
        Ok(Self { ty, data })
    }

    /// Little-endian bytes, row-major.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.ty.bytes() as usize];
        for_each_dtype!(&self.data, v => write_all(v, &mut out));
        out
    }

    /// Type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Shape.
    pub fn shape(&self) -> &[u64] {
        &self.ty.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        for_each_dtype!(&self.data, v => v.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Elements, if they are of this type.
    pub fn slice<T: Element>(&self) -> Option<&[T]> {
        T::slice(&self.data)
    }

    /// Element `i`, row-major, as f64.
    pub fn f64_at(&self, i: usize) -> f64 {
        for_each_dtype!(&self.data, v => v[i].to_f64())
    }

    /// Element `i`, row-major, as an integer.
    pub fn int_at(&self, i: usize) -> i128 {
        for_each_dtype!(&self.data, v => v[i].to_int())
    }

    /// All elements as f64.
    pub fn to_f64s(&self) -> Vec<f64> {
        for_each_dtype!(&self.data, v => v.iter().map(|x| x.to_f64()).collect())
    }

    /// All elements as i64 (wrapping).
    pub fn to_i64s(&self) -> Vec<i64> {
        for_each_dtype!(&self.data, v => v.iter().map(|x| x.to_int() as i64).collect())
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// If the number of elements differs, or it would be larger than [`MAX_TENSOR_BYTES`].
    pub fn reshape(mut self, shape: impl Into<Vec<u64>>) -> Result<Self, EvalError> {
        let ty = TensorType::new(self.ty.dtype, shape);
        check_size(&ty)?;
        if ty.elements() != self.ty.elements() {
            return Err(EvalError::Invalid(format!("{} reshaped to {:?}", self.ty, ty.shape)));
        }
        self.ty = ty;
        Ok(self)
    }

    /// Converted to another element type: floats to integers truncate and saturate, anything
    /// non-zero (NaN included) is true.
    ///
    /// # Errors
    /// If it would be larger than [`MAX_TENSOR_BYTES`].
    pub fn cast(&self, dtype: DType) -> Result<Self, EvalError> {
        let ty = TensorType::new(dtype, self.shape());
        if self.dtype().is_float() {
            Self::from_f64(ty, |i| self.f64_at(i))
        } else {
            Self::from_int(ty, |i| self.int_at(i))
        }
    }
}

fn write_all<T: Element>(elements: &[T], out: &mut [u8]) {
    for (x, bytes) in elements.iter().zip(out.chunks_exact_mut(size_of::<T>())) {
        x.write(bytes);
    }
}

/// The number of elements, if the tensor is not too large to be made.
///
/// # Errors
/// If it would be larger than [`MAX_TENSOR_BYTES`].
pub fn check_size(ty: &TensorType) -> Result<usize, EvalError> {
    // Extents of 0 count as 1: loops run over the others of an empty tensor too.
    let extents = ty.shape.iter().map(|&n| n.max(1));
    let bytes = extents.fold(ty.dtype.bytes(), u64::saturating_mul);
    if bytes > MAX_TENSOR_BYTES {
        return Err(EvalError::TooLarge { bytes, limit_bytes: MAX_TENSOR_BYTES });
    }
    Ok(ty.elements() as usize)
}

/// `x` as the element type holds it.
pub fn round_to(dtype: DType, x: f64) -> f64 {
    with_element!(dtype, T => T::from_f64(x).to_f64())
}

/// Row-major strides of a shape, in elements. They wrap only where the tensor is empty or too large
/// to exist.
pub fn strides(shape: &[u64]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].wrapping_mul(shape[i] as usize);
    }
    strides
}

/// The coordinates of row-major index `i`.
pub fn unravel(mut i: usize, shape: &[u64]) -> Vec<usize> {
    let mut coord = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        let n = shape[d] as usize;
        coord[d] = i % n;
        i /= n;
    }
    coord
}
