//! Which buffers share storage, and from when to when it is live.
//!
//! A [`Kernel::Copy`] writes the bytes of its input under other extents, so its output *is* its
//! input's storage; no buffer is ever written twice, so nobody can tell. Everything else has storage
//! of its own.
//!
//! What state becomes lies where the state lies.
//!
//! Storage is live from the instruction that writes it to the last one that reads it, both included:
//! a kernel's operands and results are live together. An issue writes and reads until the wait that ends
//! it ([`streams`]). What is filled before the first instruction
//! (inputs, weights, constants, accumulators) stays for the whole program, so that a loaded program can be run
//! again; outputs stay until the end.

use crate::CodegenError;
use planc_ir::program::{BufferId, Instr, Kernel, Program, streams};
use std::collections::BTreeMap;

/// Storage of one or more buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The buffers that lie in it, in the order in which they are written.
    pub buffers: Vec<BufferId>,
    /// Bytes of the largest part on any rank; 0 for what is kept outside the arena.
    pub bytes: u64,
    /// The first instruction during which it is live.
    pub first: usize,
    /// The last one; the number of instructions for what stays.
    pub last: usize,
    /// Whether it holds weights or constants.
    pub is_weight: bool,
}

/// The storage of a program's buffers, in the order in which it comes to life.
///
/// # Errors
/// If a buffer's bytes cannot be counted.
pub fn storages(program: &Program) -> Result<Vec<Storage>, CodegenError> {
    let end = program.instrs.len();
    let mut all: Vec<Storage> = Vec::new();
    let mut of_buffer: Vec<Option<usize>> = vec![None; program.buffers.len()];

    for (list, is_weight) in [
        (&program.inputs, false),
        (&program.weights, true),
        (&program.constants, true),
        (&program.accumulators, false),
    ] {
        for &b in list {
            of_buffer[b.index()] = Some(all.len());
            all.push(Storage {
                buffers: vec![b],
                bytes: local_bytes(program, b)?,
                first: 0,
                last: end,
                is_weight,
            });
        }
    }
    let becomes: BTreeMap<BufferId, BufferId> =
        program.carried.iter().map(|c| (c.next, c.state)).collect();
    let done = streams::done(program);
    for (at, instr) in program.instrs.iter().enumerate() {
        for b in instr.reads() {
            if let Some(s) = of_buffer[b.index()] {
                all[s].last = all[s].last.max(done[at]);
            }
        }
        for &b in instr.writes() {
            let bytes = local_bytes(program, b)?;
            let shared = becomes
                .get(&b)
                .copied()
                .or_else(|| copied(instr))
                .and_then(|place| of_buffer[place.index()])
                .filter(|&s| all[s].bytes == bytes);
            let s = shared.unwrap_or(all.len());
            if shared.is_none() {
                let buffers = Vec::new();
                all.push(Storage { buffers, bytes, first: at, last: at, is_weight: false });
            }
            all[s].buffers.push(b);
            all[s].last = all[s].last.max(done[at]);
            of_buffer[b.index()] = Some(s);
        }
    }
    for b in &program.outputs {
        if let Some(s) = of_buffer[b.index()] {
            all[s].last = end;
        }
    }
    Ok(all)
}

/// The input whose storage the instruction's output shares.
fn copied(instr: &Instr) -> Option<BufferId> {
    match instr {
        Instr::Kernel { kernel: Kernel::Copy, inputs, .. } => inputs.first().copied(),
        _ => None,
    }
}

/// Bytes of the largest part of a buffer.
fn local_bytes(program: &Program, b: BufferId) -> Result<u64, CodegenError> {
    let bytes = program.buffer(b).max_bytes(&program.mesh);
    let value = || program.buffer(b).name.clone();
    if bytes == u64::MAX { Err(CodegenError::TooLarge { value: value() }) } else { Ok(bytes) }
}
