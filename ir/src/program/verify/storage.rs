//! Property 9: what is live at once does not overlap in the arena.
//!
//! Liveness is worked out here from the instructions alone, not taken from whoever planned the memory. Where passes
//! of several micro-batches run in turn, what crosses passes is live in all of them.

use super::{Finding, Place, buffer_ids, label, lists};
use crate::program::passes::{self, Times, uses};
use crate::program::{BufferId, Program, streams};
use std::collections::BTreeMap;

/// Walks through the instructions with the set of live storages.
pub(super) fn check(program: &Program, findings: &mut Vec<Finding>) {
    let end = program.instrs.len();
    let storage_of = storages(program);
    let mut last_use = vec![0; program.buffers.len()];
    for (instr, done) in program.instrs.iter().zip(streams::done(program)) {
        for b in instr.reads().iter().chain(instr.writes()) {
            let last = &mut last_use[storage_of[b.index()].index()];
            *last = done.max(*last);
        }
    }
    for (_, ids, _) in lists(program) {
        for b in ids {
            last_use[storage_of[b.index()].index()] = end;
        }
    }
    let crosses = crossing(program, &storage_of);
    let repeated = program.micro_batches.map_or(end, |m| m.instrs);
    for b in buffer_ids(program).filter(|b| crosses[b.index()]) {
        let last = &mut last_use[b.index()];
        *last = (*last).max(repeated.saturating_sub(1));
    }
    let mut dying: Vec<Vec<BufferId>> = vec![Vec::new(); end + 1];
    for b in buffer_ids(program).filter(|b| storage_of[b.index()] == *b) {
        dying[last_use[b.index()]].push(b);
    }

    let mut live = Live { program, by_offset: BTreeMap::new() };
    for (list, ids, _) in lists(program).into_iter().filter(|&(_, _, loads)| loads) {
        for &b in ids {
            live.start(&Place::List(list), b, findings);
        }
    }
    let is_first = |b: BufferId| storage_of[b.index()] == b;
    for (at, instr) in program.instrs.iter().enumerate() {
        for &b in instr.writes().iter().filter(|b| is_first(**b) && crosses[b.index()]) {
            live.start(&Place::instr(at, instr), b, findings);
        }
    }
    for (at, instr) in program.instrs.iter().enumerate() {
        for &b in instr.writes().iter().filter(|b| is_first(**b) && !crosses[b.index()]) {
            live.start(&Place::instr(at, instr), b, findings);
        }
        for &b in &dying[at] {
            live.end(b);
        }
    }
}

/// The first buffer of each buffer's storage. A copy that lies exactly where its input lies is the
/// same storage, and so is what state becomes.
pub(super) fn storages(program: &Program) -> Vec<BufferId> {
    passes::storages(program, |from, to| program.buffer(from).slot == program.buffer(to).slot)
}

/// By buffer, whether it is the first of a storage that is live from the first instruction on because passes of
/// other micro-batches run between those that use it.
fn crossing(program: &Program, storage_of: &[BufferId]) -> Vec<bool> {
    match Times::of(program) {
        Some(times) if !times.is_sequential() => {
            let uses = uses(program, storage_of);
            uses.iter().map(|of| of.as_ref().is_some_and(passes::Use::crosses)).collect()
        }
        _ => vec![false; program.buffers.len()],
    }
}

/// The live storages; they do not overlap.
struct Live<'a> {
    program: &'a Program,
    /// Of each, where it ends and what it is.
    by_offset: BTreeMap<u64, (u64, BufferId)>,
}

impl Live<'_> {
    fn start(&mut self, place: &Place, b: BufferId, findings: &mut Vec<Finding>) {
        let buffer = self.program.buffer(b);
        let slot = buffer.slot;
        if slot.bytes == 0 {
            return;
        }
        let end = slot.offset.saturating_add(buffer.footprint().unwrap_or(u64::MAX));
        // Of the live storages that begin before this one ends, the last reaches furthest.
        match self.by_offset.range(..end).next_back() {
            Some((_, &(other_end, other))) if other_end > slot.offset => {
                findings.push(Finding::Overlap {
                    place: place.clone(),
                    buffer: label(self.program, b),
                    other: label(self.program, other),
                });
            }
            _ => {
                self.by_offset.insert(slot.offset, (end, b));
            }
        }
    }

    fn end(&mut self, b: BufferId) {
        let offset = self.program.buffer(b).slot.offset;
        if self.by_offset.get(&offset).is_some_and(|&(_, live)| live == b) {
            self.by_offset.remove(&offset);
        }
    }
}
