//! How long and how big: a pure cost model over profiles that are data.
//!
//! ```text
//! cluster (JSON, preset or "8 × h100") ─┐
//!                                       ├─▶ CostModel ──▶ op_us, collective_us, step_us, memory_bytes
//! catalogue (device profiles, links) ───┘
//! ```
//!
//! * Everything is a pure function of its arguments: no clock, no environment, no files. What is
//!   shipped is compiled in ([`Catalogue::shipped`]).
//! * Time never falls as work, bytes or extents grow, and never rises with bandwidth. That holds by
//!   construction: every formula is a sum, a maximum or a minimum of monotone terms.
//! * Every figure of a profile says where it is from ([`Figure`]). The measured points that constants
//!   were fitted to lie beside the profiles, and the tests recompute the errors.
//!
//! The formulas are described in `docs/cost-model.md`, the cluster format in `docs/clusters.md`.

pub mod catalogue;
pub mod cluster;
pub mod collective;
pub mod compute;
pub mod error;
pub mod figure;
pub mod link;
pub mod matmul;
pub mod model;
pub mod pipeline;
pub mod placement;
pub mod preset;
pub mod profile;
pub mod simulate;
pub mod timeline;

pub use catalogue::Catalogue;
pub use cluster::{Cluster, NodeGroup};
pub use collective::Collective;
pub use compute::DeviceModel;
pub use error::CostError;
pub use figure::{Figure, Origin};
pub use link::{Link, Topology};
pub use model::CostModel;
pub use pipeline::{PartTimes, PipelineSimulation, PipelineTimes, Span};
pub use placement::GroupFacts;
pub use profile::Profile;
pub use simulate::{Simulation, simulate};
pub use timeline::{Timeline, timeline};
