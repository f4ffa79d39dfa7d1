//! Operands of a kernel.

use crate::device::bytes::{view, view_mut};
use crate::device::element::Elem;
use planc_ir::DType;
use planc_ir::program::Local;

/// A buffer that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub struct In<'a> {
    /// Which part of which tensor it is.
    pub local: &'a Local,
    /// Its elements.
    pub bytes: &'a [u8],
}

/// A buffer that a kernel writes. It shares no memory with any other operand.
#[derive(Debug)]
pub struct Out<'a> {
    /// Which part of which tensor it is.
    pub local: &'a Local,
    /// Its elements.
    pub bytes: &'a mut [u8],
}

impl<'a> In<'a> {
    /// Local extents.
    pub fn shape(&self) -> &'a [u64] {
        &self.local.ty.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.local.ty.dtype
    }

    /// Elements.
    pub fn elements<T: Elem>(&self) -> &'a [T] {
        view(self.bytes)
    }
}

impl<'a> Out<'a> {
    /// Local extents.
    pub fn shape(&self) -> &'a [u64] {
        &self.local.ty.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.local.ty.dtype
    }

    /// Elements.
    pub fn elements<T: Elem>(&mut self) -> &mut [T] {
        view_mut(self.bytes)
    }
}

/// The extents before, at and after a dimension, each as one number.
pub fn around(shape: &[u64], axis: usize) -> (usize, usize, usize) {
    let product = |s: &[u64]| s.iter().product::<u64>() as usize;
    (product(&shape[..axis]), shape[axis] as usize, product(&shape[axis + 1..]))
}
