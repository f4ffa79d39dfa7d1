//! A thin executor of rank programs: it decides nothing.
//!
//! * [`Session`] loads a plan for a model, with every rank's slices of the weights, and runs it.
//! * [`Session::train_step`] trains; [`checkpoint`] keeps what was trained, [`data`] is what it is trained on.
//! * [`timing`] says when each rank ran what, where that is asked for.
//! * [`Executor`] and [`execute`] run bare [`Program`](planc_ir::program::Program)s, those of the stages of a pipeline
//!   side by side.
//! * [`device`] computes kernels on local buffers. The one device is the CPU.
//! * [`comm`] moves data between ranks. The one transport is between threads of this process.
//!
//! Each rank is a thread with its own arena. Ranks share nothing but collectives and messages, whose results
//! do not depend on timing: contributions are combined in the order of the group's ranks. When one
//! rank fails, all others end, and the error names the rank, the instruction and the node of the
//! user's model.

pub mod checkpoint;
pub mod comm;
pub mod data;
pub mod device;
pub mod error;
pub mod executor;
mod operands;
mod rank;
pub mod region;
pub mod safetensors_file;
pub mod session;
mod stage;
mod threads;
pub mod timing;
pub mod training;
pub mod weights;

pub use error::{CommError, KernelError, RunError, WeightError};
pub use executor::{Executor, execute};
pub use rank::MemoryUse;
pub use session::Session;
pub use timing::{InstrTime, RankTimes};
pub use training::TrainStep;
pub use weights::Weights;

#[cfg(target_endian = "big")]
compile_error!("tensors in files are little-endian and are used in memory as they are");
