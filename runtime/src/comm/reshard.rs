//! Resharding steps on local buffers.
//!
//! A rank's part of a tensor is a range in each dimension, so what two ranks exchange is the overlap
//! of two such parts; uneven parts are no special case. Everything that a rank must know of its peers
//! follows from the program and their coordinates.

use super::{Comm, Group};
use crate::device::bytes::AlignedBytes;
use crate::device::cpu::fill_neutral;
use crate::region::{copy, overlap};
use crate::{CommError, KernelError};
use planc_ir::program::{Buffer, Local};
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{AxisId, Mesh};

/// A step from one buffer to another, as one rank sees it.
#[derive(Debug)]
pub struct Reshard<'a> {
    /// The mesh.
    pub mesh: &'a Mesh,
    /// This rank, in the mesh.
    pub rank: u32,
    /// What the mesh's first rank is among all of the plan.
    pub first_rank: u32,
    /// What is read.
    pub from: &'a Buffer,
    /// What is written.
    pub to: &'a Buffer,
}

impl Reshard<'_> {
    /// Runs the step on this rank's parts.
    pub fn run(
        &self,
        step: &Step,
        src: &[u8],
        dst: &mut [u8],
        comm: &mut dyn Comm,
    ) -> Result<(), KernelError> {
        let coord = self.mesh.coord(self.rank);
        let (from, to) = (self.from.local(self.mesh, &coord), self.to.local(self.mesh, &coord));
        let dtype = from.ty.dtype;
        let group = self.group(step.axes());
        match step {
            Step::AllReduce { kind, .. } => {
                copy(&from, src, &to, dst);
                comm.all_reduce(&group, dtype, *kind, dst)?;
            }
            Step::ReduceScatter { kind, .. } => {
                let pieces: Vec<Local> =
                    self.parts(self.to, &group).iter().map(|p| overlap(&from, p)).collect();
                let (send, counts) = pack(&from, src, &pieces)?;
                let mut recv = message(counts[group.position])?;
                comm.reduce_scatter_v(&group, dtype, *kind, &send, &mut recv, &counts)?;
                unpack(&recv, &pieces[group.position..=group.position], &to, dst);
            }
            Step::AllGather { .. } => {
                let parts = self.parts(self.from, &group);
                let counts: Vec<usize> = parts.iter().map(bytes).collect();
                let mut recv = message(counts.iter().sum())?;
                comm.all_gather_v(&group, src, &mut recv, &counts)?;
                unpack(&recv, &parts, &to, dst);
            }
            Step::AllToAll { .. } => {
                let sent: Vec<Local> =
                    self.parts(self.to, &group).iter().map(|p| overlap(&from, p)).collect();
                let received: Vec<Local> =
                    self.parts(self.from, &group).iter().map(|p| overlap(p, &to)).collect();
                let (send, send_counts) = pack(&from, src, &sent)?;
                let counts: Vec<usize> = received.iter().map(bytes).collect();
                let mut recv = message(counts.iter().sum())?;
                comm.all_to_all_v(&group, &send, &send_counts, &mut recv, &counts)?;
                unpack(&recv, &received, &to, dst);
            }
            Step::Slice { .. } => copy(&from, src, &to, dst),
            Step::ToPartial { axes, kind } => {
                if axes.iter().all(|a| coord[a.index()] == 0) {
                    copy(&from, src, &to, dst);
                } else {
                    fill_neutral(dtype, *kind, dst);
                }
            }
        }
        Ok(())
    }

    fn group(&self, axes: &[AxisId]) -> Group {
        let ranks = self.mesh.group(self.rank, axes);
        let position = ranks.iter().position(|&r| r == self.rank).unwrap_or(0);
        Group { ranks: ranks.into_iter().map(|r| self.first_rank + r).collect(), position }
    }

    /// The parts of a buffer that the ranks of a group hold.
    fn parts(&self, buffer: &Buffer, group: &Group) -> Vec<Local> {
        let coords = group.ranks.iter().map(|&r| self.mesh.coord(r - self.first_rank));
        coords.map(|coord| buffer.local(self.mesh, &coord)).collect()
    }
}

fn bytes(part: &Local) -> usize {
    part.ty.bytes() as usize
}

fn message(len: usize) -> Result<AlignedBytes, CommError> {
    AlignedBytes::zeroed(len as u64).ok_or(CommError::Memory { bytes: len as u64 })
}

/// Copies pieces of a part into one buffer, one behind another, and counts the bytes of each.
fn pack(
    from: &Local,
    src: &[u8],
    pieces: &[Local],
) -> Result<(AlignedBytes, Vec<usize>), CommError> {
    let counts: Vec<usize> = pieces.iter().map(bytes).collect();
    let mut packed = message(counts.iter().sum())?;
    let mut begin = 0;
    for (piece, count) in pieces.iter().zip(&counts) {
        copy(from, src, piece, &mut packed[begin..begin + count]);
        begin += count;
    }
    Ok((packed, counts))
}

/// Copies pieces that lie one behind another to where they belong in a part.
fn unpack(packed: &[u8], pieces: &[Local], to: &Local, dst: &mut [u8]) {
    let mut begin = 0;
    for piece in pieces {
        let count = bytes(piece);
        copy(piece, &packed[begin..begin + count], to, dst);
        begin += count;
    }
}
