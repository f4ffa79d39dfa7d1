//! The devices of one stage.

use crate::search::costs::Costs;
use planc_cost_model::CostModel;
use planc_ir::ops::Work;
use planc_ir::sharding::Mesh;
use planc_ir::sharding::reshard::{Step, StepCost};
use planc_ir::{DType, TensorType};

/// The first devices of a cluster: as stages hold equally many in the order of the cluster, what holds for the
/// first holds for all.
pub struct OnDevices<'a> {
    /// The cluster's prices.
    pub cost: &'a CostModel,
    /// How many devices a stage has.
    pub devices: u32,
}

impl StepCost for OnDevices<'_> {
    fn step_us(&self, step: &Step, before: &TensorType, after: &TensorType, mesh: &Mesh) -> f64 {
        self.cost.step_us(step, before, after, mesh)
    }
}

impl Costs for OnDevices<'_> {
    fn op_us(&self, work: &Work, dtype: DType) -> f64 {
        self.cost.op_us(work, dtype)
    }

    fn memory_bytes(&self) -> u64 {
        self.cost.memory_bytes()
    }

    fn devices(&self) -> u32 {
        self.devices
    }
}
