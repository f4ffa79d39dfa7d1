//! Tests of the cost model through its public interface.
#![allow(clippy::unwrap_used, missing_docs)]

mod clusters;
mod fit;
mod properties;
mod steps;
