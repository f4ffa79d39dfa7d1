//! What the passes of a stage share, and in how many copies.
//!
//! Passes of several micro-batches run in turn, so a storage that one pass fills and another reads keeps its
//! contents while passes of other micro-batches run. It has as many copies as there are micro-batches under way at
//! once between the two. Some storages need one alone: weights and constants, what follows from those and so is
//! the same for every micro-batch, and accumulators, which are there to be written over.

use super::{BufferId, Instr, Kernel, Pass, Program};
use std::collections::{BTreeMap, BTreeSet};

/// What fills a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filler {
    /// The loader, once: weights and constants.
    Loader,
    /// Each micro-batch adds to it.
    Accumulation,
    /// The caller, when the first pass of a micro-batch begins.
    Caller,
    /// A pass, by its index in the program's list.
    Pass(usize),
    /// An instruction that runs once a step.
    Update,
}

/// Who uses a storage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// What fills it.
    pub filler: Filler,
    /// The passes whose instructions touch it, the one that fills it among them.
    pub passes: BTreeSet<usize>,
    /// Whether an instruction that runs once a step touches it, or the caller gets it: in both cases what the
    /// last micro-batch left.
    pub is_kept: bool,
    /// Whether it holds the same for every micro-batch.
    pub is_fixed: bool,
}

impl Use {
    /// Whether its contents outlive a pass, and passes may make it.
    pub fn crosses(&self) -> bool {
        matches!(self.filler, Filler::Pass(_)) && (self.passes.len() > 1 || self.is_kept)
    }
}

/// By buffer, the use of the storage that it is the first of (`storage_of[b] == b`), and none for others. The
/// program's passes must cover what is repeated.
pub fn uses(program: &Program, storage_of: &[BufferId]) -> Vec<Option<Use>> {
    let pass_of = pass_of(program);
    let is_fixed = fixed(program);
    let mut uses: Vec<Option<Use>> = vec![None; program.buffers.len()];
    let mut touch = |b: BufferId, filler: Filler, pass: Option<usize>, kept: bool| {
        let storage = storage_of[b.index()].index();
        let of = uses[storage].get_or_insert_with(|| Use {
            filler,
            passes: BTreeSet::new(),
            is_kept: false,
            is_fixed: true,
        });
        of.passes.extend(pass);
        of.is_kept |= kept;
        of.is_fixed &= is_fixed[b.index()];
    };
    for (ids, filler) in [
        (&program.weights, Filler::Loader),
        (&program.constants, Filler::Loader),
        (&program.accumulators, Filler::Accumulation),
        (&program.inputs, Filler::Caller),
    ] {
        for &b in ids {
            touch(b, filler, None, false);
        }
    }
    for (instr, pass) in program.instrs.iter().zip(pass_of) {
        let filler = pass.map_or(Filler::Update, Filler::Pass);
        for &b in instr.reads().iter().chain(instr.writes()) {
            touch(b, filler, pass, pass.is_none());
        }
    }
    for &b in &program.outputs {
        touch(b, Filler::Update, None, true);
    }
    uses
}

/// For each instruction, the index of its pass; none for those that run once.
pub fn pass_of(program: &Program) -> Vec<Option<usize>> {
    let mut pass_of = vec![None; program.instrs.len()];
    let mut begin = 0;
    for (pass, instrs) in program.passes.iter().enumerate() {
        let end = instrs.end.min(pass_of.len());
        if begin < end {
            pass_of[begin..end].fill(Some(pass));
            begin = end;
        }
    }
    pass_of
}

/// By buffer, whether it follows from weights and constants alone.
fn fixed(program: &Program) -> Vec<bool> {
    let mut is_fixed = vec![false; program.buffers.len()];
    for b in program.weights.iter().chain(&program.constants) {
        is_fixed[b.index()] = true;
    }
    for instr in &program.instrs {
        let follows = !matches!(instr, Instr::Receive { .. })
            && instr.reads().iter().all(|b| is_fixed[b.index()]);
        for b in instr.writes() {
            is_fixed[b.index()] = follows;
        }
    }
    is_fixed
}

/// The storage of each buffer, by its first buffer, where `shares` says whether the result of a copy shares the
/// storage of its operand. What state becomes shares the state's.
pub fn storages(program: &Program, shares: impl Fn(BufferId, BufferId) -> bool) -> Vec<BufferId> {
    let mut storage_of: Vec<BufferId> = (0..program.buffers.len() as u32).map(BufferId).collect();
    for instr in &program.instrs {
        if let Instr::Kernel { kernel: Kernel::Copy, inputs, outputs, .. } = instr
            && let ([input], [output]) = (&inputs[..], &outputs[..])
            && shares(*input, *output)
        {
            storage_of[output.index()] = storage_of[input.index()];
        }
    }
    for c in &program.carried {
        storage_of[c.next.index()] = storage_of[c.state.index()];
    }
    storage_of
}

/// When the passes of an order run: every pass of every micro-batch once, each pass in the order of the
/// micro-batches.
#[derive(Clone, Debug)]
pub struct Times {
    /// By pass and micro-batch, the number of the action.
    at: Vec<Vec<usize>>,
    /// By micro-batch, the number of its first action.
    first: Vec<usize>,
}

impl Times {
    /// The times in a program's order; none if it is not such an order.
    pub fn of(program: &Program) -> Option<Self> {
        let count = program.micro_batches?.count as usize;
        if program.passes.is_empty() {
            return None;
        }
        if program.order.len() != program.passes.len().checked_mul(count)? {
            return None;
        }
        let passes: BTreeMap<(Pass, u32), usize> =
            program.passes.iter().enumerate().map(|(i, p)| ((p.pass, p.chunk), i)).collect();
        let mut at: Vec<Vec<usize>> = vec![Vec::new(); program.passes.len()];
        for (number, action) in program.order.iter().enumerate() {
            let times = &mut at[*passes.get(&(action.pass, action.chunk))?];
            if action.micro_batch as usize != times.len() {
                return None;
            }
            times.push(number);
        }
        if at.iter().any(|times| times.len() != count) {
            return None;
        }
        let first = (0..count).map(|m| at.iter().map(|t| t[m]).min().unwrap_or(0)).collect();
        Some(Self { at, first })
    }

    /// The number of the action that is a pass of a micro-batch.
    pub fn at(&self, pass: usize, micro_batch: usize) -> usize {
        self.at[pass][micro_batch]
    }

    /// Whether each micro-batch runs through all passes, in the order of their list, before the next begins: then
    /// it is as if there were none.
    pub fn is_sequential(&self) -> bool {
        let passes = self.at.len();
        let mut all = self.at.iter().enumerate();
        all.all(|(pass, times)| times.iter().enumerate().all(|(m, &t)| t == m * passes + pass))
    }

    /// How many copies of a storage there must be; none if a pass reads it before it is filled, or two passes
    /// accumulate.
    pub fn copies(&self, of: &Use) -> Option<u32> {
        let begins = match of.filler {
            Filler::Loader | Filler::Update => return Some(1),
            Filler::Accumulation => return (of.passes.len() <= 1).then_some(1),
            Filler::Caller => &self.first,
            Filler::Pass(pass) => &self.at[pass],
        };
        let mut copies = 1;
        for (m, &begin) in begins.iter().enumerate() {
            let mut end = begin;
            for &pass in &of.passes {
                if self.at[pass][m] < begin {
                    return None;
                }
                end = end.max(self.at[pass][m]);
            }
            // Micro-batches begin in order, so those that begin before this one ends are the next ones.
            let others = begins[m + 1..].partition_point(|&other| other < end);
            copies = copies.max(others + 1);
        }
        if of.is_fixed { Some(1) } else { u32::try_from(copies).ok() }
    }
}
