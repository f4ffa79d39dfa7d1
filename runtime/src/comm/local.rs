//! Collectives between threads of one process.
//!
//! The ranks of a group meet: each leaves a copy of what it sends, the last to come combines them (in
//! the group's order, whoever comes last), and each takes what is its own.

use super::{Comm, Envelope, Group};
use crate::CommError;
use crate::device::bytes::AlignedBytes;
use crate::device::cpu::combine;
use planc_ir::DType;
use planc_ir::sharding::ReduceKind;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What connects the ranks of one process.
#[derive(Debug, Default)]
pub struct World {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    aborted: bool,
    meetings: BTreeMap<Key, Meeting>,
    /// What was sent and not yet received.
    messages: BTreeMap<Envelope, AlignedBytes>,
}

/// A group's ranks, and how many collectives it has held before.
type Key = (Vec<u32>, u64);

/// A collective in progress.
#[derive(Debug)]
struct Meeting {
    call: Call,
    sent: Vec<Option<Message>>,
    result: Option<Arc<Vec<Message>>>,
    /// Ranks that have taken the result.
    left: usize,
}

/// What all ranks of a group must agree on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Call {
    name: &'static str,
    reduce: Option<(DType, ReduceKind)>,
}

/// What one rank sends, and its pieces' lengths where it sends a piece to each peer.
#[derive(Debug)]
struct Message {
    bytes: AlignedBytes,
    counts: Vec<usize>,
}

/// One rank's end.
#[derive(Debug)]
pub struct LocalComm {
    world: Arc<World>,
    /// For each group, the collectives held so far.
    held: BTreeMap<Vec<u32>, u64>,
}

impl LocalComm {
    /// A rank's end of a world.
    pub fn new(world: &Arc<World>) -> Self {
        Self { world: Arc::clone(world), held: BTreeMap::new() }
    }

    /// Leaves a message, waits for the others', and returns all of them, or their combination for a
    /// call that reduces.
    fn meet(
        &mut self,
        group: &Group,
        call: Call,
        send: &[u8],
        counts: &[usize],
    ) -> Result<Arc<Vec<Message>>, CommError> {
        let bytes =
            AlignedBytes::copy_of(send).ok_or(CommError::Memory { bytes: send.len() as u64 })?;
        let message = Message { bytes, counts: counts.to_vec() };
        let held = self.held.entry(group.ranks.clone()).or_default();
        let key = (group.ranks.clone(), *held);
        *held += 1;

        let mut state = self.world.lock();
        let meeting = state.meetings.entry(key.clone()).or_insert_with(|| Meeting {
            call,
            sent: group.ranks.iter().map(|_| None).collect(),
            result: None,
            left: 0,
        });
        if meeting.call != call {
            let why = format!("a peer calls {} instead", meeting.call.name);
            return Err(mismatch(call, why));
        }
        meeting.sent[group.position] = Some(message);
        if meeting.sent.iter().all(Option::is_some) {
            let sent: Vec<Message> =
                std::mem::take(&mut meeting.sent).into_iter().flatten().collect();
            drop(state); // other groups go on meanwhile
            let result = Arc::new(finish(call, sent)?);
            state = self.world.lock();
            if let Some(meeting) = state.meetings.get_mut(&key) {
                meeting.result = Some(result);
            }
            self.world.changed.notify_all();
        }
        loop {
            if state.aborted {
                return Err(CommError::Aborted);
            }
            if let Some(meeting) = state.meetings.get_mut(&key)
                && let Some(result) = meeting.result.clone()
            {
                meeting.left += 1;
                if meeting.left == group.ranks.len() {
                    state.meetings.remove(&key);
                }
                return Ok(result);
            }
            state = self.world.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A rank that panicked has left the state between two whole updates.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn mismatch(call: Call, why: String) -> CommError {
    CommError::Mismatch { collective: call.name, why }
}

/// Combines messages if the call reduces.
fn finish(call: Call, sent: Vec<Message>) -> Result<Vec<Message>, CommError> {
    let (Some((dtype, kind)), Some(first)) = (call.reduce, sent.first()) else {
        return Ok(sent);
    };
    let len = first.bytes.len();
    if sent.iter().any(|m| m.bytes.len() != len) {
        return Err(mismatch(call, "ranks send buffers of different lengths".into()));
    }
    let mut bytes =
        AlignedBytes::zeroed(len as u64).ok_or(CommError::Memory { bytes: len as u64 })?;
    let contributions: Vec<&[u8]> = sent.iter().map(|m| &*m.bytes).collect();
    combine(dtype, kind, &contributions, &mut bytes);
    Ok(vec![Message { bytes, counts: Vec::new() }])
}

/// Piece `i` of a buffer that is divided by `counts`.
fn piece<'a>(bytes: &'a [u8], counts: &[usize], i: usize) -> Option<&'a [u8]> {
    let begin: usize = counts[..i].iter().sum();
    bytes.get(begin..begin + counts.get(i)?)
}

/// Writes pieces one behind another.
fn join<'a>(
    call: Call,
    pieces: impl Iterator<Item = Option<&'a [u8]>>,
    recv: &mut [u8],
    counts: &[usize],
) -> Result<(), CommError> {
    let mut begin = 0;
    for (i, (piece, &count)) in pieces.zip(counts).enumerate() {
        let to = recv.get_mut(begin..begin + count);
        match (piece, to) {
            (Some(piece), Some(to)) if piece.len() == count => to.copy_from_slice(piece),
            _ => return Err(mismatch(call, format!("peer {i} does not send {count} bytes"))),
        }
        begin += count;
    }
    Ok(())
}

impl Comm for LocalComm {
    fn all_gather_v(
        &mut self,
        group: &Group,
        send: &[u8],
        recv: &mut [u8],
        recv_counts: &[usize],
    ) -> Result<(), CommError> {
        let call = Call { name: "all-gather", reduce: None };
        let all = self.meet(group, call, send, &[])?;
        join(call, all.iter().map(|m| Some(&*m.bytes)), recv, recv_counts)
    }

    fn all_to_all_v(
        &mut self,
        group: &Group,
        send: &[u8],
        send_counts: &[usize],
        recv: &mut [u8],
        recv_counts: &[usize],
    ) -> Result<(), CommError> {
        let call = Call { name: "all-to-all", reduce: None };
        let all = self.meet(group, call, send, send_counts)?;
        let mine = all.iter().map(|m| piece(&m.bytes, &m.counts, group.position));
        join(call, mine, recv, recv_counts)
    }

    fn all_reduce(
        &mut self,
        group: &Group,
        dtype: DType,
        kind: ReduceKind,
        buffer: &mut [u8],
    ) -> Result<(), CommError> {
        let call = Call { name: "all-reduce", reduce: Some((dtype, kind)) };
        let all = self.meet(group, call, buffer, &[])?;
        let count = [buffer.len()];
        join(call, all.iter().map(|m| Some(&*m.bytes)), buffer, &count)
    }

    fn reduce_scatter_v(
        &mut self,
        group: &Group,
        dtype: DType,
        kind: ReduceKind,
        send: &[u8],
        recv: &mut [u8],
        counts: &[usize],
    ) -> Result<(), CommError> {
        let call = Call { name: "reduce-scatter", reduce: Some((dtype, kind)) };
        let all = self.meet(group, call, send, &[])?;
        let mine = all.iter().map(|m| piece(&m.bytes, counts, group.position));
        join(call, mine, recv, &counts[group.position..=group.position])
    }

    fn send(&mut self, envelope: Envelope, message: AlignedBytes) -> Result<(), CommError> {
        let before = self.world.lock().messages.insert(envelope, message);
        self.world.changed.notify_all();
        if before.is_some() {
            let why = format!("{envelope:?} is on its way already");
            return Err(CommError::Mismatch { collective: "send", why });
        }
        Ok(())
    }

    fn receive(&mut self, envelope: Envelope) -> Result<AlignedBytes, CommError> {
        let mut state = self.world.lock();
        loop {
            if state.aborted {
                return Err(CommError::Aborted);
            }
            if let Some(message) = state.messages.remove(&envelope) {
                return Ok(message);
            }
            state = self.world.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn barrier(&mut self, group: &Group) -> Result<(), CommError> {
        self.meet(group, Call { name: "barrier", reduce: None }, &[], &[]).map(|_| ())
    }

    fn abort(&self) {
        self.world.lock().aborted = true;
        self.world.changed.notify_all();
    }
}
