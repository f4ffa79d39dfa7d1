//! What a stage of a pipeline runs when.
//!
//! A model that is cut into a pipeline is a chain of *parts*; each stage holds one part, or several (*chunks*) where
//! stages are interleaved. For each chunk and micro-batch a stage runs a *pass* forward, one backward, and, where
//! those are apart, one that makes the gradients of weights. A schedule says in which order
//! ([`Program::order`](super::Program::order)); the update comes after the last.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A part of the instructions that are repeated for each micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// From what the part before sends to what the next one gets.
    Forward,
    /// The way back. Where there is no pass for weights, with the gradients of weights.
    Backward,
    /// The gradients of weights, from what the backward pass left.
    Weights,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Weights => "weights",
        })
    }
}

/// A pass of a chunk for a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Action {
    /// What of the chunk runs.
    pub pass: Pass,
    /// The chunk, among those of the stage.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chunk: u32,
    /// For which micro-batch.
    pub micro_batch: u32,
}

impl Action {
    /// A pass of a chunk for a micro-batch.
    pub const fn new(pass: Pass, chunk: u32, micro_batch: u32) -> Self {
        Self { pass, chunk, micro_batch }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pass, chunk, micro_batch } = self;
        write!(f, "{pass} of chunk {chunk} for micro-batch {micro_batch}")
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Which instructions a pass of a chunk is: those from the end of the pass before it in the list to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassInstrs {
    /// The pass.
    pub pass: Pass,
    /// The chunk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chunk: u32,
    /// The number of the instruction after its last.
    pub end: usize,
}
