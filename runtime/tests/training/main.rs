//! Training on ranks: optimizers against PyTorch, steps, measured memory, checkpoints.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod checkpoints;
mod data;
mod in_place;
mod model;
mod optimizers;
mod steps;
