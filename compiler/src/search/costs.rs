//! What the search asks of a cost model.

use planc_cost_model::CostModel;
use planc_ir::DType;
use planc_ir::ops::Work;
use planc_ir::sharding::reshard::StepCost;

/// Prices ops and reshards, and knows how large the devices are. Implemented by [`CostModel`]; tests
/// bring their own.
pub trait Costs: StepCost + Sync {
    /// Time of one application of an op with the largest local extents.
    fn op_us(&self, work: &Work, dtype: DType) -> f64;

    /// Memory that a plan may use on each device.
    fn memory_bytes(&self) -> u64;

    /// Number of devices.
    fn devices(&self) -> u32;
}

impl Costs for CostModel {
    fn op_us(&self, work: &Work, dtype: DType) -> f64 {
        Self::op_us(self, work, dtype)
    }

    fn memory_bytes(&self) -> u64 {
        Self::memory_bytes(self)
    }

    fn devices(&self) -> u32 {
        self.device_count()
    }
}
