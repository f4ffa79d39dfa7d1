//! Time of a collective over a group, by α–β with the choices that NCCL has.
//!
//! ```text
//! time = min over algorithms a and protocols p:
//!          launch + steps(a) · hop · latency(p) + wire(a) / share(p)
//! ```
//!
//! * **Algorithms**: a ring over all ranks; across nodes, a tree between nodes with rings inside;
//!   inside a switch that can add, one pass through the switch.
//! * **Protocols** trade latency for bandwidth: NCCL's LL, LL128 and Simple. Their ratios are the same
//!   for every link.
//! * **wire**: bytes over the slowest stretch. Inside a node that is what a rank sends; between nodes
//!   it is what a node's adapters send, shared with the sibling groups of that node.
//!
//! Each candidate is a line in bytes with slope and offset of at least 0, so the minimum never falls.

use crate::placement::GroupFacts;
use serde::{Deserialize, Serialize};

/// What is done. Bytes are counted as nccl-tests counts them; see each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank ends with the sum. Bytes: of one rank's operand.
    AllReduce,
    /// Every rank ends with all parts. Bytes: of the result.
    AllGather,
    /// Every rank ends with its part of the sum. Bytes: of one rank's operand.
    ReduceScatter,
    /// Every rank sends a part to every other. Bytes: of one rank's operand.
    AllToAll,
    /// One rank's value to all. Bytes: of the value.
    Broadcast,
    /// One rank's value to one other. Bytes: of the value.
    SendRecv,
}

/// A way to carry data: its latency and its share of the bandwidth, against the link's figures.
struct Protocol {
    latency: f64,
    share: f64,
}

const LL: Protocol = Protocol { latency: 0.05, share: 0.10 };
const LL128: Protocol = Protocol { latency: 0.48, share: 0.77 };
const SIMPLE: Protocol = Protocol { latency: 1.0, share: 1.0 };

/// What a ring sends beyond the ideal, as nothing hides its last chunk: in chunks of a rank.
const TAIL_CHUNKS: f64 = 0.3;

/// The part of a network's achieved bandwidth that trees between nodes attain.
const TREE_EFFICIENCY: f64 = 0.7;

/// Hops that a step of a gather, scatter or broadcast takes, against one of an all-reduce.
const GATHER_HOPS: f64 = 1.8;

/// The same for an exchange of an all-to-all.
const EXCHANGE_HOPS: f64 = 1.3;

/// Start of a send and its receive, against that of a collective.
const SEND_LAUNCH: f64 = 0.18;

/// One algorithm's figures.
#[allow(clippy::struct_field_names)] // units belong in names
struct Line {
    launch_us: f64,
    latency_us: f64,
    wire_us: f64,
}

impl Collective {
    /// Every collective.
    pub const ALL: [Self; 6] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Broadcast,
        Self::SendRecv,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Broadcast => "broadcast",
            Self::SendRecv => "send_recv",
        }
    }

    /// Time over a group; a group of one rank is free.
    pub fn us(self, bytes: f64, group: &GroupFacts) -> f64 {
        if group.size <= 1 {
            return 0.0;
        }
        let ring = self.ring(bytes, group).us(self);
        if self != Self::AllReduce {
            return ring;
        }
        let other = if group.nodes > 1 { tree(bytes, group) } else { in_switch(bytes, group) };
        other.map_or(ring, |line| line.us(self).min(ring))
    }

    /// Hops of a ring of `n`, and what a rank sends in them as a multiple of the bytes.
    fn ring_shape(self, n: f64) -> (f64, f64) {
        match self {
            Self::AllReduce => (2.0 * (n - 1.0), (2.0 * (n - 1.0) + TAIL_CHUNKS) / n),
            Self::AllGather | Self::ReduceScatter => {
                (GATHER_HOPS * (n - 1.0), (n - 1.0 + TAIL_CHUNKS) / n)
            }
            Self::AllToAll => (EXCHANGE_HOPS * (n - 1.0), (n - 1.0) / n),
            Self::Broadcast => (GATHER_HOPS * (n - 1.0), 1.0),
            Self::SendRecv => (1.0, 1.0),
        }
    }

    fn ring(self, bytes: f64, g: &GroupFacts) -> Line {
        let size = f64::from(g.size);
        let (steps, sends) = self.ring_shape(size);
        let mut line = Line { launch_us: 0.0, latency_us: 0.0, wire_us: 0.0 };
        // Of the steps, those that leave a node.
        let crossings = if g.nodes > 1 { steps * f64::from(g.nodes) / size } else { 0.0 };
        if let Some(path) = &g.within {
            line.launch_us = path.launch_us;
            line.latency_us = (steps - crossings) * path.hop_us;
            line.wire_us = bytes * sends / path.bytes_per_us;
        }
        if let Some(path) = &g.across {
            let per_node = f64::from(g.ranks_per_node);
            let wire_us = match self {
                // Every rank of a node sends to every rank of the others.
                Self::AllToAll => bytes * per_node * (size - per_node) / size / path.bytes_per_us,
                Self::SendRecv => bytes / path.bytes_per_us.min(path.flow_bytes_per_us),
                // A ring leaves each node once.
                _ => bytes * sends / path.bytes_per_us,
            };
            line.launch_us = line.launch_us.max(path.launch_us);
            line.latency_us += crossings * path.hop_us;
            line.wire_us = line.wire_us.max(wire_us);
        }
        if self == Self::SendRecv {
            line.launch_us *= SEND_LAUNCH;
        }
        line
    }
}

/// All-reduce between nodes by a pair of trees, inside them by rings or by the switch.
fn tree(bytes: f64, g: &GroupFacts) -> Option<Line> {
    let across = g.across.as_ref()?;
    let (nodes, per_node) = (f64::from(g.nodes), f64::from(g.ranks_per_node));
    let wire_us = bytes * 2.0 * (nodes - 1.0) / nodes / (across.bytes_per_us * TREE_EFFICIENCY);
    let mut line = Line {
        launch_us: across.launch_us,
        latency_us: 2.0 * nodes.log2() * across.hop_us,
        wire_us,
    };
    if let Some(path) = &g.within {
        let (_, sends) = Collective::AllReduce.ring_shape(per_node);
        let ring_us = bytes * sends / path.bytes_per_us;
        let within_us = in_switch_us(bytes, per_node, g).map_or(ring_us, |us| us.min(ring_us));
        line.launch_us = line.launch_us.max(path.launch_us);
        line.latency_us += 2.0 * (per_node - 1.0) * path.hop_us;
        line.wire_us = line.wire_us.max(within_us);
    }
    Some(line)
}

/// All-reduce in a node whose switch adds.
fn in_switch(bytes: f64, g: &GroupFacts) -> Option<Line> {
    let path = g.within.as_ref()?;
    let wire_us = in_switch_us(bytes, f64::from(g.size), g)?;
    Some(Line { launch_us: path.launch_us, latency_us: 2.0 * path.hop_us, wire_us })
}

/// Each rank sends its operand to the switch and receives the sum, once, and one share of it more.
fn in_switch_us(bytes: f64, ranks: f64, g: &GroupFacts) -> Option<f64> {
    g.in_switch_bytes_per_us.map(|rate| bytes * (1.0 + 1.0 / ranks) / rate)
}

impl Line {
    /// The fastest protocol. Sends and receives of large parts always take the Simple one.
    fn us(&self, collective: Collective) -> f64 {
        let with =
            |p: &Protocol| self.launch_us + self.latency_us * p.latency + self.wire_us / p.share;
        match collective {
            Collective::AllToAll | Collective::SendRecv => with(&SIMPLE),
            _ => with(&LL).min(with(&LL128)).min(with(&SIMPLE)),
        }
    }
}
