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
//! again; outputs stay until the end. Where passes of several micro-batches run in turn, storage that one pass
//! fills and another reads is live in all of them.

use crate::CodegenError;
use planc_ir::program::passes::{Times, Use, uses};
use planc_ir::program::{ALIGNMENT, BufferId, Instr, Kernel, Program, streams};
use std::collections::BTreeMap;

/// Storage of one or more buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The buffers that lie in it, in the order in which they are written.
    pub buffers: Vec<BufferId>,
    /// Bytes of the largest part on any rank; 0 for what is kept outside the arena.
    pub bytes: u64,
    /// For how many micro-batches at once it has room.
    pub copies: u32,
    /// The first instruction during which it is live.
    pub first: usize,
    /// The last one; the number of instructions for what stays.
    pub last: usize,
    /// Whether it holds weights or constants.
    pub is_weight: bool,
}

impl Storage {
    /// Bytes that it takes in the arena, all copies together; none if they would overflow.
    pub fn area(&self) -> Option<u64> {
        self.bytes.checked_next_multiple_of(ALIGNMENT)?.checked_mul(u64::from(self.copies))
    }
}

/// By buffer, the first buffer of its storage.
pub fn firsts(program: &Program, storages: &[Storage]) -> Vec<BufferId> {
    let mut firsts: Vec<BufferId> = (0..program.buffers.len() as u32).map(BufferId).collect();
    for s in storages {
        for b in &s.buffers {
            firsts[b.index()] = s.buffers[0];
        }
    }
    firsts
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
                copies: program.buffer(b).copies,
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
                let copies = program.buffer(b).copies;
                all.push(Storage { buffers, bytes, copies, first: at, last: at, is_weight: false });
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
    extend(program, &mut all);
    Ok(all)
}

/// Keeps what crosses passes live in all of them.
fn extend(program: &Program, all: &mut [Storage]) {
    let interleaves = Times::of(program).is_some_and(|times| !times.is_sequential());
    let Some(repeated) = program.micro_batches.filter(|_| interleaves) else { return };
    let uses = uses(program, &firsts(program, all));
    for s in all {
        if uses[s.buffers[0].index()].as_ref().is_some_and(Use::crosses) {
            s.first = 0;
            s.last = s.last.max(repeated.instrs.saturating_sub(1));
        }
    }
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
