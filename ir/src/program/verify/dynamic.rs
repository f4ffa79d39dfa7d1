//! Property 10: a buffer whose extents are only known at run time is made and read in one piece.

use super::{Finding, Place, buffer_ids, label, lists};
use crate::ops::Op;
use crate::program::{BufferId, Instr, Kernel, Program};

/// Checks the dynamic buffers themselves, then everything that names one.
pub(super) fn check(program: &Program, findings: &mut Vec<Finding>) {
    for b in buffer_ids(program).filter(|&b| program.buffer(b).dynamic) {
        let buffer = program.buffer(b);
        if buffer.ty.rank() > 0 || !buffer.sharding.partial.is_empty() {
            let ty = buffer.ty.clone();
            findings.push(Finding::DynamicType { buffer: label(program, b), ty });
        }
    }
    for (list, ids, _) in lists(program).into_iter().filter(|&(_, _, loads)| loads) {
        refuse(program, &Place::List(list), ids, findings);
    }
    for (at, instr) in program.instrs.iter().enumerate() {
        let place = Place::instr(at, instr);
        let op = match instr {
            Instr::Kernel { kernel: Kernel::Reference { op }, .. } => Some(&**op),
            _ => None,
        };
        // Bodies are not verified yet, so they are not looked into.
        if !op.is_some_and(Op::leaves_extents_open) {
            refuse(program, &place, instr.reads(), findings);
            refuse(program, &place, instr.writes(), findings);
        }
        if matches!(op, Some(Op::Deferred(_))) {
            let is_split = |b: &&BufferId| !program.buffer(**b).sharding.is_replicated();
            for &b in instr.reads().iter().filter(is_split) {
                let (place, buffer) = (place.clone(), label(program, b));
                findings.push(Finding::SplitOperand { place, buffer });
            }
        }
    }
}

/// Adds a finding for each of these buffers that is dynamic.
fn refuse(program: &Program, place: &Place, ids: &[BufferId], findings: &mut Vec<Finding>) {
    for &b in ids.iter().filter(|&&b| program.buffer(b).dynamic) {
        let buffer = label(program, b);
        findings.push(Finding::DynamicUse { place: place.clone(), buffer });
    }
}
