//! The compiler: from a model and a cluster to a plan.

pub mod search;
