//! The cost model of one cluster: what the search asks.

use crate::catalogue::Catalogue;
use crate::cluster::Cluster;
use crate::collective::Collective;
use crate::compute::DeviceModel;
use crate::error::CostError;
use crate::placement::{GroupFacts, Placement};
use planc_ir::ops::Work;
use planc_ir::plan::Plan;
use planc_ir::sharding::reshard::{Step, StepCost};
use planc_ir::sharding::{AxisId, Mesh};
use planc_ir::{DType, TensorType};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// Prices ops, collectives and memory on one cluster.
#[derive(Debug)]
pub struct CostModel {
    placement: Placement,
    /// One a node group of the cluster.
    devices: Vec<DeviceModel>,
    /// The group's index in `devices`, without repeating equal device types.
    distinct: Vec<usize>,
    /// Group facts by mesh and axes: the search asks for few and asks often.
    facts: RwLock<BTreeMap<u128, GroupFacts>>,
}

impl CostModel {
    /// The model of a cluster whose devices the catalogue knows.
    pub fn new(cluster: &Cluster, catalogue: &Catalogue) -> Result<Self, CostError> {
        cluster.validate()?;
        let devices: Vec<DeviceModel> = cluster
            .nodes
            .iter()
            .map(|g| DeviceModel::new(catalogue.device(&g.device)?))
            .collect::<Result<_, _>>()?;
        let is_first = |&i: &usize| devices[..i].iter().all(|d| d.name() != devices[i].name());
        let distinct = (0..devices.len()).filter(is_first).collect();
        let placement = Placement::new(cluster.clone());
        Ok(Self { placement, devices, distinct, facts: RwLock::default() })
    }

    /// The model of the cluster that a plan was made for.
    pub fn of_plan(plan: &Plan) -> Result<Self, CostError> {
        let catalogue = Catalogue::shipped()?;
        let cluster = Cluster::from_json(&plan.cluster.to_string(), &catalogue)?;
        Self::new(&cluster, &catalogue)
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        self.placement.cluster()
    }

    /// Number of devices.
    pub fn device_count(&self) -> u32 {
        self.cluster().devices()
    }

    /// The model of a device.
    pub fn device(&self, device: u32) -> &DeviceModel {
        &self.devices[self.placement.node_group(device)]
    }

    /// The names of the device types, in cluster order, each once.
    pub fn device_names(&self) -> Vec<&str> {
        self.distinct.iter().map(|&i| self.devices[i].name()).collect()
    }

    /// Memory that a plan may use on each device: that of the smallest.
    pub fn memory_bytes(&self) -> u64 {
        self.devices.iter().map(DeviceModel::usable_bytes).min().unwrap_or(0)
    }

    /// Whether the cluster has a device for each rank of the mesh.
    pub fn check_mesh(&self, mesh: &Mesh) -> Result<(), CostError> {
        let ranks = mesh.axes.iter().fold(1u64, |n, a| n.saturating_mul(u64::from(a.size)));
        let devices = self.device_count();
        if ranks <= u64::from(devices) {
            return Ok(());
        }
        Err(CostError::MeshTooLarge {
            mesh: mesh.to_string(),
            ranks,
            cluster: self.cluster().name.clone(),
            devices,
        })
    }

    /// Time of an op when every device does the same work: the slowest device's.
    pub fn op_us(&self, work: &Work, dtype: DType) -> f64 {
        self.distinct.iter().map(|&i| self.devices[i].op_us(work, dtype)).fold(0.0, f64::max)
    }

    /// Time of an op on one device, for shares of different size.
    pub fn device_op_us(&self, device: u32, work: &Work, dtype: DType) -> f64 {
        self.device(device).op_us(work, dtype)
    }

    /// Time of a collective over `axes` of a mesh, all groups at once; see [`Collective`] for what
    /// `bytes` counts.
    pub fn collective_us(
        &self,
        collective: Collective,
        bytes: f64,
        mesh: &Mesh,
        axes: &[AxisId],
    ) -> f64 {
        if mesh.group_size(axes) <= 1 {
            return 0.0;
        }
        collective.us(bytes, &self.group(mesh, axes))
    }

    /// Where the groups over `axes` of a mesh lie.
    pub fn group(&self, mesh: &Mesh, axes: &[AxisId]) -> GroupFacts {
        let Some(key) = key(mesh, axes) else {
            return self.placement.facts(mesh, axes);
        };
        // A poisoned lock guards a map that is whole all the same: entries are only added.
        if let Some(facts) = self.facts.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return *facts;
        }
        let facts = self.placement.facts(mesh, axes);
        self.facts.write().unwrap_or_else(PoisonError::into_inner).insert(key, facts);
        facts
    }

    /// Time of one local kernel that moves `bytes`, on the slowest device.
    fn traffic_us(&self, bytes: f64) -> f64 {
        self.distinct.iter().map(|&i| self.devices[i].traffic_us(bytes)).fold(0.0, f64::max)
    }
}

/// Packs the sizes of a mesh and a set of its axes: 4 axes of up to 2^24 ranks and a mask.
fn key(mesh: &Mesh, axes: &[AxisId]) -> Option<u128> {
    if mesh.rank() > 4 || mesh.axes.iter().any(|a| a.size >= 1 << 24) {
        return None;
    }
    let sizes = mesh.axes.iter().fold(0u128, |key, a| key << 24 | u128::from(a.size));
    let mask = axes.iter().fold(0u128, |mask, a| mask | 1 << a.index());
    Some(sizes << 4 | mask)
}

impl CostModel {
    /// By what factor kernels take longer while communication runs beside them: on the device that suffers most.
    pub fn overlap_slowdown(&self) -> f64 {
        self.distinct.iter().map(|&i| self.devices[i].overlap_slowdown()).fold(1.0, f64::max)
    }

    /// Time of collective steps that run as one, from their largest local types before and after: steps of one
    /// kind over the same axes start once.
    pub fn issue_us<'a>(
        &self,
        steps: impl IntoIterator<Item = (&'a Step, TensorType, TensorType)>,
        mesh: &Mesh,
    ) -> f64 {
        let mut together: Option<(&Step, Exchange)> = None;
        let mut apart_us = 0.0;
        for (step, before, after) in steps {
            let exchange = self.exchange(step, &before, &after);
            match (&mut together, exchange) {
                (Some((first, sum)), Some(exchange)) if first.joins(step) => {
                    sum.bytes += exchange.bytes;
                    sum.packing_us += exchange.packing_us;
                }
                (None, Some(exchange)) => together = Some((step, exchange)),
                _ => apart_us += self.step_us(step, &before, &after, mesh),
            }
        }
        together.map_or(0.0, |(step, sum)| self.exchange_us(step, &sum, mesh)) + apart_us
    }

    /// What a step exchanges, if it does.
    fn exchange(&self, step: &Step, before: &TensorType, after: &TensorType) -> Option<Exchange> {
        let (before_bytes, after_bytes) = (before.bytes() as f64, after.bytes() as f64);
        // Collectives work on whole buffers: a dimension that is not outermost is packed or unpacked
        // by one pass over the local tensor.
        let pass = |dim: usize, ty: &TensorType| {
            let outer = ty.shape.iter().take(dim).any(|&extent| extent > 1);
            if outer { self.traffic_us(2.0 * ty.bytes() as f64) } else { 0.0 }
        };
        let (collective, bytes, packing_us) = match step {
            Step::AllReduce { .. } => (Collective::AllReduce, before_bytes, 0.0),
            Step::AllGather { dim, .. } => (Collective::AllGather, after_bytes, pass(*dim, after)),
            Step::ReduceScatter { dim, .. } => {
                (Collective::ReduceScatter, before_bytes, pass(*dim, before))
            }
            Step::AllToAll { from, to, .. } => {
                let packing_us = pass(*to, before) + pass(*from, after);
                (Collective::AllToAll, before_bytes.max(after_bytes), packing_us)
            }
            Step::Slice { .. } | Step::ToPartial { .. } => return None,
        };
        Some(Exchange { collective, bytes, packing_us })
    }

    fn exchange_us(&self, step: &Step, exchange: &Exchange, mesh: &Mesh) -> f64 {
        if mesh.group_size(step.axes()) <= 1 {
            return 0.0;
        }
        let us = self.collective_us(exchange.collective, exchange.bytes, mesh, step.axes());
        us + exchange.packing_us
    }
}

/// What a collective step exchanges.
struct Exchange {
    collective: Collective,
    bytes: f64,
    packing_us: f64,
}

impl StepCost for CostModel {
    fn step_us(&self, step: &Step, before: &TensorType, after: &TensorType, mesh: &Mesh) -> f64 {
        match self.exchange(step, before, after) {
            Some(exchange) => self.exchange_us(step, &exchange, mesh),
            None if mesh.group_size(step.axes()) <= 1 => 0.0,
            // A copy. For a partial value all ranks but one only fill; the one that copies decides.
            None => self.traffic_us(2.0 * after.bytes() as f64),
        }
    }
}
