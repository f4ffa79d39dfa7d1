//! Where kernels run.

pub mod bytes;
pub mod cpu;
pub mod element;
