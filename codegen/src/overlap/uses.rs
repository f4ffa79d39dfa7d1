//! Who makes and reads each buffer, and what is written over what.

use planc_ir::program::{BufferId, Instr, Kernel, Program};
use std::collections::BTreeMap;

/// Facts on the buffers of a program, by the numbers of the instructions.
#[derive(Debug)]
pub struct Uses {
    /// The instruction that makes each buffer.
    pub writer: Vec<Option<usize>>,
    /// The instructions that read each buffer, in order.
    pub readers: Vec<Vec<usize>>,
    /// Whether each buffer follows from weights and constants alone, element by element.
    pub is_derived: Vec<bool>,
    /// The buffer of which each is another name.
    named: Vec<BufferId>,
    /// State that is written over, by what it becomes.
    states: BTreeMap<BufferId, BufferId>,
    /// By buffer.
    is_state: Vec<bool>,
}

impl Uses {
    /// The uses in a program.
    pub fn of(program: &Program) -> Self {
        let count = program.buffers.len();
        let mut uses = Self {
            writer: vec![None; count],
            readers: vec![Vec::new(); count],
            is_derived: vec![false; count],
            named: (0..count as u32).map(BufferId).collect(),
            states: program.carried.iter().map(|c| (c.next, c.state)).collect(),
            is_state: vec![false; count],
        };
        for c in &program.carried {
            uses.is_state[c.state.index()] = true;
        }
        for b in program.weights.iter().chain(&program.constants) {
            uses.is_derived[b.index()] = true;
        }
        for (at, instr) in program.instrs.iter().enumerate() {
            let is_copy = matches!(instr, Instr::Kernel { kernel: Kernel::Copy, .. });
            let derives = match instr {
                Instr::Kernel { kernel, .. } => kernel.is_elementwise() || is_copy,
                Instr::Reshard { .. } | Instr::Issue { .. } => true,
                Instr::Wait { .. } | Instr::Send { .. } | Instr::Receive { .. } => false,
            };
            let is_derived = derives && instr.reads().iter().all(|b| uses.is_derived[b.index()]);
            for b in instr.reads() {
                uses.readers[b.index()].push(at);
            }
            for b in instr.writes() {
                uses.writer[b.index()] = Some(at);
                uses.is_derived[b.index()] = is_derived;
                if let (true, Some(from)) = (is_copy, instr.reads().first()) {
                    uses.named[b.index()] = uses.named[from.index()];
                }
            }
        }
        uses
    }

    /// The state that is read when a buffer is, if it lies where state lies before it is written over.
    pub fn state(&self, buffer: BufferId) -> Option<BufferId> {
        let named = self.named[buffer.index()];
        self.is_state[named.index()].then_some(named)
    }

    /// The state that is written over when a buffer is made.
    pub fn replaces(&self, buffer: BufferId) -> Option<BufferId> {
        self.states.get(&buffer).copied()
    }
}
