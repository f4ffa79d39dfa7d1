//! The search.

pub mod ilp;
pub mod reduce;
pub mod request;
pub mod solver;
