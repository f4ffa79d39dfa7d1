//! Whether what a state becomes may be written where the state lies.
//!
//! It may if nothing reads the state any more when it is written, nothing else needs the place, and the
//! instruction that writes it can do so over what it reads: element by element, each element read before
//! it is written.

use planc_ir::program::{BufferId, Instr, Kernel, Program};

/// Who uses a buffer, by the numbers of the instructions.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    writer: Option<usize>,
    last_reader: Option<usize>,
    /// Whether it is, or has, another name of a storage.
    is_viewed: bool,
    /// Whether the caller gets it.
    is_output: bool,
}

/// Who uses the buffers of a program.
#[derive(Debug)]
pub struct Uses(Vec<Use>);

impl Uses {
    /// The uses in a program so far.
    pub fn of(program: &Program) -> Self {
        let mut uses = vec![Use::default(); program.buffers.len()];
        // Who reads a copy may read the storage of what was copied.
        let mut named: Vec<usize> = (0..uses.len()).collect();
        for (at, instr) in program.instrs.iter().enumerate() {
            let is_view = matches!(instr, Instr::Kernel { kernel: Kernel::Copy, .. });
            for b in instr.reads() {
                uses[named[b.index()]].last_reader = Some(at);
                uses[b.index()].is_viewed |= is_view;
            }
            for b in instr.writes() {
                uses[b.index()].writer = Some(at);
                uses[b.index()].is_viewed |= is_view;
                if let (true, Some(from)) = (is_view, instr.reads().first()) {
                    named[b.index()] = named[from.index()];
                }
            }
        }
        program.outputs.iter().for_each(|b| uses[b.index()].is_output = true);
        Self(uses)
    }

    /// Whether an instruction makes a buffer; else it is loaded, and has a place already.
    pub fn is_made(&self, buffer: BufferId) -> bool {
        self.0[buffer.index()].writer.is_some()
    }

    /// Whether `next`, of the type and sharding of `state`, may lie where `state` lies.
    pub fn in_place(&self, program: &Program, state: BufferId, next: BufferId) -> bool {
        let (old, new) = (self.0[state.index()], self.0[next.index()]);
        let Some(writer) = new.writer else { return false };
        let is_free = match old.last_reader {
            Some(reader) if reader == writer => may_overwrite(&program.instrs[writer]),
            reader => reader.is_none_or(|reader| reader < writer),
        };
        is_free && !new.is_viewed && !old.is_output && !new.is_output
    }
}

/// Whether an instruction may write over an operand of the result's extents.
const fn may_overwrite(instr: &Instr) -> bool {
    matches!(instr, Instr::Kernel { kernel, .. } if kernel.is_elementwise())
}
