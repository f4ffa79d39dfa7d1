//! Communication between ranks.
//!
//! [`Comm`] is what a transport offers: the usual collectives on contiguous buffers, with a count for
//! each peer, and messages from one rank to another. [`reshard`] turns a step of a program into one of them: it packs what goes to each
//! peer, calls the collective, and unpacks what came; [`transfer`] does so for what goes between stages. The packing is the same for every transport.

pub mod local;
pub mod reshard;
pub mod transfer;

use crate::CommError;
use crate::device::bytes::AlignedBytes;
use planc_ir::DType;
use planc_ir::sharding::ReduceKind;

/// The ranks that take part in a collective, in order, and where this rank stands among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The ranks, as numbered in the whole plan.
    pub ranks: Vec<u32>,
    /// This rank's index in `ranks`.
    pub position: usize,
}

/// What tells a message from all others of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Envelope {
    /// The plan's channel by which it goes.
    pub channel: u32,
    /// The micro-batch, for what goes with each.
    pub micro_batch: Option<u32>,
    /// The rank that sends it, as numbered in the whole plan.
    pub source: u32,
    /// The rank that receives it.
    pub destination: u32,
}

/// One rank's end of a transport. Counts are in bytes, one a peer, in the group's order.
///
/// All ranks of a group call the same collectives in the same order. Results do not depend on
/// timing.
pub trait Comm: Send {
    /// Every rank gets `send` of all ranks, one behind another, in `recv`.
    fn all_gather_v(
        &mut self,
        group: &Group,
        send: &[u8],
        recv: &mut [u8],
        recv_counts: &[usize],
    ) -> Result<(), CommError>;

    /// Rank `i` gets the `i`-th piece of `send` of every rank.
    fn all_to_all_v(
        &mut self,
        group: &Group,
        send: &[u8],
        send_counts: &[usize],
        recv: &mut [u8],
        recv_counts: &[usize],
    ) -> Result<(), CommError>;

    /// `buffer` becomes the combination of all ranks' buffers, in the group's order.
    fn all_reduce(
        &mut self,
        group: &Group,
        dtype: DType,
        kind: ReduceKind,
        buffer: &mut [u8],
    ) -> Result<(), CommError>;

    /// Rank `i` gets the `i`-th piece of the combination of all ranks' `send`.
    fn reduce_scatter_v(
        &mut self,
        group: &Group,
        dtype: DType,
        kind: ReduceKind,
        send: &[u8],
        recv: &mut [u8],
        counts: &[usize],
    ) -> Result<(), CommError>;

    /// Sends a message; does not wait until it is received.
    fn send(&mut self, envelope: Envelope, message: AlignedBytes) -> Result<(), CommError>;

    /// Waits for a message.
    fn receive(&mut self, envelope: Envelope) -> Result<AlignedBytes, CommError>;

    /// Returns when every rank of the group has called it.
    fn barrier(&mut self, group: &Group) -> Result<(), CommError>;

    /// Makes the pending and all later calls of every rank fail: this rank cannot go on.
    fn abort(&self);
}
