//! Of how many micro-batches at once a stage keeps what one pass leaves for another.
//!
//! What a pass fills and a later pass of the same chunk and micro-batch reads is kept in between, for as many
//! micro-batches as are under way at once. Micro-batch `m` has copy `m mod copies` of a buffer
//! ([`Buffer::copies`](super::Buffer::copies)).

use super::{Action, Pass};
use std::collections::BTreeSet;

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
