//! From a strategy to what ranks run.
//!
//! ```text
//! Graph + Strategy ──partition──▶ Program without places ──memory::place──▶ Program
//! ```
//!
//! [`partition()`] does both. It decides nothing: which op is split how, and in which sharding each
//! value has its home, stands in the strategy; what remains is to make every reshard an explicit
//! instruction and to give every buffer a place in the arena. [`overlap()`] then puts the communication of
//! a training step beside its compute. [`mod@schedule`] says what the stages of a pipeline run when, and [`stage()`] is to
//! a stage what [`partition()`] is to a whole model.

mod carry;
pub mod error;
pub mod liveness;
pub mod memory;
pub mod overlap;
pub mod partition;
pub mod pipeline;
pub mod schedule;

pub use error::CodegenError;
pub use memory::MemoryReport;
pub use overlap::{BUCKET_BYTES, overlap};
pub use partition::partition;
pub use pipeline::stage;
pub use schedule::{Schedule, ScheduleError, Shape};
