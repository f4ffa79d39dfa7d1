//! Device profiles: what is known of a device, as data.

use crate::error::{CostError, not_negative, positive, share};
use crate::figure::Figure;
use planc_ir::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A device profile. One file in `profiles/` is one profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name by which clusters refer to it, in lower case.
    pub name: String,
    /// Other accepted names, in lower case.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// As people write it.
    pub title: String,
    /// Streaming multiprocessors, or cores.
    pub processors: Figure,
    /// Duration of a kernel that does next to nothing, with launches batched in a graph.
    pub launch_us: Figure,
    /// Memory.
    pub memory: MemoryProfile,
    /// Edges `[m, n]` of the tiles that the library's products are made of.
    pub tiles: Vec<[u64; 2]>,
    /// For each element type, how matrix products run. Has at least the float types; integers run at
    /// the f32 rate, as no tensor core takes them here.
    pub matmul: BTreeMap<DType, MatmulProfile>,
    /// Arithmetic outside of matrix products, in f32.
    pub vector_flops_per_s: Figure,
    /// Time of a matrix product over that of a convolution of the same implicit extents: at most 1.
    pub convolution_efficiency: Figure,
    /// Time of a kernel that runs beside communication over that of one that does not: at least 1. They
    /// share memory bandwidth, and collectives take some processors.
    pub overlap_slowdown: Figure,
    /// The usual machine around it, for `--gpus 8 --device NAME`.
    pub node: NodeProfile,
}

/// A device's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryProfile {
    /// Capacity.
    pub capacity_bytes: Figure,
    /// What context, libraries and communication buffers take of it.
    pub reserve_bytes: Figure,
    /// What large kernels attain.
    pub bandwidth_bytes_per_s: Figure,
}

/// How matrix products of one element type run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatmulProfile {
    /// The vendor's peak.
    pub peak_flops_per_s: Figure,
    /// The part of it that an infinitely large tile would attain.
    pub efficiency: Figure,
    /// Tile edge at which loading operands costs half of the time: efficiency falls as
    /// `1 / (1 + half_edge · (1/tile_m + 1/tile_n) / 2)`.
    pub half_edge: Figure,
    /// Start and end of a tile, in steps of `k`.
    pub ramp_k: Figure,
    /// The part of the memory bandwidth that a product attains.
    pub bandwidth_efficiency: Figure,
    /// Filling and draining the device, whatever the extents.
    pub fixed_us: Figure,
}

/// The usual machine around a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeProfile {
    /// Devices of a node.
    pub devices: u32,
    /// Link between them.
    pub intra: String,
    /// Link between nodes.
    pub inter: String,
    /// Adapters of a node.
    pub adapters: u32,
}

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

impl Profile {
    /// Reads and checks a profile.
    pub fn from_json(text: &str) -> Result<Self, CostError> {
        let profile: Self = serde_json::from_str(text)
            .map_err(|e| CostError::BadProfile { profile: "file".into(), why: e.to_string() })?;
        profile.validate()?;
        Ok(profile)
    }

    /// Checks its numbers.
    pub fn validate(&self) -> Result<(), CostError> {
        let place = format!("profile `{}`", self.name);
        let place = place.as_str();
        positive(place, "processors", self.processors.value)?;
        not_negative(place, "launch_us", self.launch_us.value)?;
        positive(place, "capacity_bytes", self.memory.capacity_bytes.value)?;
        not_negative(place, "reserve_bytes", self.memory.reserve_bytes.value)?;
        positive(place, "bandwidth_bytes_per_s", self.memory.bandwidth_bytes_per_s.value)?;
        positive(place, "vector_flops_per_s", self.vector_flops_per_s.value)?;
        share(place, "convolution_efficiency", self.convolution_efficiency.value)?;
        if !(self.overlap_slowdown.value.is_finite() && self.overlap_slowdown.value >= 1.0) {
            let why =
                format!("`overlap_slowdown` is {}, not at least 1", self.overlap_slowdown.value);
            return Err(CostError::BadProfile { profile: self.name.clone(), why });
        }
        for m in self.matmul.values() {
            positive(place, "peak_flops_per_s", m.peak_flops_per_s.value)?;
            share(place, "efficiency", m.efficiency.value)?;
            not_negative(place, "half_edge", m.half_edge.value)?;
            not_negative(place, "ramp_k", m.ramp_k.value)?;
            share(place, "bandwidth_efficiency", m.bandwidth_efficiency.value)?;
            not_negative(place, "fixed_us", m.fixed_us.value)?;
        }
        let bad = |why: String| CostError::BadProfile { profile: self.name.clone(), why };
        if let Some(missing) = FLOATS.iter().find(|d| !self.matmul.contains_key(d)) {
            return Err(bad(format!("`matmul` has no entry for {missing}")));
        }
        if self.tiles.is_empty() || self.tiles.iter().flatten().any(|&edge| edge == 0) {
            return Err(bad("`tiles` needs at least one tile, with edges of at least 1".into()));
        }
        if self.memory.reserve_bytes.value >= self.memory.capacity_bytes.value {
            return Err(bad("`reserve_bytes` leaves no memory".into()));
        }
        if self.node.devices == 0 || self.node.adapters == 0 {
            return Err(bad("`node` needs at least one device and one adapter".into()));
        }
        Ok(())
    }

    /// Memory that a plan may use.
    pub fn usable_bytes(&self) -> u64 {
        (self.memory.capacity_bytes.value - self.memory.reserve_bytes.value) as u64
    }
}
