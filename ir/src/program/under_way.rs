//! Of how many micro-batches at once a stage keeps what one pass leaves for another.
//!
//! What a pass fills and a later pass of the same chunk and micro-batch reads is kept in between, for as many
//! micro-batches as are under way at once. Micro-batch `m` has copy `m mod copies` of a buffer
//! ([`Buffer::copies`](super::Buffer::copies)).

use super::{Action, Pass};
use std::collections::{BTreeMap, BTreeSet};

/// Copies that a buffer needs which pass `from` of a chunk fills and pass `to` is the last to read: the widest
/// window of micro-batches, from the first to the last that is under way. Where each pass takes micro-batches in
/// their order, no fewer do.
pub fn copies(order: &[Action], chunk: u32, from: Pass, to: Pass) -> u32 {
    let mut under_way = BTreeSet::new();
    let mut widest = 1;
    for action in order.iter().filter(|a| a.chunk == chunk) {
        if action.pass == from {
            under_way.insert(action.micro_batch);
            if let (Some(first), Some(last)) = (under_way.first(), under_way.last()) {
                widest = widest.max((last - first).saturating_add(1));
            }
        }
        if action.pass == to {
            under_way.remove(&action.micro_batch);
        }
    }
    widest
}

/// Two micro-batches, of which the second fills its copy while the first still needs the same one, if so many
/// copies are too few.
pub fn clash(
    order: &[Action],
    chunk: u32,
    from: Pass,
    to: Pass,
    copies: u32,
) -> Option<(u32, u32)> {
    let copies = copies.max(1);
    let mut holders = BTreeMap::new();
    for action in order.iter().filter(|a| a.chunk == chunk) {
        let copy = action.micro_batch % copies;
        if action.pass == from
            && let Some(holder) = holders.insert(copy, action.micro_batch)
            && holder != action.micro_batch
        {
            return Some((holder, action.micro_batch));
        }
        if action.pass == to && holders.get(&copy) == Some(&action.micro_batch) {
            holders.remove(&copy);
        }
    }
    None
}
