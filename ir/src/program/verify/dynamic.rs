//! Property 10: a buffer whose extents are only known at run time is made in one piece and handed to
//! the caller.

use super::{Finding, Place, buffer_ids, label, lists};
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
        refuse(program, &place, instr.reads(), findings);
        if !matches!(instr, Instr::Kernel { kernel: Kernel::Reference { .. }, .. }) {
            refuse(program, &place, instr.writes(), findings);
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
