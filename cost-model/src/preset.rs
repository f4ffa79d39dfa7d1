//! Clusters by name: `dgx-h100:2` is two nodes of eight H100.

use crate::catalogue::Catalogue;
use crate::cluster::Cluster;
use crate::error::{CostError, bad};

/// A named kind of node.
struct Preset {
    name: &'static str,
    device: &'static str,
    about: &'static str,
}

const PRESETS: &[Preset] = &[
    Preset {
        name: "dgx-v100",
        device: "v100-sxm2-32gb",
        about: "8 V100 32 GB in an NVLink hybrid cube mesh, 4 × EDR InfiniBand",
    },
    Preset {
        name: "dgx-a100",
        device: "a100-sxm-80gb",
        about: "8 A100 80 GB on NVSwitch, 8 × HDR InfiniBand",
    },
    Preset {
        name: "dgx-a100-40",
        device: "a100-sxm-40gb",
        about: "8 A100 40 GB on NVSwitch, 8 × HDR InfiniBand",
    },
    Preset {
        name: "dgx-h100",
        device: "h100-sxm-80gb",
        about: "8 H100 80 GB on NVSwitch, 8 × NDR InfiniBand",
    },
    Preset {
        name: "dgx-h200",
        device: "h200-sxm-141gb",
        about: "8 H200 141 GB on NVSwitch, 8 × NDR InfiniBand",
    },
];

/// Name and description of every preset.
pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
    PRESETS.iter().map(|p| (p.name, p.about))
}

impl Cluster {
    /// A preset: `NAME` is one node, `NAME:NODES` several.
    pub fn preset(name: &str, catalogue: &Catalogue) -> Result<Self, CostError> {
        let (kind, nodes) = match name.split_once(':') {
            Some((kind, nodes)) => (kind, nodes),
            None => (name, "1"),
        };
        let wanted = kind.to_lowercase();
        let preset = PRESETS.iter().find(|p| p.name == wanted).ok_or_else(|| {
            let known: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
            CostError::UnknownCluster { name: kind.into(), known: known.join(", ") }
        })?;
        let per_node = catalogue.device(preset.device)?.node.devices;
        let devices = nodes.parse::<u32>().ok().and_then(|n| n.checked_mul(per_node));
        let devices = devices.filter(|&d| d > 0).ok_or_else(|| {
            bad(&format!("cluster `{name}`"), "nodes", nodes, "it must be a count of at least 1")
        })?;
        let cluster = Self::homogeneous(preset.device, devices, catalogue)?;
        Ok(Self { name: name.into(), ..cluster })
    }
}
