//! What a channel between stages carries, as the ranks of one of them see it.

use super::{Comm, Envelope};
use crate::CommError;
use crate::device::bytes::AlignedBytes;
use crate::region::copy;
use planc_ir::TensorType;
use planc_ir::plan::Stage;
use planc_ir::program::{Buffer, Local};
use planc_ir::sharding::transfer::{End, pieces};

/// What the ranks of a stage send by a channel, or receive.
#[derive(Debug)]
pub struct Route {
    channel: u32,
    /// By rank of the stage, the other rank, among all of the plan, and the part that goes.
    peers: Vec<Vec<(u32, Local)>>,
}

/// One rank's use of a route.
#[derive(Clone, Copy, Debug)]
pub struct Post<'a> {
    /// The route.
    pub route: &'a Route,
    /// The rank within its stage.
    pub position: u32,
    /// The rank among all of the plan.
    pub rank: u32,
    /// The micro-batch, for what goes with each.
    pub micro_batch: Option<u32>,
}

impl Route {
    /// Both ends of a channel from a buffer of one stage to a buffer of the same type of another.
    pub fn both(channel: u32, from: (&Stage, &Buffer), to: (&Stage, &Buffer)) -> (Self, Self) {
        let ((sender, sent), (receiver, received)) = (from, to);
        let ty = &sent.ty;
        let source = End { mesh: &sender.program.mesh, sharding: &sent.sharding };
        let destination = End { mesh: &receiver.program.mesh, sharding: &received.sharding };
        let mut sends = vec![Vec::new(); source.mesh.ranks() as usize];
        let mut receives = vec![Vec::new(); destination.mesh.ranks() as usize];
        for piece in pieces(&ty.shape, source, destination) {
            let extents: Vec<u64> = piece.ranges.iter().map(|r| r.end - r.start).collect();
            let part = Local {
                ty: TensorType::new(ty.dtype, extents),
                start: piece.ranges.iter().map(|r| r.start).collect(),
                global: ty.shape.clone(),
            };
            sends[piece.source as usize]
                .push((receiver.first_rank + piece.destination, part.clone()));
            receives[piece.destination as usize].push((sender.first_rank + piece.source, part));
        }
        (Self { channel, peers: sends }, Self { channel, peers: receives })
    }
}

impl Post<'_> {
    /// Sends what others need of this rank's part.
    pub fn send(&self, from: &Local, src: &[u8], comm: &mut dyn Comm) -> Result<(), CommError> {
        for (peer, piece) in &self.route.peers[self.position as usize] {
            let mut message = message(piece)?;
            copy(from, src, piece, &mut message);
            comm.send(self.envelope(self.rank, *peer), message)?;
        }
        Ok(())
    }

    /// Receives all of this rank's part.
    pub fn receive(
        &self,
        to: &Local,
        dst: &mut [u8],
        comm: &mut dyn Comm,
    ) -> Result<(), CommError> {
        for (peer, piece) in &self.route.peers[self.position as usize] {
            let message = comm.receive(self.envelope(*peer, self.rank))?;
            if message.len() as u64 != piece.ty.bytes() {
                let why = format!("{} bytes came for {}", message.len(), piece.ty);
                return Err(CommError::Mismatch { collective: "receive", why });
            }
            copy(piece, &message, to, dst);
        }
        Ok(())
    }

    const fn envelope(&self, source: u32, destination: u32) -> Envelope {
        let (channel, micro_batch) = (self.route.channel, self.micro_batch);
        Envelope { channel, micro_batch, source, destination }
    }
}

fn message(piece: &Local) -> Result<AlignedBytes, CommError> {
    let bytes = piece.ty.bytes();
    AlignedBytes::zeroed(bytes).ok_or(CommError::Memory { bytes })
}
