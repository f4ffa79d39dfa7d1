//! Checks a program and lists every finding.
//!
//! A program comes out of a file that anyone may have edited, so a runtime trusts nothing that is not
//! listed here. A program without findings has these properties:
//!
//! 1. **Mesh**: it is sound ([`Mesh::check`](crate::sharding::Mesh::check)).
//! 2. **Buffers**: extents are small enough to count bytes in; the sharding is one of the buffer's
//!    rank on the mesh, in canonical form.
//! 3. **Slots**: aligned, as large as the largest part, inside the arena.
//! 4. **Ids**: every buffer id exists.
//! 5. **Order**: a buffer is filled once (by the loader or by one instruction) and read only after that.
//! 6. **Boundary**: nothing that is loaded or returned is partial, but for accumulators.
//! 7. **Steps**: a reshard's step leads from its input's sharding to its output's, of the same type.
//! 8. **Kernels**: on every rank, the local operands are what the kernel's op takes and the local
//!    results are what it then yields, in number, element type and extents; attributes are in range.
//! 9. **Storage**: buffers that are live at once do not overlap in the arena. Only the result of a
//!    `copy` may lie where its input lies; the two then are one storage, live while either is.
//! 10. **Dynamic buffers** are of rank 0 and whole; only reference kernels of ops that leave extents
//!     open fill and read them, and the program's outputs name them. The operands of a deferred
//!     operator are whole, since it looks at extents only when it runs.
//!
//! 11. **Micro-batches**: there is at least one, and their instructions exist.
//! 12. **State** is a weight or an accumulator, carried once. What it becomes is made by an instruction, has
//!     its type, sharding and place, and nothing reads the state after that. What an accumulator becomes
//!     is made for each micro-batch, what a weight becomes once a step.
//! 13. **Streams**: the steps of an issue are of one kind. It is waited for before the micro-batch or step
//!     ends, and only then do kernels and reshards read what it fills; what it reads and fills is live
//!     until then. Where there are passes, the same holds for each.
//! 14. **Passes** make up the instructions of a micro-batch. The order runs each once for every micro-batch, a pass
//!     in the order of the micro-batches, and of a chunk forward before backward before weights.
//! 15. **Copies** of a storage are as many as there are micro-batches at once between the pass that fills it and
//!     the last that reads it; see [`passes`](super::passes). A pass reads only after the pass that fills.
//!     One pass alone touches an accumulator.
//! 16. **Transfers**: what is sent or received is not partial.
//!
//! That a program computes what the model says does not follow; comparing its results with the
//! reference evaluation shows that.

mod carried;
mod dynamic;
mod kernel;
mod passes;
mod storage;
mod streams;

use super::{ALIGNMENT, BufferId, Instr, Program};
use crate::graph::TensorType;
use crate::sharding::MeshError;
use crate::sharding::reshard::Step;
use thiserror::Error;

/// The most bytes of a buffer, its extents of 0 taken as 1.
pub const MAX_BUFFER_BYTES: u64 = 1 << 48;

/// The most dimensions of a buffer.
pub const MAX_RANK: usize = 32;

/// A property that a program lacks.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum Finding {
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error("{buffer}: {ty} has too many dimensions or elements")]
    Extents { buffer: Label, ty: TensorType },
    #[error("{buffer}: its sharding is not one of {ty} on the mesh, in canonical form")]
    Sharding { buffer: Label, ty: TensorType },
    #[error("{buffer}: offset {offset} is not a multiple of {ALIGNMENT}")]
    Alignment { buffer: Label, offset: u64 },
    #[error("{buffer}: its slot has {found} bytes, its largest part {expected}")]
    SlotBytes { buffer: Label, expected: u64, found: u64 },
    #[error("{buffer}: its slot ends beyond the arena of {arena_bytes} bytes")]
    OutsideArena { buffer: Label, arena_bytes: u64 },
    #[error("{place}: there is no buffer {id}")]
    UnknownBuffer { place: Place, id: u32 },
    #[error("{place}: fills {buffer} a second time")]
    FilledTwice { place: Place, buffer: Label },
    #[error("{place}: reads {buffer}, which nothing has filled")]
    ReadBeforeFilled { place: Place, buffer: Label },
    #[error("{place}: {buffer} is partial")]
    PartialBoundary { place: Place, buffer: Label },
    #[error("{place}: {input} and {output} are of different types")]
    StepType { place: Place, input: Label, output: Label },
    #[error("{place}: {step:?} does not lead from the sharding of {input} to that of {output}")]
    Step { place: Place, step: Step, input: Label, output: Label },
    #[error("{place}: on the rank at {coord:?}, {why}")]
    Kernel { place: Place, coord: Vec<u32>, why: String },
    #[error("{buffer} is dynamic, but {ty} has extents or it is not whole on every rank")]
    DynamicType { buffer: Label, ty: TensorType },
    #[error(
        "{place}: names {buffer}, which is dynamic: only a reference kernel of an op that leaves \
         extents open fills or reads it"
    )]
    DynamicUse { place: Place, buffer: Label },
    #[error("{place}: {buffer} is an operand of a deferred operator, but not whole on every rank")]
    SplitOperand { place: Place, buffer: Label },
    #[error("{place}: {buffer} overlaps {other} in the arena, which is live")]
    Overlap { place: Place, buffer: Label, other: Label },
    #[error("{count} micro-batches of {instrs} instructions each: there are {found} instructions")]
    MicroBatches { count: u32, instrs: usize, found: usize },
    #[error("{state} cannot become {next}: {why}")]
    Carried { state: Label, next: Label, why: &'static str },
    #[error("{buffer} is an accumulator that nothing carries")]
    NotCarried { buffer: Label },
    #[error("{place}: its steps, inputs and outputs are not equally many")]
    IssueLists { place: Place },
    #[error("{place}: its steps are not collectives of one kind, over the same axes")]
    Issue { place: Place },
    #[error("{place}: nothing waits for it before the micro-batch or step ends")]
    InFlight { place: Place },
    #[error("{place}: waits for {buffer}, which nothing was issued to fill")]
    NothingIssued { place: Place, buffer: Label },
    #[error("{place}: reads {buffer}, which is still in flight")]
    NotAwaited { place: Place, buffer: Label },
    #[error("the passes are not sound: {why}")]
    Passes { why: &'static str },
    #[error("{buffer} has {found} copies, not {expected}")]
    Copies { buffer: Label, expected: u32, found: u32 },
    #[error(
        "a pass uses {buffer} before the pass that fills it has run, or several passes accumulate in it"
    )]
    OutOfOrder { buffer: Label },
}

/// A buffer as it is called in findings.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("buffer {id} (`{name}`)")]
#[allow(missing_docs)] // plain
pub struct Label {
    pub id: u32,
    pub name: String,
}

/// Where a finding is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum Place {
    #[error("{0} of the program")]
    List(&'static str),
    #[error("instruction {index} ({what})")]
    Instr { index: usize, what: String },
}

/// Every property of the module's page that the program lacks. If the mesh is unsound, ids are unknown
/// or buffers malformed, properties that rest on them are not looked at.
pub fn verify(program: &Program) -> Vec<Finding> {
    if let Err(e) = program.mesh.check() {
        return vec![e.into()];
    }
    let mut findings = Vec::new();
    buffers(program, &mut findings);
    ids(program, &mut findings);
    if !findings.is_empty() {
        return findings;
    }
    slots(program, &mut findings);
    boundary(program, &mut findings);
    order(program, &mut findings);
    dynamic::check(program, &mut findings);
    carried::check(program, &mut findings);
    streams::check(program, &mut findings);
    passes::check(program, &mut findings);
    for (index, instr) in program.instrs.iter().enumerate() {
        let place = || Place::instr(index, instr);
        match instr {
            Instr::Issue { steps, inputs, outputs }
                if steps.len() != inputs.len() || steps.len() != outputs.len() =>
            {
                findings.push(Finding::IssueLists { place: place() });
            }
            Instr::Reshard { .. } | Instr::Issue { .. } => {
                for (step, input, output) in instr.steps() {
                    reshard(program, place, step, input, output, &mut findings);
                }
            }
            Instr::Wait { .. } | Instr::Send { .. } | Instr::Receive { .. } => {}
            Instr::Kernel { kernel, inputs, outputs, .. } => {
                kernel::check(program, place, kernel, inputs, outputs, &mut findings);
            }
        }
    }
    if findings.is_empty() {
        storage::check(program, &mut findings);
    }
    findings
}

impl Place {
    fn instr(index: usize, instr: &Instr) -> Self {
        let what = match instr {
            Instr::Kernel { node, .. } => format!("node `{node}`"),
            Instr::Reshard { .. } => "a reshard".to_string(),
            Instr::Issue { .. } => "an issue".to_string(),
            Instr::Wait { .. } => "a wait".to_string(),
            Instr::Send { .. } => "a send".to_string(),
            Instr::Receive { .. } => "a receive".to_string(),
        };
        Self::Instr { index, what }
    }
}

fn label(program: &Program, id: BufferId) -> Label {
    Label { id: id.0, name: program.buffer(id).name.clone() }
}

fn buffer_ids(program: &Program) -> impl Iterator<Item = BufferId> + use<> {
    (0..program.buffers.len() as u32).map(BufferId)
}

/// The lists of the program that name buffers, and whether what they name is filled by the loader.
fn lists(program: &Program) -> [(&'static str, &[BufferId], bool); 5] {
    [
        ("the inputs", &program.inputs, true),
        ("the weights", &program.weights, true),
        ("the constants", &program.constants, true),
        ("the accumulators", &program.accumulators, true),
        ("the outputs", &program.outputs, false),
    ]
}

/// Property 2.
fn buffers(program: &Program, findings: &mut Vec<Finding>) {
    for id in buffer_ids(program) {
        let b = program.buffer(id);
        let bytes =
            b.ty.shape
                .iter()
                .try_fold(b.ty.dtype.bytes(), |bytes, &n| bytes.checked_mul(n.max(1)))
                .filter(|&bytes| bytes <= MAX_BUFFER_BYTES && b.ty.rank() <= MAX_RANK);
        if bytes.is_none() {
            findings.push(Finding::Extents { buffer: label(program, id), ty: b.ty.clone() });
            continue;
        }
        let is_valid = b.sharding.is_valid(b.ty.rank(), &program.mesh)
            && b.sharding
                .dims
                .iter()
                .zip(&b.ty.shape)
                .all(|(d, &n)| d.unit <= n.max(1) && n.is_multiple_of(d.unit))
            && b.sharding.clone().canonical(&b.ty.shape, &program.mesh) == b.sharding;
        if !is_valid {
            findings.push(Finding::Sharding { buffer: label(program, id), ty: b.ty.clone() });
        }
    }
}

/// Property 3.
fn slots(program: &Program, findings: &mut Vec<Finding>) {
    for id in buffer_ids(program) {
        let b = program.buffer(id);
        let buffer = || label(program, id);
        let expected = b.max_bytes(&program.mesh);
        let (offset, found) = (b.slot.offset, b.slot.bytes);
        if !offset.is_multiple_of(ALIGNMENT) {
            findings.push(Finding::Alignment { buffer: buffer(), offset });
        }
        if found != expected {
            findings.push(Finding::SlotBytes { buffer: buffer(), expected, found });
        }
        let end = b.footprint().and_then(|bytes| offset.checked_add(bytes));
        if end.is_none_or(|end| end > program.arena_bytes) {
            let arena_bytes = program.arena_bytes;
            findings.push(Finding::OutsideArena { buffer: buffer(), arena_bytes });
        }
    }
}

/// Property 4.
fn ids(program: &Program, findings: &mut Vec<Finding>) {
    let unknown = |id: &&BufferId| id.index() >= program.buffers.len();
    for (list, ids, _) in lists(program) {
        let places = ids.iter().filter(unknown);
        findings
            .extend(places.map(|id| Finding::UnknownBuffer { place: Place::List(list), id: id.0 }));
    }
    for id in program.carried.iter().flat_map(|c| [&c.state, &c.next]).filter(unknown) {
        findings.push(Finding::UnknownBuffer { place: Place::List("the state"), id: id.0 });
    }
    for (index, instr) in program.instrs.iter().enumerate() {
        for id in instr.reads().iter().chain(instr.writes()).filter(unknown) {
            let place = Place::instr(index, instr);
            findings.push(Finding::UnknownBuffer { place, id: id.0 });
        }
    }
}

/// Property 5.
fn order(program: &Program, findings: &mut Vec<Finding>) {
    let mut filled = vec![false; program.buffers.len()];
    let mut fill = |id: BufferId| std::mem::replace(&mut filled[id.index()], true);
    let mut twice = Vec::new();
    for (list, ids, _) in lists(program).into_iter().filter(|&(_, _, loads)| loads) {
        for &id in ids {
            if fill(id) {
                twice.push((Place::List(list), id));
            }
        }
    }
    let mut early = Vec::new();
    for (index, instr) in program.instrs.iter().enumerate() {
        for &id in instr.reads() {
            if !filled[id.index()] {
                early.push((Place::instr(index, instr), id));
            }
        }
        for &id in instr.writes() {
            if std::mem::replace(&mut filled[id.index()], true) {
                twice.push((Place::instr(index, instr), id));
            }
        }
    }
    for &id in program.outputs.iter().filter(|id| !filled[id.index()]) {
        early.push((Place::List("the outputs"), id));
    }
    findings.extend(
        early
            .into_iter()
            .map(|(place, id)| Finding::ReadBeforeFilled { place, buffer: label(program, id) }),
    );
    findings.extend(
        twice
            .into_iter()
            .map(|(place, id)| Finding::FilledTwice { place, buffer: label(program, id) }),
    );
}

/// Property 6.
fn boundary(program: &Program, findings: &mut Vec<Finding>) {
    for (list, ids, _) in
        lists(program).into_iter().filter(|(_, ids, _)| *ids != program.accumulators)
    {
        for &id in ids.iter().filter(|&&id| !program.buffer(id).sharding.partial.is_empty()) {
            let (place, buffer) = (Place::List(list), label(program, id));
            findings.push(Finding::PartialBoundary { place, buffer });
        }
    }
}

/// Property 7.
fn reshard(
    program: &Program,
    place: impl Fn() -> Place,
    step: &Step,
    input: BufferId,
    output: BufferId,
    findings: &mut Vec<Finding>,
) {
    let (from, to) = (program.buffer(input), program.buffer(output));
    let labels = || (place(), label(program, input), label(program, output));
    if from.ty != to.ty {
        let (place, input, output) = labels();
        findings.push(Finding::StepType { place, input, output });
    } else if step.apply(&from.sharding, &from.ty.shape, &program.mesh).as_ref()
        != Some(&to.sharding)
    {
        let (place, input, output) = labels();
        findings.push(Finding::Step { place, step: step.clone(), input, output });
    }
}
