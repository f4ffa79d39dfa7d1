//! Tests of the whole search.

mod brute_force;
pub mod graphs;
mod limits;
mod program;
mod transformers;

use super::costs::Costs;
use planc_ir::DType;
use planc_ir::TensorType;
use planc_ir::ops::{Work, WorkKind};
use planc_ir::sharding::Mesh;
use planc_ir::sharding::reshard::{Step, StepCost};

/// A cost model with round figures: every kernel and every collective has a fixed price and one a
/// byte or flop, in proportions that make both splitting and communicating worth it at times.
pub struct SmallCosts {
    pub devices: u32,
    pub memory_bytes: u64,
    /// Price of a kernel launch.
    pub launch_us: f64,
    /// Price of a collective's start.
    pub latency_us: f64,
}

impl Default for SmallCosts {
    fn default() -> Self {
        Self { devices: 4, memory_bytes: u64::MAX, launch_us: 1.0, latency_us: 2.0 }
    }
}

impl StepCost for SmallCosts {
    fn step_us(&self, step: &Step, before: &TensorType, after: &TensorType, mesh: &Mesh) -> f64 {
        let ranks = f64::from(mesh.group_size(step.axes()));
        let (before, after) = (before.bytes() as f64, after.bytes() as f64);
        let sent = match step {
            Step::AllReduce { .. } => 2.0 * before * (ranks - 1.0) / ranks,
            Step::ReduceScatter { .. } | Step::AllToAll { .. } => before * (ranks - 1.0) / ranks,
            Step::AllGather { .. } => after * (ranks - 1.0) / ranks,
            Step::Slice { .. } | Step::ToPartial { .. } => {
                return self.launch_us + after / 512.0;
            }
        };
        self.latency_us * ranks.log2() + sent / 16.0
    }
}

impl Costs for SmallCosts {
    fn op_us(&self, work: &Work, _: DType) -> f64 {
        if work.kind == WorkKind::View {
            return 0.0;
        }
        self.launch_us + work.flops / 64.0 + work.bytes / 256.0
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn devices(&self) -> u32 {
        self.devices
    }
}
