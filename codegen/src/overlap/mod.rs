//! Communication beside compute: where in a training program it is issued, and where it is waited for.
//!
//! ```text
//! Program ──buckets──▶ gradients reduced while others are made ──prefetch──▶ weights gathered ahead ──place──▶
//! ```
//!
//! The instructions that compute are those of the program; what changes is their order, by no more than
//! what they read and write in place allows. Nothing is moved out of the instructions that are repeated
//! for each micro-batch, or into them, nor between the passes of a stage.

mod buckets;
mod prefetch;
mod uses;

use crate::{CodegenError, memory};
use planc_ir::program::{Instr, Program};
use planc_ir::{Graph, Phase, ValueDef};
use std::collections::BTreeSet;
use std::ops::Range;
use uses::Uses;

/// Bytes on a rank at which a bucket is issued: the default of PyTorch's data parallelism.
pub const BUCKET_BYTES: u64 = 25 << 20;

/// The program, which carries out a training step, with communication issued beside compute.
/// A bucket of reductions holds at least `bucket_bytes` on a rank, but for the last; `time_us` prices an
/// instruction on its own.
///
/// # Errors
/// If one rank's bytes cannot be counted.
pub fn overlap(
    graph: &Graph,
    program: &Program,
    bucket_bytes: u64,
    time_us: &dyn Fn(&Program, &Instr) -> f64,
) -> Result<Program, CodegenError> {
    let mut program = program.clone();
    let update = match program.micro_batches {
        Some(m) => m.instrs,
        None => update_begins(graph, &program),
    };
    let uses = Uses::of(&program);
    rewrite(&mut program, |program, part| {
        buckets::form(program, &uses, part, update, bucket_bytes)
    });
    let uses = Uses::of(&program);
    rewrite(&mut program, |program, part| prefetch::hoist(program, &uses, part, time_us));
    memory::place(&mut program)?;
    Ok(program)
}

/// Rewrites the instructions of each pass, all that are repeated where there are no passes, and those that are not.
fn rewrite(program: &mut Program, part: impl Fn(&Program, Range<usize>) -> Vec<Instr>) {
    let end = program.instrs.len();
    let mut instrs = Vec::with_capacity(end);
    let mut begin = 0;
    let (mut passes, mut micro_batches) = (program.passes.clone(), program.micro_batches);
    for pass in &mut passes {
        instrs.extend(part(program, begin..pass.end));
        begin = std::mem::replace(&mut pass.end, instrs.len());
    }
    if let Some(m) = &mut micro_batches {
        instrs.extend(part(program, begin..m.instrs));
        begin = std::mem::replace(&mut m.instrs, instrs.len());
    }
    instrs.extend(part(program, begin..end));
    (program.passes, program.micro_batches, program.instrs) = (passes, micro_batches, instrs);
}

/// The first instruction that comes from a node of the update.
fn update_begins(graph: &Graph, program: &Program) -> usize {
    let is_updated = |def: &ValueDef| match def {
        ValueDef::Node { node, .. } => graph.node(*node).phase == Phase::Update,
        _ => false,
    };
    let values = graph.values.iter().filter(|v| is_updated(&v.def));
    let updated: BTreeSet<&str> = values.map(|v| v.name.as_str()).collect();
    let is_update = |instr: &Instr| {
        let mut made = instr.writes().iter().map(|&b| program.buffer(b).name.as_str());
        matches!(instr, Instr::Kernel { .. }) && made.any(|name| updated.contains(name))
    };
    program.instrs.iter().position(is_update).unwrap_or(program.instrs.len())
}
