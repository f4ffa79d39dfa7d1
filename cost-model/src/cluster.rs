//! Clusters: nodes, their devices, and what connects them. The JSON form is described in
//! `docs/clusters.md`.
//!
//! A [`Cluster`] is resolved: names of devices are canonical and links are spelled out, so what is
//! written into a plan does not depend on the catalogue of whoever reads it.

use crate::catalogue::Catalogue;
use crate::error::{CostError, bad};
use crate::link::{Link, Topology};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// More devices than any cluster has; a guard against slips and hostile files.
pub const MAX_DEVICES: u64 = 1 << 20;

/// Machines to plan for. Devices are numbered node by node, in the order written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// Name for reports.
    pub name: String,
    /// Groups of equal nodes, in order.
    pub nodes: Vec<NodeGroup>,
    /// What connects nodes; present if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inter: Option<Link>,
}

/// Equal nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeGroup {
    /// Number of nodes.
    pub count: u32,
    /// Devices of each.
    pub devices: u32,
    /// The device's name in the catalogue.
    pub device: String,
    /// What connects the devices of a node.
    pub intra: Link,
    /// Network adapters of a node, each with the bandwidth of [`Cluster::inter`].
    pub adapters: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    name: String,
    nodes: Vec<RawNodes>,
    inter: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNodes {
    #[serde(default = "one")]
    count: u32,
    devices: u32,
    device: String,
    intra: Option<Value>,
    adapters: Option<u32>,
}

const fn one() -> u32 {
    1
}

impl Cluster {
    /// Reads a cluster file. What a node group leaves out (`count`, `intra`, `adapters`) is one node,
    /// and what the device's profile says is usual.
    pub fn from_json(text: &str, catalogue: &Catalogue) -> Result<Self, CostError> {
        let raw: RawCluster =
            serde_json::from_str(text).map_err(|e| CostError::Syntax(e.to_string()))?;
        let nodes = raw
            .nodes
            .into_iter()
            .map(|n| {
                let profile = catalogue.device(&n.device)?;
                let intra = match n.intra {
                    Some(value) => link_from_json(value, catalogue)?,
                    None => catalogue.link(&profile.node.intra)?,
                };
                Ok(NodeGroup {
                    count: n.count,
                    devices: n.devices,
                    device: profile.name.clone(),
                    intra,
                    adapters: n.adapters.unwrap_or(profile.node.adapters),
                })
            })
            .collect::<Result<_, CostError>>()?;
        let inter = raw.inter.map(|value| link_from_json(value, catalogue)).transpose()?;
        let cluster = Self { name: raw.name, nodes, inter };
        cluster.validate()?;
        Ok(cluster)
    }

    /// `devices` devices of one type in the type's usual nodes; the last node may be smaller.
    pub fn homogeneous(
        device: &str,
        devices: u32,
        catalogue: &Catalogue,
    ) -> Result<Self, CostError> {
        let profile = catalogue.device(device)?;
        let group = |count, devices| {
            Ok(NodeGroup {
                count,
                devices,
                device: profile.name.clone(),
                intra: catalogue.link(&profile.node.intra)?,
                adapters: profile.node.adapters,
            })
        };
        let (full, rest) = (devices / profile.node.devices, devices % profile.node.devices);
        let nodes = [(full, profile.node.devices), (u32::from(rest > 0), rest)]
            .into_iter()
            .filter(|&(count, _)| count > 0)
            .map(|(count, devices)| group(count, devices))
            .collect::<Result<Vec<_>, CostError>>()?;
        let several = full + u32::from(rest > 0) > 1;
        let inter = several.then(|| catalogue.link(&profile.node.inter)).transpose()?;
        let cluster = Self { name: format!("{devices}x{}", profile.name), nodes, inter };
        cluster.validate()?;
        Ok(cluster)
    }

    /// Checks counts and links.
    pub fn validate(&self) -> Result<(), CostError> {
        let place = format!("cluster `{}`", self.name);
        if self.nodes.is_empty() {
            return Err(bad(&place, "nodes", "empty", "it needs at least one group of nodes"));
        }
        for (i, group) in self.nodes.iter().enumerate() {
            let place = format!("{place}, node group {i}");
            for (what, value) in
                [("count", group.count), ("devices", group.devices), ("adapters", group.adapters)]
            {
                if value == 0 {
                    return Err(bad(&place, what, value, "it must be at least 1"));
                }
            }
            group.intra.validate(&format!("{place}, link `{}`", group.intra.name))?;
            if group.intra.topology == Topology::Network {
                let expected = "a link inside a node is a switch, a mesh or pcie";
                return Err(bad(&place, "intra", &group.intra.name, expected));
            }
        }
        let devices = self.nodes.iter().fold(0u64, |sum, g| {
            sum.saturating_add(u64::from(g.count).saturating_mul(u64::from(g.devices)))
        });
        if devices > MAX_DEVICES {
            return Err(bad(&place, "devices", devices, "at most 1048576 devices are supported"));
        }
        match &self.inter {
            Some(link) => {
                link.validate(&format!("{place}, link `{}`", link.name))?;
                if link.topology != Topology::Network {
                    let expected = "a link between nodes is a network";
                    return Err(bad(&place, "inter", &link.name, expected));
                }
                Ok(())
            }
            None if self.node_count() == 1 => Ok(()),
            None => {
                Err(CostError::NoNetwork { cluster: self.name.clone(), nodes: self.node_count() })
            }
        }
    }

    /// Number of devices.
    pub fn devices(&self) -> u32 {
        self.nodes.iter().map(|g| g.count.saturating_mul(g.devices)).fold(0, u32::saturating_add)
    }

    /// Number of nodes.
    pub fn node_count(&self) -> u64 {
        self.nodes.iter().map(|g| u64::from(g.count)).sum()
    }

    /// As JSON, links spelled out: what a plan keeps.
    pub fn to_json(&self) -> Result<Value, CostError> {
        serde_json::to_value(self).map_err(|e| CostError::Syntax(e.to_string()))
    }
}

/// A link by name, or spelled out.
fn link_from_json(value: Value, catalogue: &Catalogue) -> Result<Link, CostError> {
    match value {
        Value::String(name) => catalogue.link(&name),
        object => serde_json::from_value(object)
            .map_err(|e| CostError::Syntax(format!("a link is a name or an object: {e}"))),
    }
}
