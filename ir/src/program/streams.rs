//! The two streams of a rank: compute, and communication beside it.
//!
//! Kernels, single reshards and waits run on the compute stream, in order. An [`Instr::Issue`] hands its
//! steps to the communication stream, which runs one issue after another: it begins once everything
//! before it in the program is done on the compute stream and the issue before it on its own. An
//! [`Instr::Wait`] stops the compute stream until the issue that fills its buffer is done, and with it, as
//! they run in order, all that were issued before. What an issue fills may be read by a later issue, and
//! by everything else after a wait. No issue is in flight when a micro-batch or the step ends.
//!
//! Waits are instructions, and not implied by reading, so that where storage is free again can be seen:
//! what an issue reads and fills is in use from the issue to the wait that ends it.

use super::{Instr, Program};
use std::collections::VecDeque;

/// For each instruction, the one at which it is done: of an issue, the wait that ends it, or the number of
/// instructions if none does; of all else, itself.
pub fn done(program: &Program) -> Vec<usize> {
    let mut done: Vec<usize> = (0..program.instrs.len()).collect();
    let mut issued_by: Vec<Option<usize>> = vec![None; program.buffers.len()];
    let mut in_flight: VecDeque<usize> = VecDeque::new();
    for (at, instr) in program.instrs.iter().enumerate() {
        match instr {
            Instr::Issue { outputs, .. } => {
                for b in outputs {
                    issued_by[b.index()] = Some(at);
                }
                in_flight.push_back(at);
            }
            Instr::Wait { buffer } => {
                let Some(awaited) = issued_by[buffer.index()] else { continue };
                while let Some(&issue) = in_flight.front().filter(|issue| **issue <= awaited) {
                    done[issue] = at;
                    in_flight.pop_front();
                }
            }
            _ => {}
        }
    }
    for issue in in_flight {
        done[issue] = program.instrs.len();
    }
    done
}
