//! The planner: reads a model and a cluster, searches, and emits a plan.
//!
//! ```text
//! ONNX file ──import──▶ Graph ──search──▶ Strategy + Certificate ──partition──▶ Program ──emit──▶ Plan
//! ```
//!
//! Each arrow is one function; [`compile::compile`] calls them in order. The library neither prints
//! nor exits; the binary `planc` does.

pub mod compile;
pub mod emit;
pub mod inspect;
pub mod report;
pub mod rewrite;
pub mod search;
pub mod stages;
pub mod trace;
pub mod train;
pub mod verify;
