//! The program of a stage: instructions in passes, an order of the passes, and copies of what crosses them.
//!
//! 1. The instructions are those of [`partition`](crate::partition()). Each belongs to a pass of a chunk: forward
//!    and backward after the phase of its node.
//! 2. Where the order has passes for weights, what only makes the gradient of one weight moves there: what leads to
//!    no send, to no other chunk and to no second gradient. What is received is received in the backward pass.
//! 3. A storage that one pass fills and another reads has as many copies as the order has micro-batches under way
//!    between the two ([`passes`](planc_ir::program::passes)).

use crate::liveness::{firsts, storages};
use crate::partition::{Instructions, Origin, instructions};
use crate::{CodegenError, memory};
use planc_ir::program::passes::{Times, uses};
use planc_ir::program::{Action, BufferId, Instr, MicroBatches, Pass, PassInstrs, Program};
use planc_ir::sharding::Strategy;
use planc_ir::sharding::reshard::StepCost;
use planc_ir::{Graph, Phase};
use std::collections::{BTreeMap, BTreeSet};

/// The program that carries out a strategy of a stage's graph in an order, with a place for every buffer.
/// `chunks` says to which chunk each node belongs; all belong to chunk 0 where it is empty.
///
/// # Errors
/// As [`partition`](crate::partition()), and if the order is none of the passes that the nodes belong to.
pub fn stage(
    graph: &Graph,
    strategy: &Strategy,
    cost: &dyn StepCost,
    chunks: &[u32],
    order: &[Action],
) -> Result<Program, CodegenError> {
    let made = instructions(graph, strategy, cost, chunks)?;
    let names: BTreeSet<(Pass, u32)> = order.iter().map(|a| (a.pass, a.chunk)).collect();
    let mut program = divide(made, graph.micro_batches, &names)?;
    schedule(&mut program, order)?;
    Ok(program)
}

/// Gives a program that has passes another order of them: what crosses passes gets as many copies as that takes,
/// and every buffer a place.
///
/// # Errors
/// If the order is not one of the program's passes, or a rank's bytes cannot be counted.
pub fn schedule(program: &mut Program, order: &[Action]) -> Result<(), CodegenError> {
    program.order = order.to_vec();
    let times = Times::of(program).ok_or(CodegenError::Order)?;
    let storages = storages(program)?;
    let uses = uses(program, &firsts(program, &storages));
    for s in &storages {
        let first = program.buffer(s.buffers[0]);
        let value = || first.name.clone();
        let copies = match &uses[s.buffers[0].index()] {
            Some(of) => times.copies(of).ok_or_else(|| CodegenError::Passes { value: value() })?,
            None => 1,
        };
        if copies > 1 && first.dynamic {
            return Err(CodegenError::Dynamic { value: value() });
        }
        s.buffers.iter().for_each(|b| program.buffers[b.index()].copies = copies);
    }
    memory::place(program)
}

/// Sorts the repeated instructions into passes of these names.
fn divide(
    made: Instructions,
    count: u32,
    names: &BTreeSet<(Pass, u32)>,
) -> Result<Program, CodegenError> {
    let Instructions { mut program, repeated, origins } = made;
    program.micro_batches = Some(MicroBatches { count, instrs: repeated });
    let is_apart = apart(&program, &origins[..repeated], names)?;
    let name = |at: usize| match origins[at].phase {
        Phase::Forward => (Pass::Forward, origins[at].chunk),
        _ if is_apart[at] => (Pass::Weights, origins[at].chunk),
        _ => (Pass::Backward, origins[at].chunk),
    };
    // Passes of one kind in the order in which their instructions begin.
    let mut passes: BTreeMap<(Pass, u32), Vec<usize>> =
        names.iter().map(|&name| (name, Vec::new())).collect();
    for at in 0..repeated {
        let Some(pass) = passes.get_mut(&name(at)) else {
            let instr = &program.instrs[at];
            let buffer = instr.writes().iter().chain(instr.reads()).next();
            let value = buffer.map_or_else(String::new, |&b| program.buffer(b).name.clone());
            return Err(CodegenError::NoPass { value });
        };
        pass.push(at);
    }
    let mut passes: Vec<((Pass, u32), Vec<usize>)> = passes.into_iter().collect();
    passes.sort_by_key(|((pass, _), instrs)| (*pass, instrs.first().copied()));

    let mut instrs = Vec::with_capacity(program.instrs.len());
    for ((pass, chunk), members) in passes {
        instrs.extend(members.into_iter().map(|at| program.instrs[at].clone()));
        program.passes.push(PassInstrs { pass, chunk, end: instrs.len() });
    }
    instrs.extend_from_slice(&program.instrs[repeated..]);
    program.instrs = instrs;
    match early(&program) {
        Some(b) => Err(CodegenError::Passes { value: program.buffer(b).name.clone() }),
        None => Ok(program),
    }
}

/// A buffer that is read before it is filled, if passes of one chunk need values of another that come later.
fn early(program: &Program) -> Option<BufferId> {
    let mut made: BTreeSet<BufferId> =
        program.instrs.iter().flat_map(Instr::writes).copied().collect();
    for instr in &program.instrs {
        if let Some(&b) = instr.reads().iter().find(|b| made.contains(b)) {
            return Some(b);
        }
        for b in instr.writes() {
            made.remove(b);
        }
    }
    None
}

/// What an instruction leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leads {
    Nowhere,
    /// To one gradient.
    To(BufferId),
    /// To more, or to another pass.
    Far,
}

impl Leads {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nowhere, x) | (x, Self::Nowhere) => x,
            (a, b) if a == b => a,
            _ => Self::Far,
        }
    }
}

/// By repeated instruction, whether it belongs to the pass for weights.
fn apart(
    program: &Program,
    origins: &[Origin],
    names: &BTreeSet<(Pass, u32)>,
) -> Result<Vec<bool>, CodegenError> {
    let first = firsts(program, &storages(program)?);
    // What each buffer leads to: itself where its readers run once, or where it is carried on.
    let mut leads = vec![Leads::Nowhere; program.buffers.len()];
    let once = program.instrs[origins.len()..].iter().flat_map(Instr::reads);
    let carried = program.carried.iter().map(|c| &c.next);
    for b in once.chain(carried).chain(&program.outputs) {
        leads[b.index()] = Leads::To(first[b.index()]);
    }
    let mut chunk_of: Vec<Option<u32>> = vec![None; program.buffers.len()];
    let mut is_apart = vec![false; origins.len()];
    for (at, origin) in origins.iter().enumerate().rev() {
        let instr = &program.instrs[at];
        let stays = matches!(instr, Instr::Send { .. } | Instr::Receive { .. });
        let abroad = |b: &BufferId| chunk_of[b.index()].is_some_and(|chunk| chunk != origin.chunk);
        let mut to =
            if stays || instr.writes().iter().any(abroad) { Leads::Far } else { Leads::Nowhere };
        for b in instr.writes() {
            to = to.and(leads[b.index()]);
        }
        for b in instr.reads() {
            leads[b.index()] = leads[b.index()].and(to);
            match &mut chunk_of[b.index()] {
                Some(chunk) if *chunk != origin.chunk => leads[b.index()] = Leads::Far,
                chunk => *chunk = Some(origin.chunk),
            }
        }
        is_apart[at] = origin.phase == Phase::Backward
            && names.contains(&(Pass::Weights, origin.chunk))
            && to != Leads::Far;
    }
    rejoin(program, &first, &mut is_apart);
    Ok(is_apart)
}

/// Takes back what accumulates where another pass does, and what that is made from.
fn rejoin(program: &Program, first: &[BufferId], is_apart: &mut [bool]) {
    let is_sum: BTreeSet<BufferId> = program.accumulators.iter().copied().collect();
    let touched = |at: usize| {
        let instr = &program.instrs[at];
        instr.reads().iter().chain(instr.writes()).map(|b| first[b.index()])
    };
    loop {
        let mut stays: BTreeSet<BufferId> = BTreeSet::new();
        let mut changed = false;
        for at in (0..is_apart.len()).rev() {
            if !is_apart[at] {
                stays.extend(touched(at).filter(|b| is_sum.contains(b)));
            }
        }
        let mut needed = vec![false; program.buffers.len()];
        for at in (0..is_apart.len()).rev() {
            let instr = &program.instrs[at];
            let must_stay = touched(at).any(|b| stays.contains(&b))
                || instr.writes().iter().any(|b| needed[b.index()]);
            changed |= must_stay && is_apart[at];
            is_apart[at] &= !must_stay;
            if !is_apart[at] {
                instr.reads().iter().for_each(|b| needed[b.index()] = true);
            }
        }
        if !changed {
            return;
        }
    }
}
