//! Training against PyTorch: gradients, loss curves, and the same curves under any strategy.
#![allow(clippy::print_stderr)] // says aloud what is left out

mod curves;
mod dropout;
mod experts;
mod gradients;
mod memory;
mod pipelines;
mod plans;
mod policies;
mod resume;
mod support;
mod verify;
mod verify_pipelines;
