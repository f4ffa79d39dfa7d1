//! One rank: its memory, and how it runs one instruction.

use crate::comm::local::LocalComm;
use crate::comm::reshard::Reshard;
use crate::comm::transfer::Post;
use crate::device::bytes::AlignedBytes;
use crate::device::cpu::{self, In, Out, in_place, reference};
use crate::operands::Operands;
use crate::region;
use crate::stage::StageProgram;
use crate::{CommError, KernelError, RunError, Weights};
use planc_ir::Tensor;
use planc_ir::program::{ALIGNMENT, BufferId, Instr, Kernel, Local, Program};
use planc_ir::sharding::reshard::Step;
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory that a rank has really used, counted while it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Of its arena: up to the highest place that was filled, read or written, in units of [`ALIGNMENT`].
    pub arena_bytes: u64,
    /// Beside it: the most that one instruction copied because it writes over what it reads.
    pub copied_bytes: u64,
}

impl MemoryUse {
    /// Of each figure, the larger.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self {
            arena_bytes: self.arena_bytes.max(other.arena_bytes),
            copied_bytes: self.copied_bytes.max(other.copied_bytes),
        }
    }
}

/// One rank's memory.
#[derive(Debug)]
pub struct Rank {
    /// Its number among all of the plan.
    pub number: u32,
    /// The index of its stage.
    pub stage: usize,
    /// Its number in its stage.
    pub position: u32,
    /// The micro-batch that it works on; the last one while it does what is done once a step.
    pub micro_batch: u32,
    /// The instruction that it runs; none while it loads.
    pub current: Option<usize>,
    /// This rank's part of each buffer.
    locals: Vec<Local>,
    arena: AlignedBytes,
    /// What the dynamic buffers hold; one that nothing reads any more is dropped.
    pub dynamic: BTreeMap<BufferId, Tensor>,
    pub weight_bytes_read: u64,
    pub memory: MemoryUse,
}

/// A whole tensor as bytes.
pub struct Whole {
    local: Local,
    bytes: Vec<u8>,
}

impl Whole {
    pub fn new(tensor: &Tensor) -> Self {
        Self { local: region::whole(tensor.ty()), bytes: tensor.to_bytes() }
    }
}

impl Rank {
    /// A rank of a stage, with an empty arena.
    pub fn new(stage: &StageProgram, position: u32) -> Result<Self, RunError> {
        let program = &stage.program;
        let coord = program.mesh.coord(position);
        let bytes = program.arena_bytes;
        let number = stage.first_rank + position;
        Ok(Self {
            number,
            stage: stage.index,
            position,
            micro_batch: 0,
            current: None,
            locals: program.buffers.iter().map(|b| b.local(&program.mesh, &coord)).collect(),
            arena: AlignedBytes::zeroed(bytes).ok_or(RunError::Memory { rank: number, bytes })?,
            dynamic: BTreeMap::new(),
            weight_bytes_read: 0,
            memory: MemoryUse::default(),
        })
    }

    /// This rank's part of a buffer, and its bytes.
    pub fn part(&self, program: &Program, id: BufferId) -> (&Local, &[u8]) {
        (&self.locals[id.index()], &self.arena[self.range(program, id)])
    }

    /// Where this rank's part of a buffer lies in its arena.
    fn range(&self, program: &Program, id: BufferId) -> Range<usize> {
        let buffer = program.buffer(id);
        if buffer.dynamic {
            return 0..0; // it has none
        }
        let begin = buffer.copy_offset(self.micro_batch) as usize;
        begin..begin + self.locals[id.index()].ty.bytes() as usize
    }

    /// The same, for a use that counts.
    fn used(&mut self, program: &Program, id: BufferId) -> Range<usize> {
        let range = self.range(program, id);
        if !range.is_empty() {
            let end = (range.end as u64).next_multiple_of(ALIGNMENT);
            self.memory.arena_bytes = self.memory.arena_bytes.max(end);
        }
        range
    }

    /// Copies this rank's part of a whole tensor into its buffer.
    pub fn fill(&mut self, program: &Program, id: BufferId, whole: &Whole) {
        let range = self.used(program, id);
        region::copy(&whole.local, &whole.bytes, &self.locals[id.index()], &mut self.arena[range]);
    }

    /// Reads this rank's part of a weight into its buffer.
    pub fn load(
        &mut self,
        program: &Program,
        id: BufferId,
        weights: &dyn Weights,
    ) -> Result<(), RunError> {
        let (range, name) = (self.used(program, id), &program.buffer(id).name);
        let read = weights
            .read(name, &self.locals[id.index()], &mut self.arena[range])
            .map_err(|source| RunError::Weight { rank: self.number, name: name.clone(), source })?;
        self.weight_bytes_read += read;
        Ok(())
    }

    /// Sets this rank's part of a buffer to zero.
    pub fn clear(&mut self, program: &Program, id: BufferId) {
        let range = self.used(program, id);
        self.arena[range].fill(0);
    }

    /// Runs one instruction.
    pub fn instr(
        &mut self,
        stage: &StageProgram,
        number: usize,
        comm: &mut LocalComm,
    ) -> Result<(), RunError> {
        let (rank, program) = (self.number, &stage.program);
        match &program.instrs[number] {
            Instr::Kernel { node, kernel, inputs, outputs } => {
                self.kernel(program, kernel, inputs, outputs).map_err(|source| RunError::Kernel {
                    rank,
                    instr: number,
                    node: node.clone(),
                    source,
                })
            }
            Instr::Reshard { step, input, output } => {
                self.reshard(stage, number, step, (*input, *output), comm)
            }
            // One rank's thread does one thing after another, so what is issued is done at once.
            Instr::Issue { steps, inputs, outputs } => steps
                .iter()
                .zip(inputs.iter().copied().zip(outputs.iter().copied()))
                .try_for_each(|(step, ends)| self.reshard(stage, number, step, ends, comm)),
            Instr::Wait { .. } => Ok(()),
            Instr::Send { buffer, .. } | Instr::Receive { buffer, .. } => {
                self.transfer(stage, number, *buffer, comm).map_err(|source| RunError::Transfer {
                    rank,
                    instr: number,
                    value: program.buffer(*buffer).name.clone(),
                    source: source.into(),
                })
            }
        }
    }

    /// Sends a buffer, or receives it.
    fn transfer(
        &mut self,
        stage: &StageProgram,
        number: usize,
        buffer: BufferId,
        comm: &mut LocalComm,
    ) -> Result<(), CommError> {
        let Some(route) = stage.routes.get(&number) else { return Ok(()) };
        let micro_batch = stage.is_repeated(number).then_some(self.micro_batch);
        let post = Post { route, position: self.position, rank: self.number, micro_batch };
        let range = self.used(&stage.program, buffer);
        let local = &self.locals[buffer.index()];
        match stage.program.instrs[number] {
            Instr::Send { .. } => post.send(local, &self.arena[range], comm),
            _ => post.receive(local, &mut self.arena[range], comm),
        }
    }

    fn reshard(
        &mut self,
        stage: &StageProgram,
        number: usize,
        step: &Step,
        (input, output): (BufferId, BufferId),
        comm: &mut LocalComm,
    ) -> Result<(), RunError> {
        let (rank, program) = (self.number, &stage.program);
        let (from, to) = (program.buffer(input), program.buffer(output));
        let (mesh, first_rank) = (&program.mesh, stage.first_rank);
        let reshard = Reshard { mesh, rank: self.position, first_rank, from, to };
        let (read, written) = (self.used(program, input), self.used(program, output));
        Operands::split(&mut self.arena, &[read], &[written])
            .and_then(|mut o| {
                let copied = o.copied_bytes();
                self.memory.copied_bytes = self.memory.copied_bytes.max(copied);
                reshard.run(step, &o.inputs[0], o.outputs[0], comm)
            })
            .map_err(|source| RunError::Reshard {
                rank,
                instr: number,
                value: from.name.clone(),
                source,
            })
    }

    fn kernel(
        &mut self,
        program: &Program,
        kernel: &Kernel,
        inputs: &[BufferId],
        outputs: &[BufferId],
    ) -> Result<(), KernelError> {
        let mut read: Vec<_> = inputs.iter().map(|&id| self.used(program, id)).collect();
        let written: Vec<_> = outputs.iter().map(|&id| self.used(program, id)).collect();
        if matches!(kernel, Kernel::Copy) && read == written {
            return Ok(()); // a view of its input: the same bytes in the same place
        }
        // What an elementwise kernel may write over is read from the result's place.
        let replaced: Vec<Option<usize>> = inputs
            .iter()
            .zip(&read)
            .map(|(x, place)| self.replaced(kernel, (*x, place), outputs, &written))
            .collect();
        for (place, _) in read.iter_mut().zip(&replaced).filter(|(_, r)| r.is_some()) {
            *place = 0..0;
        }
        let operands = Operands::split(&mut self.arena, &read, &written)?;
        self.memory.copied_bytes = self.memory.copied_bytes.max(operands.copied_bytes());
        let (locals, ids) = (&self.locals, inputs);
        let inputs: Vec<In<'_>> = ids
            .iter()
            .zip(&operands.inputs)
            .map(|(id, bytes)| In { local: &locals[id.index()], bytes })
            .collect();
        let mut results: Vec<Out<'_>> = outputs
            .iter()
            .zip(operands.outputs)
            .map(|(id, bytes)| Out { local: &locals[id.index()], bytes })
            .collect();
        match kernel {
            Kernel::Reference { op } if op.leaves_extents_open() => {
                let parts = ids.iter().zip(&inputs).map(|(id, x)| match self.dynamic.get(id) {
                    Some(_) => Ok(None),
                    None => reference::load(x).map(Some),
                });
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                // `parts` has one for each operand that is not dynamic.
                let pairs = ids.iter().zip(&parts);
                let operands: Vec<&Tensor> = pairs
                    .filter_map(|(id, part)| part.as_ref().or_else(|| self.dynamic.get(id)))
                    .collect();
                let made = reference::evaluate(op, &operands, outputs.len())?;
                for ((&id, out), tensor) in outputs.iter().zip(&mut results).zip(made) {
                    if !program.buffer(id).dynamic {
                        reference::store(op, &tensor, out)?;
                    } else if tensor.dtype() == out.dtype() {
                        self.dynamic.insert(id, tensor);
                    } else {
                        let why =
                            format!("{} gives {}, not {}", op.name(), tensor.ty(), out.dtype());
                        return Err(KernelError::Operands { kernel: "reference", why });
                    }
                }
                Ok(())
            }
            _ if replaced.iter().any(Option::is_some) => {
                in_place::run(kernel, &inputs, &replaced, &mut results)
            }
            _ => cpu::run(kernel, &inputs, &mut results),
        }
    }

    /// The result of an elementwise kernel that lies exactly where an operand of its extents lies.
    fn replaced(
        &self,
        kernel: &Kernel,
        (input, place): (BufferId, &Range<usize>),
        outputs: &[BufferId],
        written: &[Range<usize>],
    ) -> Option<usize> {
        if !kernel.is_elementwise() || place.is_empty() {
            return None;
        }
        let ty = |id: BufferId| &self.locals[id.index()].ty;
        let same = |(&output, at): (&BufferId, &Range<usize>)| {
            at == place
                && ty(output).shape == ty(input).shape
                && ty(output).dtype.bytes() == ty(input).dtype.bytes()
        };
        outputs.iter().zip(written).position(same)
    }
}
