//! Tests of the cost model through its public interface.
// Prices of equal requests are equal to the last bit, so they are compared so.
#![allow(clippy::float_cmp, clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod clusters;
mod fit;
mod pipeline;
mod properties;
mod simulation;
mod steps;
