//! Where the ranks of a mesh lie in the cluster, and what that means for groups of them.
//!
//! Mesh rank `r` runs on device `r` in cluster order. A group spans some axes; its siblings are the
//! groups over the same axes at other coordinates. Siblings run their collectives at the same time,
//! so they share what they have in common: a node's adapters, a host's memory.

use crate::cluster::{Cluster, NodeGroup};
use crate::link::{Link, Topology};
use planc_ir::sharding::{AxisId, Mesh};
use std::collections::BTreeMap;

/// A stretch of the way between ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Achieved by a rank within a node, by a group's ranks on one node together across nodes.
    pub bytes_per_us: f64,
    /// Achieved by one flow: a device's within a node, an adapter's across nodes.
    pub flow_bytes_per_us: f64,
    /// Start of a collective.
    pub launch_us: f64,
    /// One hop.
    pub hop_us: f64,
}

/// What the time of a collective depends on. Where siblings differ, the worst of each counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupFacts {
    /// Ranks of a group.
    pub size: u32,
    /// Nodes that a group spans.
    pub nodes: u32,
    /// Ranks of a group on one node.
    pub ranks_per_node: u32,
    /// The way between ranks of a node, if a group has several on one.
    pub within: Option<Path>,
    /// What an all-reduce attains in a switch that adds, if all nodes have one.
    pub in_switch_bytes_per_us: Option<f64>,
    /// The way between nodes, if a group spans several.
    pub across: Option<Path>,
}

/// A node of the cluster.
#[derive(Clone, Debug)]
struct Site {
    first_device: u32,
    group: usize,
}

/// The devices of a cluster in order.
#[derive(Clone, Debug)]
pub struct Placement {
    cluster: Cluster,
    sites: Vec<Site>,
}

/// Of one node: how many ranks each group has on it.
type Census = BTreeMap<usize, BTreeMap<usize, u32>>;

impl Placement {
    /// The devices of a valid cluster.
    pub fn new(cluster: Cluster) -> Self {
        let mut sites = Vec::new();
        let mut first_device = 0;
        for (group, nodes) in cluster.nodes.iter().enumerate() {
            for _ in 0..nodes.count {
                sites.push(Site { first_device, group });
                first_device += nodes.devices;
            }
        }
        Self { cluster, sites }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The index in [`Cluster::nodes`] of the group of nodes that holds a device.
    pub fn node_group(&self, device: u32) -> usize {
        self.sites.get(self.site(device)).map_or(0, |s| s.group)
    }

    /// The node of a device; devices beyond the cluster count as on its last node.
    fn site(&self, device: u32) -> usize {
        self.sites.partition_point(|s| s.first_device <= device).saturating_sub(1)
    }

    /// The facts of the groups over `axes` of a mesh.
    pub fn facts(&self, mesh: &Mesh, axes: &[AxisId]) -> GroupFacts {
        let groups = groups(mesh, axes);
        let mut census = Census::new(); // by node, by group
        let mut spans = vec![0u32; groups.len()];
        for (g, ranks) in groups.iter().enumerate() {
            for &rank in ranks {
                *census.entry(self.site(rank)).or_default().entry(g).or_default() += 1;
            }
        }
        for present in census.values() {
            for &g in present.keys() {
                spans[g] += 1;
            }
        }
        let size = mesh.group_size(axes);
        let ranks_per_node = census.values().flat_map(BTreeMap::values).max().copied();
        let mut facts = GroupFacts {
            size,
            nodes: spans.iter().max().copied().unwrap_or(1),
            ranks_per_node: ranks_per_node.unwrap_or(1),
            within: None,
            in_switch_bytes_per_us: None,
            across: None,
        };
        let mut all_switches_add = true;
        for (&site, present) in &census {
            let nodes = &self.cluster.nodes[self.sites[site].group];
            let most = present.values().max().copied().unwrap_or(0);
            if most > 1 {
                let ranks = present.values().sum();
                worsen(&mut facts.within, within(&nodes.intra, most, ranks));
                match in_switch(&nodes.intra) {
                    Some(rate) => {
                        let worst = facts.in_switch_bytes_per_us.get_or_insert(rate);
                        *worst = worst.min(rate);
                    }
                    None => all_switches_add = false,
                }
            }
            let crossing: Vec<u32> =
                present.iter().filter(|&(&g, _)| spans[g] > 1).map(|(_, &n)| n).collect();
            if let (Some(link), Some(&fewest)) = (&self.cluster.inter, crossing.iter().min()) {
                let path = across(link, nodes, fewest, crossing.len());
                worsen(&mut facts.across, path);
            }
        }
        if !all_switches_add {
            facts.in_switch_bytes_per_us = None;
        }
        facts
    }
}

/// All groups over `axes`, each as its ranks.
fn groups(mesh: &Mesh, axes: &[AxisId]) -> Vec<Vec<u32>> {
    let is_first = |&rank: &u32| {
        let coord = mesh.coord(rank);
        axes.iter().all(|a| coord[a.index()] == 0)
    };
    (0..mesh.ranks()).filter(is_first).map(|rank| mesh.group(rank, axes)).collect()
}

/// The way within a node for groups of `size`, when `ranks` of the node take part in all.
fn within(link: &Link, size: u32, ranks: u32) -> Path {
    let sharing = match link.topology {
        Topology::Shared => f64::from(ranks),
        Topology::Switch { .. } | Topology::Mesh { .. } | Topology::Pcie | Topology::Network => 1.0,
    };
    let rate = link.achieved_bytes_per_s(size) / 1e6 / sharing;
    Path {
        bytes_per_us: rate,
        flow_bytes_per_us: rate,
        launch_us: link.launch_us,
        hop_us: link.hop_us,
    }
}

/// What a rank attains in an all-reduce that the switch adds up.
fn in_switch(link: &Link) -> Option<f64> {
    match link.topology {
        Topology::Switch { in_switch_reduction: Some(part) } => {
            Some(link.bandwidth_bytes_per_s * part / 1e6)
        }
        _ => None,
    }
}

/// The way out of a node for a group with `ranks` on it, `siblings` such groups sharing the
/// adapters. A rank drives those nearest to it.
fn across(link: &Link, nodes: &NodeGroup, ranks: u32, siblings: usize) -> Path {
    let one = link.achieved_bytes_per_s(2) / 1e6;
    let near = (f64::from(nodes.adapters) / f64::from(nodes.devices)).max(1.0);
    let all = one * f64::from(nodes.adapters);
    Path {
        bytes_per_us: (one * near * f64::from(ranks)).min(all / siblings as f64),
        flow_bytes_per_us: one,
        // A collective starts on the device, wherever its peers are.
        launch_us: link.launch_us.max(nodes.intra.launch_us),
        hop_us: link.hop_us,
    }
}

/// Merges a path into the worst so far.
fn worsen(worst: &mut Option<Path>, path: Path) {
    *worst = Some(worst.map_or(path, |w| Path {
        bytes_per_us: w.bytes_per_us.min(path.bytes_per_us),
        flow_bytes_per_us: w.flow_bytes_per_us.min(path.flow_bytes_per_us),
        launch_us: w.launch_us.max(path.launch_us),
        hop_us: w.hop_us.max(path.hop_us),
    }));
}
