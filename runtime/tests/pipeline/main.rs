//! Pipelines on ranks: steps that are cut into stages compute what the whole step does, in any order that runs, in
//! the memory that was planned; what does not fit together is refused, and one failure ends all.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../training/model.rs"]
mod model;

mod cut;
mod failures;
mod hostile;
mod orders;
mod sessions;
mod steps;
mod tied;
