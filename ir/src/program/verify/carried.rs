//! Properties 11 and 12: micro-batches and state.

use super::{Finding, label};
use crate::program::{BufferId, CarriedBuffer, Instr, Kernel, Program, streams};
use std::collections::BTreeSet;

pub(super) fn check(program: &Program, findings: &mut Vec<Finding>) {
    let found = program.instrs.len();
    let repeated = match program.micro_batches {
        None => found,
        Some(m) if m.count == 0 || m.instrs > found => {
            let (count, instrs) = (m.count, m.instrs);
            findings.push(Finding::MicroBatches { count, instrs, found });
            return;
        }
        Some(m) => m.instrs,
    };
    let mut last_reader = vec![None; program.buffers.len()];
    let mut writer = vec![None; program.buffers.len()];
    // A copy that lies where its input lies is another name of it.
    let mut named: Vec<usize> = (0..program.buffers.len()).collect();
    let done = streams::done(program);
    for (at, instr) in program.instrs.iter().enumerate() {
        for b in instr.reads() {
            let last = &mut last_reader[named[b.index()]];
            *last = (*last).max(Some(done[at]));
        }
        instr.writes().iter().for_each(|b| writer[b.index()] = Some(at));
        if let Instr::Kernel { kernel: Kernel::Copy, inputs, outputs, .. } = instr {
            for (from, to) in inputs.iter().zip(outputs) {
                if program.buffer(*from).slot == program.buffer(*to).slot {
                    named[to.index()] = named[from.index()];
                }
            }
        }
    }
    let (mut states, mut nexts) = (BTreeSet::new(), BTreeSet::new());
    for &CarriedBuffer { state, next } in &program.carried {
        let (old, new) = (program.buffer(state), program.buffer(next));
        let is_weight = program.weights.contains(&state);
        let why = if !states.insert(state) || !nexts.insert(next) {
            Some("one of them is carried already")
        } else if !is_weight && !program.accumulators.contains(&state) {
            Some("it is neither a weight nor an accumulator")
        } else if old.ty != new.ty || old.sharding != new.sharding || old.dynamic || new.dynamic {
            Some("their types or shardings differ")
        } else if named[next.index()] == state.index() {
            Some("it is another name of the state")
        } else if old.slot != new.slot {
            Some("they do not lie in the same place")
        } else {
            made(is_weight, program.micro_batches.map(|_| repeated), writer[next.index()])
                .or_else(|| read_after(writer[next.index()], last_reader[state.index()]))
        };
        if let Some(why) = why {
            let (state, next) = (label(program, state), label(program, next));
            findings.push(Finding::Carried { state, next, why });
        }
    }
    let is_left = |b: &&BufferId| !states.contains(*b);
    for &b in program.accumulators.iter().filter(is_left) {
        findings.push(Finding::NotCarried { buffer: label(program, b) });
    }
}

/// What is wrong with when the next value is made; `repeated` is where the update begins, if it does.
fn made(is_weight: bool, repeated: Option<usize>, writer: Option<usize>) -> Option<&'static str> {
    match (repeated, writer) {
        (_, None) => Some("no instruction makes it"),
        (Some(end), Some(at)) if is_weight && at < end => {
            Some("it is made for each micro-batch, and the state is a weight")
        }
        (Some(end), Some(at)) if !is_weight && at >= end => {
            Some("it is made once a step, and the state is an accumulator")
        }
        _ => None,
    }
}

fn read_after(writer: Option<usize>, reader: Option<usize>) -> Option<&'static str> {
    (reader > writer).then_some("the state is read after that")
}
