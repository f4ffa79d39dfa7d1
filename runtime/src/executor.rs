//! Runs a program: each rank a thread with its own arena, instructions in order.

use crate::comm::local::LocalComm;
use crate::comm::reshard::Reshard;
use crate::device::bytes::AlignedBytes;
use crate::device::cpu::{self, In, Out, reference};
use crate::operands::Operands;
use crate::region;
use crate::threads::on_each_rank;
use crate::{KernelError, RunError, Weights};
use planc_ir::program::verify::verify;
use planc_ir::program::{BufferId, Instr, Kernel, Local, Program};
use planc_ir::{EvalError, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;

/// More ranks than this are not run as threads of one process.
pub const MAX_RANKS: u64 = 1024;

/// A program with its weights in place, ready to run any number of times.
#[derive(Debug)]
pub struct Executor {
    program: Program,
    /// For each instruction, the dynamic buffers that it is the last to read.
    freed: Vec<Vec<BufferId>>,
    ranks: Vec<Rank>,
}

/// One rank's memory.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) number: u32,
    /// The instruction that it runs; none while it loads.
    pub(crate) current: Option<usize>,
    /// This rank's part of each buffer.
    locals: Vec<Local>,
    arena: AlignedBytes,
    /// What the dynamic buffers hold; one that nothing reads any more is dropped.
    dynamic: BTreeMap<BufferId, Tensor>,
    weight_bytes_read: u64,
}

/// A whole tensor as bytes.
struct Whole {
    local: Local,
    bytes: Vec<u8>,
}

impl Whole {
    fn new(tensor: &Tensor) -> Self {
        Self { local: region::whole(tensor.ty()), bytes: tensor.to_bytes() }
    }
}

/// Runs a program once. Inputs and results are whole tensors.
pub fn execute(
    program: &Program,
    weights: &dyn Weights,
    constants: &BTreeMap<String, Tensor>,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<(String, Tensor)>, RunError> {
    Executor::new(program.clone(), weights, constants)?.run(inputs)
}

impl Executor {
    /// Checks a program, makes every rank's arena, and loads its parts of weights and constants.
    pub fn new(
        program: Program,
        weights: &dyn Weights,
        constants: &BTreeMap<String, Tensor>,
    ) -> Result<Self, RunError> {
        check(&program)?;
        let mut ranks = (0..program.mesh.ranks())
            .map(|rank| {
                let coord = program.mesh.coord(rank);
                let bytes = program.arena_bytes;
                Ok(Rank {
                    number: rank,
                    current: None,
                    locals: program
                        .buffers
                        .iter()
                        .map(|b| b.local(&program.mesh, &coord))
                        .collect(),
                    arena: AlignedBytes::zeroed(bytes).ok_or(RunError::Memory { rank, bytes })?,
                    dynamic: BTreeMap::new(),
                    weight_bytes_read: 0,
                })
            })
            .collect::<Result<Vec<Rank>, RunError>>()?;
        let constants = program
            .constants
            .iter()
            .map(|&id| {
                let b = program.buffer(id);
                let tensor = constants
                    .get(&b.name)
                    .filter(|t| *t.ty() == b.ty)
                    .ok_or_else(|| RunError::Constant { name: b.name.clone(), ty: b.ty.clone() })?;
                Ok((id, Whole::new(tensor)))
            })
            .collect::<Result<Vec<_>, RunError>>()?;
        on_each_rank(&program, &mut ranks, |rank, _| {
            for (id, whole) in &constants {
                rank.fill(&program, *id, whole);
            }
            for &id in &program.weights {
                rank.load(&program, id, weights)?;
            }
            Ok(())
        })?;
        Ok(Self { freed: last_reads(&program), program, ranks })
    }

    /// Runs the program, of one micro-batch. Inputs and results are whole tensors; results come in the
    /// program's order.
    pub fn run(
        &mut self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        self.run_observed(std::slice::from_ref(inputs), &|_, _| {})
    }

    /// Runs a step: each micro-batch on its inputs, then the update. State stays for the next step.
    pub fn step(
        &mut self,
        micro_batches: &[BTreeMap<String, Tensor>],
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        self.run_observed(micro_batches, &|_, _| {})
    }

    /// Runs a step and calls `observe(rank, n)` on each rank's thread when it has done `n` instructions,
    /// from none to all: for measurements.
    pub fn run_observed(
        &mut self,
        micro_batches: &[BTreeMap<String, Tensor>],
        observe: &(dyn Fn(u32, usize) + Sync),
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let program = &self.program;
        let expected = program.micro_batches.map_or(1, |m| m.count as usize);
        if micro_batches.len() != expected {
            return Err(RunError::MicroBatches { expected, found: micro_batches.len() });
        }
        let inputs: Vec<_> =
            micro_batches.iter().map(|m| check_inputs(program, m)).collect::<Result<_, _>>()?;
        let repeated = program.micro_batches.map_or(program.instrs.len(), |m| m.instrs);
        let freed = &self.freed;
        on_each_rank(program, &mut self.ranks, |rank, comm| {
            for &id in &program.accumulators {
                rank.clear(program, id);
            }
            let mut run = |rank: &mut Rank, instrs: Range<usize>| -> Result<(), RunError> {
                for i in instrs {
                    rank.current = Some(i);
                    rank.instr(program, i, comm)?;
                    for id in &freed[i] {
                        rank.dynamic.remove(id);
                    }
                    observe(rank.number, i + 1);
                }
                Ok(())
            };
            observe(rank.number, 0);
            for inputs in &inputs {
                rank.current = None;
                for (id, whole) in inputs {
                    rank.fill(program, *id, whole);
                }
                run(rank, 0..repeated)?;
            }
            run(rank, repeated..program.instrs.len())
        })?;
        let output = |&id| {
            if program.buffer(id).dynamic { self.dynamic_output(id) } else { self.output(id) }
        };
        program.outputs.iter().map(output).collect()
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// For each rank, how many bytes of weights it read.
    pub fn weight_bytes_read(&self) -> Vec<u64> {
        self.ranks.iter().map(|r| r.weight_bytes_read).collect()
    }

    /// Joins the ranks' parts of an output.
    fn output(&self, id: BufferId) -> Result<(String, Tensor), RunError> {
        let (program, buffer) = (&self.program, self.program.buffer(id));
        let failed = |source| RunError::Output { name: buffer.name.clone(), source };
        let len = buffer.ty.bytes();
        let mut bytes = Vec::new();
        if usize::try_from(len).ok().and_then(|n| bytes.try_reserve_exact(n).ok()).is_none() {
            let limit_bytes = planc_ir::tensor::MAX_TENSOR_BYTES;
            return Err(failed(EvalError::TooLarge { bytes: len, limit_bytes }));
        }
        bytes.resize(len as usize, 0);
        let whole = region::whole(&buffer.ty);
        for rank in &self.ranks {
            // Of several copies of one part, the one of the lowest rank counts; the others must be
            // the same, since all ranks run the same instructions.
            let mut home = program.mesh.coord(rank.number);
            for a in program.mesh.axis_ids() {
                if buffer.sharding.split_axes().all(|s| s != a) {
                    home[a.index()] = 0;
                }
            }
            let home = program.mesh.rank_at(&home);
            let part = &rank.arena[rank.range(program, id)];
            if home == rank.number {
                region::copy(&rank.locals[id.index()], part, &whole, &mut bytes);
            } else {
                let original = &self.ranks[home as usize];
                if part != &original.arena[original.range(program, id)] {
                    let name = buffer.name.clone();
                    return Err(RunError::Diverged { name, rank: home, replica: rank.number });
                }
            }
        }
        let tensor = Tensor::from_bytes(buffer.ty.clone(), &bytes).map_err(failed)?;
        Ok((buffer.name.clone(), tensor))
    }

    /// The first rank's copy of an output that has no place in the arena; the others must be the same.
    fn dynamic_output(&self, id: BufferId) -> Result<(String, Tensor), RunError> {
        let name = self.program.buffer(id).name.clone();
        let mut copies = self.ranks.iter().map(|rank| (rank.number, rank.dynamic.get(&id)));
        let Some((home, Some(original))) = copies.next() else {
            let source = EvalError::Invalid("no instruction has made it".into());
            return Err(RunError::Output { name, source });
        };
        // As bytes, so that NaN is the same as itself.
        let bytes = original.to_bytes();
        let is_same = |t: &Tensor| t.ty() == original.ty() && t.to_bytes() == bytes;
        match copies.find(|(_, copy)| !copy.is_some_and(is_same)) {
            None => Ok((name, original.clone())),
            Some((replica, _)) => Err(RunError::Diverged { name, rank: home, replica }),
        }
    }
}

/// Checks what the runtime relies on: everything that can be known before a program runs.
fn check(program: &Program) -> Result<(), RunError> {
    let ranks = program.mesh.axes.iter().fold(1u64, |n, a| n.saturating_mul(u64::from(a.size)));
    if ranks > MAX_RANKS {
        return Err(RunError::Ranks { ranks, limit: MAX_RANKS });
    }
    let findings = verify(program);
    if findings.is_empty() { Ok(()) } else { Err(RunError::Program { findings }) }
}

/// For each instruction, the dynamic buffers that nothing reads after it. Outputs are read in the end.
fn last_reads(program: &Program) -> Vec<Vec<BufferId>> {
    let mut read = vec![false; program.buffers.len()];
    program.outputs.iter().for_each(|id| read[id.index()] = true);
    let mut freed: Vec<Vec<BufferId>> = Vec::with_capacity(program.instrs.len());
    for instr in program.instrs.iter().rev() {
        let touched = instr.writes().iter().chain(instr.reads());
        let is_last = |id: &BufferId| {
            !std::mem::replace(&mut read[id.index()], true) && program.buffer(*id).dynamic
        };
        freed.push(touched.copied().filter(is_last).collect());
    }
    freed.reverse();
    freed
}

/// The program's inputs, each with its tensor.
fn check_inputs(
    program: &Program,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<(BufferId, Whole)>, RunError> {
    let named: Vec<&str> =
        program.inputs.iter().map(|&i| program.buffer(i).name.as_str()).collect();
    if let Some(name) = inputs.keys().find(|n| !named.contains(&n.as_str())) {
        let inputs = named.iter().map(|n| format!("`{n}`")).collect();
        return Err(RunError::UnknownInput { name: name.clone(), inputs });
    }
    program
        .inputs
        .iter()
        .map(|&id| {
            let b = program.buffer(id);
            let (name, ty) = (b.name.clone(), b.ty.clone());
            match inputs.get(&b.name) {
                None => Err(RunError::MissingInput { name, ty }),
                Some(t) if *t.ty() != b.ty => {
                    Err(RunError::InputType { name, expected: ty, found: t.ty().clone() })
                }
                Some(t) => Ok((id, Whole::new(t))),
            }
        })
        .collect()
}

impl Rank {
    /// Where this rank's part of a buffer lies in its arena.
    fn range(&self, program: &Program, id: BufferId) -> Range<usize> {
        let buffer = program.buffer(id);
        if buffer.dynamic {
            return 0..0; // it has none
        }
        let begin = buffer.slot.offset as usize;
        begin..begin + self.locals[id.index()].ty.bytes() as usize
    }

    /// Copies this rank's part of a whole tensor into its buffer.
    fn fill(&mut self, program: &Program, id: BufferId, whole: &Whole) {
        let range = self.range(program, id);
        region::copy(&whole.local, &whole.bytes, &self.locals[id.index()], &mut self.arena[range]);
    }

    /// Reads this rank's part of a weight into its buffer.
    fn load(
        &mut self,
        program: &Program,
        id: BufferId,
        weights: &dyn Weights,
    ) -> Result<(), RunError> {
        let (range, name) = (self.range(program, id), &program.buffer(id).name);
        let read = weights
            .read(name, &self.locals[id.index()], &mut self.arena[range])
            .map_err(|source| RunError::Weight { rank: self.number, name: name.clone(), source })?;
        self.weight_bytes_read += read;
        Ok(())
    }

    /// Sets this rank's part of a buffer to zero.
    fn clear(&mut self, program: &Program, id: BufferId) {
        let range = self.range(program, id);
        self.arena[range].fill(0);
    }

    /// Runs one instruction.
    fn instr(
        &mut self,
        program: &Program,
        number: usize,
        comm: &mut LocalComm,
    ) -> Result<(), RunError> {
        let rank = self.number;
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
                let (from, to) = (program.buffer(*input), program.buffer(*output));
                let reshard = Reshard { mesh: &program.mesh, rank, from, to };
                let ranges = [self.range(program, *input), self.range(program, *output)];
                let [read, written] = ranges;
                Operands::split(&mut self.arena, &[read], &[written])
                    .and_then(|mut o| reshard.run(step, &o.inputs[0], o.outputs[0], comm))
                    .map_err(|source| RunError::Reshard {
                        rank,
                        instr: number,
                        value: from.name.clone(),
                        source,
                    })
            }
        }
    }

    fn kernel(
        &mut self,
        program: &Program,
        kernel: &Kernel,
        inputs: &[BufferId],
        outputs: &[BufferId],
    ) -> Result<(), KernelError> {
        let read: Vec<_> = inputs.iter().map(|&id| self.range(program, id)).collect();
        let written: Vec<_> = outputs.iter().map(|&id| self.range(program, id)).collect();
        if matches!(kernel, Kernel::Copy) && read == written {
            return Ok(()); // a view of its input: the same bytes in the same place
        }
        let operands = Operands::split(&mut self.arena, &read, &written)?;
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
            _ => cpu::run(kernel, &inputs, &mut results),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planc_ir::program::{Buffer, Slot};
    use planc_ir::sharding::{Mesh, Sharding};
    use planc_ir::{DType, TensorType};

    #[test]
    fn dynamic_buffers_are_dropped_after_their_last_read() {
        let buffer = |dynamic| Buffer {
            name: String::new(),
            ty: TensorType::new(DType::F32, []),
            sharding: Sharding::replicated(0),
            dynamic,
            slot: Slot::default(),
        };
        let instr = |inputs: &[u32], output: u32| Instr::Kernel {
            node: String::new(),
            kernel: Kernel::Copy,
            inputs: inputs.iter().map(|&b| BufferId(b)).collect(),
            outputs: vec![BufferId(output)],
        };
        let program = Program {
            mesh: Mesh::new([("r", 1)]),
            buffers: [false, true, true, true, true].map(buffer).to_vec(),
            inputs: vec![BufferId(0)],
            weights: vec![],
            constants: vec![],
            accumulators: vec![],
            micro_batches: None,
            carried: vec![],
            // Nothing reads 3, the caller reads 4.
            instrs: vec![instr(&[0], 1), instr(&[1], 2), instr(&[0], 3), instr(&[2, 1, 2], 4)],
            outputs: vec![BufferId(4)],
            arena_bytes: 0,
        };
        let freed: Vec<Vec<u32>> =
            last_reads(&program).iter().map(|l| l.iter().map(|b| b.0).collect()).collect();
        assert_eq!(freed, [vec![], vec![], vec![3], vec![2, 1]]);
    }
}
