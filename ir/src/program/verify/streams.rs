//! Property 13: what runs beside compute is waited for before anything else uses it.

use super::{Finding, Place, label};
use crate::program::{Instr, Program, streams};

pub(super) fn check(program: &Program, findings: &mut Vec<Finding>) {
    let done = streams::done(program);
    let end = program.instrs.len();
    let repeated = program.micro_batches.map_or(end, |m| m.instrs);
    let passes = program.passes.iter().map(|p| p.end).filter(|&pass| pass < repeated);
    let mut parts: Vec<usize> = passes.chain([repeated, end]).collect();
    parts.sort_unstable();
    let mut issued_by: Vec<Option<usize>> = vec![None; program.buffers.len()];
    for (at, instr) in program.instrs.iter().enumerate() {
        let place = || Place::instr(at, instr);
        match instr {
            Instr::Issue { steps, outputs, .. } => {
                for b in outputs {
                    issued_by[b.index()] = Some(at);
                }
                let alike = steps.first().is_some_and(|first| steps.iter().all(|s| first.joins(s)));
                if !alike {
                    findings.push(Finding::Issue { place: place() });
                }
                let part = parts.partition_point(|&part| part <= at);
                if parts.get(part).is_some_and(|&part_end| done[at] >= part_end) {
                    findings.push(Finding::InFlight { place: place() });
                }
            }
            Instr::Wait { buffer } if issued_by[buffer.index()].is_none() => {
                let buffer = label(program, *buffer);
                findings.push(Finding::NothingIssued { place: place(), buffer });
            }
            Instr::Wait { .. } => {}
            _ => {
                let in_flight = |issue: usize| done[issue] > at;
                for b in
                    instr.reads().iter().filter(|b| issued_by[b.index()].is_some_and(in_flight))
                {
                    let buffer = label(program, *b);
                    findings.push(Finding::NotAwaited { place: place(), buffer });
                }
            }
        }
    }
}
