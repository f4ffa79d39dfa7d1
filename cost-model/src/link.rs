//! Links: what connects the devices of a node, and what connects nodes.

use crate::error::{CostError, bad, not_negative, positive, share};
use crate::figure::Figure;
use serde::{Deserialize, Serialize};

/// How a link connects its ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Every device reaches every other at full bandwidth through a switch (NVSwitch).
    Switch {
        /// The part of the bandwidth that all-reduce attains when the switch itself adds (NVLink
        /// SHARP); absent if it cannot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        in_switch_reduction: Option<f64>,
    },
    /// Point-to-point links between some pairs (NVLink hybrid cube mesh): how many of a device's
    /// links a ring over a group can use depends on the group's size.
    Mesh {
        /// Usable links of a device for groups of 2, 3, …; the last entry is the full number, to which
        /// `bandwidth_bytes_per_s` refers, and holds for larger groups too.
        links_by_group: Vec<f64>,
    },
    /// Each device has its own lanes into a tree of PCIe switches.
    Pcie,
    /// One medium that all devices of a node share, such as a host's memory; the bandwidth is the
    /// medium's.
    Shared,
    /// A network between nodes; the bandwidth is that of one adapter.
    Network,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Name in the catalogue, or the user's.
    pub name: String,
    /// How it connects.
    pub topology: Topology,
    /// Line rate of one device (of one adapter for a network), in each direction.
    pub bandwidth_bytes_per_s: f64,
    /// The part of the line rate that large messages attain.
    pub efficiency: f64,
    /// From the start of a collective to its first byte on the wire.
    pub launch_us: f64,
    /// Of one hop of a collective, for large messages.
    pub hop_us: f64,
}

impl Link {
    /// Checks its numbers; `place` is for messages.
    pub fn validate(&self, place: &str) -> Result<(), CostError> {
        positive(place, "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)?;
        share(place, "efficiency", self.efficiency)?;
        not_negative(place, "launch_us", self.launch_us)?;
        not_negative(place, "hop_us", self.hop_us)?;
        match &self.topology {
            Topology::Switch { in_switch_reduction: Some(part) } => {
                share(place, "in_switch_reduction", *part)?;
            }
            Topology::Mesh { links_by_group } => {
                let Some(&full) = links_by_group.last() else {
                    return Err(bad(place, "links_by_group", "empty", "it needs an entry a size"));
                };
                for &links in links_by_group {
                    positive(place, "links_by_group", links)?;
                    if links > full {
                        let expected = "no entry may exceed the last, the full number of links";
                        return Err(bad(place, "links_by_group", links, expected));
                    }
                }
            }
            Topology::Switch { .. } | Topology::Pcie | Topology::Shared | Topology::Network => {}
        }
        Ok(())
    }

    /// What large messages attain per device in a group of `size`, in each direction.
    pub fn achieved_bytes_per_s(&self, size: u32) -> f64 {
        let usable = match &self.topology {
            Topology::Mesh { links_by_group } => {
                let full = links_by_group.last().copied().unwrap_or(1.0);
                let index = (size as usize).saturating_sub(2);
                links_by_group.get(index).copied().unwrap_or(full) / full
            }
            Topology::Switch { .. } | Topology::Pcie | Topology::Shared | Topology::Network => 1.0,
        };
        self.bandwidth_bytes_per_s * self.efficiency * usable
    }
}

/// A link of the catalogue: its figures with their origins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkProfile {
    /// Name by which clusters refer to it.
    pub name: String,
    /// How it connects.
    pub topology: TopologyProfile,
    /// See [`Link::bandwidth_bytes_per_s`].
    pub bandwidth_bytes_per_s: Figure,
    /// See [`Link::efficiency`].
    pub efficiency: Figure,
    /// See [`Link::launch_us`].
    pub launch_us: Figure,
    /// See [`Link::hop_us`].
    pub hop_us: Figure,
}

/// [`Topology`] with origins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // as in `Topology`
pub enum TopologyProfile {
    Switch {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        in_switch_reduction: Option<Figure>,
    },
    Mesh {
        links_by_group: Vec<Figure>,
    },
    Pcie,
    Shared,
    Network,
}

impl From<&LinkProfile> for Link {
    fn from(p: &LinkProfile) -> Self {
        let topology = match &p.topology {
            TopologyProfile::Switch { in_switch_reduction } => Topology::Switch {
                in_switch_reduction: in_switch_reduction.as_ref().map(|f| f.value),
            },
            TopologyProfile::Mesh { links_by_group } => {
                Topology::Mesh { links_by_group: links_by_group.iter().map(|f| f.value).collect() }
            }
            TopologyProfile::Pcie => Topology::Pcie,
            TopologyProfile::Shared => Topology::Shared,
            TopologyProfile::Network => Topology::Network,
        };
        Self {
            name: p.name.clone(),
            topology,
            bandwidth_bytes_per_s: p.bandwidth_bytes_per_s.value,
            efficiency: p.efficiency.value,
            launch_us: p.launch_us.value,
            hop_us: p.hop_us.value,
        }
    }
}
