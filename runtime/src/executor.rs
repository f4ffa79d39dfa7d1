//! Runs a program: each rank a thread with its own arena, instructions in order.

use crate::rank::{MemoryUse, Rank, Whole};
use crate::region;
use crate::threads::on_each_rank;
use crate::{RunError, Weights};
use planc_ir::program::verify::verify;
use planc_ir::program::{BufferId, Program};
use planc_ir::{EvalError, Tensor, TensorType};
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
            .map(|rank| Rank::new(&program, rank))
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

    /// The memory that ranks have used since the program was loaded: of each figure, the largest rank's.
    pub fn memory_use(&self) -> MemoryUse {
        self.ranks.iter().fold(MemoryUse::default(), |most, rank| MemoryUse {
            arena_bytes: most.arena_bytes.max(rank.memory.arena_bytes),
            copied_bytes: most.copied_bytes.max(rank.memory.copied_bytes),
        })
    }

    /// The type of a weight.
    pub fn weight_type(&self, name: &str) -> Option<&TensorType> {
        self.weight(name).map(|id| &self.program.buffer(id).ty)
    }

    /// What a weight is now, as bytes: after a step, what state has become.
    pub fn weight_bytes(&self, name: &str) -> Result<Vec<u8>, RunError> {
        let id = self.weight(name).ok_or_else(|| RunError::NoWeight { name: name.to_string() })?;
        self.joined(id)
    }

    /// Loads weights anew, each rank its parts.
    pub fn reload(&mut self, names: &[String], weights: &dyn Weights) -> Result<(), RunError> {
        let find = |name: &String| {
            self.weight(name).ok_or_else(|| RunError::NoWeight { name: name.clone() })
        };
        let ids = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let program = &self.program;
        on_each_rank(program, &mut self.ranks, |rank, _| {
            rank.current = None;
            ids.iter().try_for_each(|&id| rank.load(program, id, weights))
        })
    }

    fn weight(&self, name: &str) -> Option<BufferId> {
        let mut weights = self.program.weights.iter().copied();
        weights.find(|&id| self.program.buffer(id).name == name)
    }

    fn output(&self, id: BufferId) -> Result<(String, Tensor), RunError> {
        let buffer = self.program.buffer(id);
        let name = buffer.name.clone();
        match Tensor::from_bytes(buffer.ty.clone(), &self.joined(id)?) {
            Ok(tensor) => Ok((name, tensor)),
            Err(source) => Err(RunError::Output { name, source }),
        }
    }

    /// Joins the ranks' parts of a buffer.
    fn joined(&self, id: BufferId) -> Result<Vec<u8>, RunError> {
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
            let (local, part) = rank.part(program, id);
            if home == rank.number {
                region::copy(local, part, &whole, &mut bytes);
            } else {
                let (_, original) = self.ranks[home as usize].part(program, id);
                if part != original {
                    let name = buffer.name.clone();
                    return Err(RunError::Diverged { name, rank: home, replica: rank.number });
                }
            }
        }
        Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;
    use planc_ir::program::{Buffer, Instr, Kernel, Slot};
    use planc_ir::sharding::{Mesh, Sharding};
    use planc_ir::{DType, TensorType};

    #[test]
    fn dynamic_buffers_are_dropped_after_their_last_read() {
        let buffer = |dynamic| Buffer {
            name: String::new(),
            ty: TensorType::new(DType::F32, []),
            sharding: Sharding::replicated(0),
            dynamic,
            copies: 1,
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
            passes: vec![],
            order: vec![],
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
