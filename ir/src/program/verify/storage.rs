//! Property 9: what is live at once does not overlap in the arena.
//!
//! Liveness is worked out here from the instructions alone, not taken from whoever planned the memory.

use super::{Finding, Place, buffer_ids, label, lists};
use crate::program::{BufferId, Instr, Kernel, Program, streams};
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
    for (at, instr) in program.instrs.iter().enumerate() {
        for &b in instr.writes().iter().filter(|b| storage_of[b.index()] == **b) {
            live.start(&Place::instr(at, instr), b, findings);
        }
        for &b in &dying[at] {
            live.end(b);
        }
    }
}

/// The first buffer of each buffer's storage. A copy that lies exactly where its input lies is the
/// same storage, and so is what state becomes.
fn storages(program: &Program) -> Vec<BufferId> {
    let mut storage_of: Vec<BufferId> = buffer_ids(program).collect();
    for instr in &program.instrs {
        if let Instr::Kernel { kernel: Kernel::Copy, inputs, outputs, .. } = instr
            && let ([input], [output]) = (&inputs[..], &outputs[..])
            && program.buffer(*input).slot == program.buffer(*output).slot
        {
            storage_of[output.index()] = storage_of[input.index()];
        }
    }
    for c in &program.carried {
        storage_of[c.next.index()] = storage_of[c.state.index()];
    }
    storage_of
}

/// The live storages; they do not overlap.
struct Live<'a> {
    program: &'a Program,
    /// Of each, where it ends and what it is.
    by_offset: BTreeMap<u64, (u64, BufferId)>,
}

impl Live<'_> {
    fn start(&mut self, place: &Place, b: BufferId, findings: &mut Vec<Finding>) {
        let slot = self.program.buffer(b).slot;
        if slot.bytes == 0 {
            return;
        }
        let end = slot.offset + slot.bytes;
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
