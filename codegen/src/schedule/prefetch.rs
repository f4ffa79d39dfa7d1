//! Weights are gathered ahead.
//!
//! A gather of what follows from weights alone is issued so early that compute of its length runs before its
//! result is needed, and waited for there. Gathers stay in their order, one after another. No more are
//! ahead than hold the bytes of the two largest: the block that is computed and the next one.

use super::uses::Uses;
use planc_ir::program::{Instr, Program};
use std::ops::Range;

/// A gather of weights.
struct Gather {
    /// Where it is, and where its result is waited for.
    needed: usize,
    /// The instruction before which it is issued.
    issued: usize,
    time_us: f64,
    bytes: u64,
}

impl Gather {
    const fn is_ahead(&self) -> bool {
        self.issued < self.needed
    }
}

/// The instructions of a part, with its gathers of weights issued ahead.
pub fn hoist(
    program: &Program,
    uses: &Uses,
    part: Range<usize>,
    time_us: &dyn Fn(&Program, &Instr) -> f64,
) -> Vec<Instr> {
    // Of each instruction, how much compute is before it.
    let mut compute_us = Vec::with_capacity(part.len());
    let mut gathers = Vec::new();
    let mut sum_us = 0.0;
    for at in part.clone() {
        compute_us.push(sum_us);
        let instr = &program.instrs[at];
        match instr {
            Instr::Reshard { step, input, output } if step.is_collective() => {
                let is_gather = uses.is_derived[input.index()] && uses.replaces(*output).is_none();
                if is_gather {
                    gathers.push(Gather {
                        needed: at,
                        issued: at,
                        time_us: time_us(program, instr),
                        bytes: program.buffer(*output).max_bytes(&program.mesh),
                    });
                }
            }
            Instr::Kernel { .. } | Instr::Reshard { .. } => sum_us += time_us(program, instr),
            _ => {}
        }
    }
    place(program, uses, &part, &compute_us, &mut gathers);
    emit(program, part, &gathers)
}

/// Decides where gathers are issued.
fn place(
    program: &Program,
    uses: &Uses,
    part: &Range<usize>,
    compute_us: &[f64],
    gathers: &mut [Gather],
) {
    // From the last on: each ends before its result is needed and before the next one begins.
    let mut end_us = f64::INFINITY;
    for gather in gathers.iter_mut().rev() {
        end_us = compute_us[gather.needed - part.start].min(end_us) - gather.time_us;
        let later = compute_us.partition_point(|&us| us <= end_us);
        gather.issued = (part.start + later.saturating_sub(1)).min(gather.needed);
    }
    let mut largest: Vec<u64> = gathers.iter().map(|g| g.bytes).collect();
    largest.sort_unstable_by_key(|&bytes| std::cmp::Reverse(bytes));
    let limit = largest.iter().take(2).fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    // From the first on: after the one before, after what makes its operand, and within the limit.
    let mut earliest = part.start;
    let (mut first, mut ahead_bytes) = (0, 0u64);
    for at in 0..gathers.len() {
        ahead_bytes = ahead_bytes.saturating_add(gathers[at].bytes);
        while ahead_bytes > limit && first < at {
            ahead_bytes -= gathers[first].bytes;
            earliest = earliest.max(gathers[first].needed + 1);
            first += 1;
        }
        let needed = gathers[at].needed;
        let inputs = program.instrs[needed].reads();
        for maker in inputs.iter().filter_map(|b| uses.writer[b.index()]) {
            let made = match gathers[..at].binary_search_by_key(&maker, |g| g.needed) {
                Ok(other) if gathers[other].is_ahead() => gathers[other].issued,
                _ => maker + 1,
            };
            earliest = earliest.max(made);
        }
        let issued = gathers[at].issued.max(earliest).min(needed);
        // Where nothing is computed until it is needed, it need not be ahead.
        let is_idle = compute_us[issued - part.start] >= compute_us[needed - part.start];
        gathers[at].issued = if is_idle { needed } else { issued };
        earliest = issued;
    }
}

fn emit(program: &Program, part: Range<usize>, gathers: &[Gather]) -> Vec<Instr> {
    let mut out = Vec::with_capacity(part.len() + gathers.len());
    let mut to_issue = gathers.iter().filter(|g| g.is_ahead()).peekable();
    let mut to_await = gathers.iter().filter(|g| g.is_ahead()).peekable();
    for at in part {
        while let Some(gather) = to_issue.next_if(|g| g.issued == at) {
            if let Instr::Reshard { step, input, output } = &program.instrs[gather.needed] {
                out.push(Instr::Issue {
                    steps: vec![step.clone()],
                    inputs: vec![*input],
                    outputs: vec![*output],
                });
            }
        }
        match (&program.instrs[at], to_await.next_if(|g| g.needed == at)) {
            (Instr::Reshard { output, .. }, Some(_)) => out.push(Instr::Wait { buffer: *output }),
            (instr, _) => out.push(instr.clone()),
        }
    }
    out
}
