//! Aligned memory, and its typed views. With the calls into the matrix multiplication this is the
//! only unsafe code of the runtime.
#![allow(unsafe_code)]

use super::element::Elem;
use planc_ir::program::ALIGNMENT;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed bytes, aligned to [`ALIGNMENT`], so that any element type may lie at a multiple of it.
#[derive(Debug)]
pub struct AlignedBytes {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the memory is owned and reached only through `&self` and `&mut self`, as in `Box<[u8]>`.
unsafe impl Send for AlignedBytes {}
// SAFETY: the same.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Allocates; `None` if there is not that much memory. Pages are only taken when touched.
    pub fn zeroed(bytes: u64) -> Option<Self> {
        let len = usize::try_from(bytes).ok()?;
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT as usize).ok()?;
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout, len })
    }

    /// A copy of some bytes.
    pub fn copy_of(bytes: &[u8]) -> Option<Self> {
        let mut copy = Self::zeroed(bytes.len() as u64)?;
        copy.copy_from_slice(bytes);
        Some(copy)
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that `self` owns.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes that `self` owns, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Bytes as elements.
///
/// # Panics
/// If the bytes are not aligned for the type, which buffers of an arena always are.
pub fn view<T: Elem>(bytes: &[u8]) -> &[T] {
    // SAFETY: every bit pattern is a valid `T` (the contract of `Elem`).
    let (before, elements, after) = unsafe { bytes.align_to::<T>() };
    assert!(before.is_empty() && after.is_empty(), "buffer is not aligned for {}", T::DTYPE);
    elements
}

/// Bytes as elements to be written.
///
/// # Panics
/// If the bytes are not aligned for the type, which buffers of an arena always are.
pub fn view_mut<T: Elem>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: every bit pattern is a valid `T`, and a `T` has no padding (the contract of `Elem`).
    let (before, elements, after) = unsafe { bytes.align_to_mut::<T>() };
    assert!(before.is_empty() && after.is_empty(), "buffer is not aligned for {}", T::DTYPE);
    elements
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_typed() {
        for n in [0, 1, 255, 4096] {
            let mut b = AlignedBytes::zeroed(n).unwrap();
            assert_eq!(b.as_ptr() as u64 % ALIGNMENT, 0);
            assert_eq!(b.len() as u64, n);
            assert!(b.iter().all(|&x| x == 0));
            let n4 = b.len() / 4 * 4;
            view_mut::<f32>(&mut b[..n4]).fill(1.5);
            assert!(view::<f32>(&b[..n4]).iter().all(|x| x.to_bits() == 1.5f32.to_bits()));
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(AlignedBytes::zeroed(u64::MAX).is_none());
        assert!(AlignedBytes::zeroed(1 << 62).is_none());
    }
}
