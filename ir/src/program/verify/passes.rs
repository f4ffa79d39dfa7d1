//! Properties 14 to 16: passes, copies, and what goes between stages.

use super::{Finding, Place, label, storage};
use crate::program::passes::{Filler, Times, uses};
use crate::program::{Instr, Pass, Program};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(program: &Program, findings: &mut Vec<Finding>) {
    transfers(program, findings);
    if program.passes.is_empty() && program.order.is_empty() {
        let several = program.buffers.iter().zip(super::buffer_ids(program));
        for (b, id) in several.filter(|(b, _)| b.copies != 1) {
            let buffer = label(program, id);
            findings.push(Finding::Copies { buffer, expected: 1, found: b.copies });
        }
        return;
    }
    match division(program).map_or_else(|| sequence(program), Err) {
        Ok(times) => copies(program, &times, findings),
        Err(why) => findings.push(Finding::Passes { why }),
    }
}

/// Property 16.
fn transfers(program: &Program, findings: &mut Vec<Finding>) {
    for (at, instr) in program.instrs.iter().enumerate() {
        if let Instr::Send { buffer, .. } | Instr::Receive { buffer, .. } = instr
            && !program.buffer(*buffer).sharding.partial.is_empty()
        {
            let (place, buffer) = (Place::instr(at, instr), label(program, *buffer));
            findings.push(Finding::PartialBoundary { place, buffer });
        }
    }
}

/// What is wrong with how the repeated instructions are divided.
fn division(program: &Program) -> Option<&'static str> {
    let Some(repeated) = program.micro_batches else {
        return Some("nothing says how often they run");
    };
    let ends: Vec<usize> = program.passes.iter().map(|p| p.end).collect();
    let names: BTreeSet<(Pass, u32)> = program.passes.iter().map(|p| (p.pass, p.chunk)).collect();
    if names.len() != program.passes.len() {
        Some("two are the same pass of one chunk")
    } else if !ends.is_sorted() || ends.last() != Some(&repeated.instrs) {
        Some("they do not make up the instructions of a micro-batch")
    } else {
        None
    }
}

/// When each pass runs, or what is wrong with the order.
fn sequence(program: &Program) -> Result<Times, &'static str> {
    let times = Times::of(program).ok_or(
        "the order does not run every pass of every micro-batch once, and each pass in the order of the \
         micro-batches",
    )?;
    let count = program.micro_batches.map_or(0, |m| m.count as usize);
    let mut chunks: BTreeMap<u32, Vec<(Pass, usize)>> = BTreeMap::new();
    for (at, p) in program.passes.iter().enumerate() {
        chunks.entry(p.chunk).or_default().push((p.pass, at));
    }
    for passes in chunks.values_mut() {
        passes.sort_unstable();
        for pair in passes.windows(2) {
            let ((_, before), (_, after)) = (pair[0], pair[1]);
            if (0..count).any(|m| times.at(before, m) > times.at(after, m)) {
                return Err("forward, backward and weights do not follow one another");
            }
        }
    }
    Ok(times)
}

/// Property 15.
fn copies(program: &Program, times: &Times, findings: &mut Vec<Finding>) {
    let storage_of = storage::storages(program);
    let mut known = BTreeMap::new();
    let uses = uses(program, &storage_of);
    for (id, of) in super::buffer_ids(program).zip(&uses) {
        let (b, buffer) = (program.buffer(id), || label(program, id));
        let found = b.copies;
        let first = storage_of[id.index()];
        if first != id {
            let expected = program.buffer(first).copies;
            if found != expected {
                findings.push(Finding::Copies { buffer: buffer(), expected, found });
            }
            continue;
        }
        let Some(of) = of else { continue };
        let Some(expected) = *known.entry(of).or_insert_with(|| times.copies(of)) else {
            findings.push(Finding::OutOfOrder { buffer: buffer() });
            continue;
        };
        let several = matches!(of.filler, Filler::Caller | Filler::Pass(_)) && !b.dynamic;
        let most = if several { program.micro_batches.map_or(1, |m| m.count) } else { 1 };
        if found < expected || found > most {
            findings.push(Finding::Copies { buffer: buffer(), expected, found });
        }
    }
}
