//! planc's intermediate representation: what a model, a sharding, a rank program and a plan *are*.
//!
//! The crate knows nothing of cost, search or CUDA. Its contract:
//!
//! * A [`Graph`] is in topological order by construction: a node only reads values that exist
//!   already. Every value has a [`TensorType`] whose extents are concrete (symbolic dimensions are
//!   bound at import), or is marked [`Extents::Dynamic`].
//! * An [`Op`](ops::Op) is one row of the op table. Everything that planc knows of an operator (how
//!   ONNX writes it, its shapes, how it may be split, its work, its reference semantics, the
//!   kernels it lowers to) stands in that operator's file.
//! * How an op may be split is said once, by its [`FactorRule`](sharding::FactorRule).
//!   Strategies, partitioning, resharding and property tests are derived from it.
//! * A graph that [`verify`](verify::verify) accepts makes no later stage panic.
//! * Serialisable types are a boundary: the plan ([`plan`]) and what it is made of.
//!
//! Protobuf is seen only in [`onnx`].

pub mod atomic;
pub mod digest;
pub mod dtype;
mod encoding;
pub mod error;
pub mod finish;
pub mod graph;
pub mod interp;
pub mod mapped;
pub mod number;
pub mod onnx;
pub mod ops;
pub mod plan;
pub mod program;
pub mod scalar;
pub mod sharding;
pub mod tensor;
pub mod text;
pub mod verify;
pub mod weights;

pub use dtype::DType;
pub use error::{EvalError, OpError};
pub use graph::{
    Carried, Extents, Graph, Node, NodeId, Phase, TensorType, Value, ValueDef, ValueId,
    WeightSource,
};
pub use tensor::Tensor;
