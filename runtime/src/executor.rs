//! Runs programs: each rank a thread with its own arena, instructions in order.

use crate::rank::{MemoryUse, Rank, Whole};
use crate::region;
use crate::stage::StageProgram;
use crate::threads::on_each_rank;
use crate::{RunError, Weights};
use planc_ir::plan::{Channel, Stage, pipeline};
use planc_ir::program::verify::verify;
use planc_ir::program::{BufferId, Program};
use planc_ir::{EvalError, Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// More ranks than this are not run as threads of one process.
pub const MAX_RANKS: u64 = 1024;

/// A program, or those of the stages of a pipeline, with their weights in place, ready to run any number of times.
#[derive(Debug)]
pub struct Executor {
    pub(crate) stages: Vec<StageProgram>,
    /// Of all stages, one after the other.
    pub(crate) ranks: Vec<Rank>,
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
        let stage = Stage { first_rank: 0, strategy: Vec::new(), program };
        Self::of_stages(vec![stage], &[], weights, constants)
    }

    /// The same for the stages of a plan, which hand on values by its channels.
    pub fn of_stages(
        stages: Vec<Stage>,
        channels: &[Channel],
        weights: &dyn Weights,
        constants: &BTreeMap<String, Tensor>,
    ) -> Result<Self, RunError> {
        check(&stages, channels)?;
        let stages = StageProgram::all(stages);
        let mut ranks = Vec::new();
        let mut loaded = Vec::new();
        for stage in &stages {
            for position in 0..stage.program.mesh.ranks() {
                ranks.push(Rank::new(stage, position)?);
            }
            loaded.push(check_constants(&stage.program, constants)?);
        }
        on_each_rank(&stages, &mut ranks, |stage, rank, _| {
            let program = &stage.program;
            for (id, whole) in &loaded[stage.index] {
                rank.fill(program, *id, whole);
            }
            for &id in &program.weights {
                rank.load(program, id, weights)?;
            }
            Ok(())
        })?;
        Ok(Self { stages, ranks })
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

    /// Runs a step and calls `observe(rank, n)` on each rank's thread when it begins, with 0, and then whenever it
    /// has done an instruction, with the number of the one after it: for measurements.
    pub fn run_observed(
        &mut self,
        micro_batches: &[BTreeMap<String, Tensor>],
        observe: &(dyn Fn(u32, usize) + Sync),
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let expected = self.stages.first().map_or(1, |s| s.micro_batches() as usize);
        if micro_batches.len() != expected {
            return Err(RunError::MicroBatches { expected, found: micro_batches.len() });
        }
        for inputs in micro_batches {
            check_names(&self.stages, inputs)?;
        }
        let of_stage = |stage: &StageProgram| {
            let micro_batches = micro_batches.iter();
            micro_batches.map(|m| check_inputs(&stage.program, m)).collect::<Result<Vec<_>, _>>()
        };
        let inputs = self.stages.iter().map(of_stage).collect::<Result<Vec<_>, _>>()?;
        on_each_rank(&self.stages, &mut self.ranks, |stage, rank, comm| {
            let program = &stage.program;
            for &id in &program.accumulators {
                rank.clear(program, id);
            }
            let mut run = |rank: &mut Rank, instrs: Range<usize>| -> Result<(), RunError> {
                for i in instrs {
                    rank.current = Some(i);
                    rank.instr(stage, i, comm)?;
                    for id in &stage.freed[i] {
                        rank.dynamic.remove(id);
                    }
                    observe(rank.number, i + 1);
                }
                Ok(())
            };
            observe(rank.number, 0);
            for part in stage.runs() {
                rank.micro_batch = part.micro_batch;
                if part.begins {
                    rank.current = None;
                    for (id, whole) in &inputs[stage.index][part.micro_batch as usize] {
                        rank.fill(program, *id, whole);
                    }
                }
                run(rank, part.instrs)?;
            }
            rank.micro_batch = stage.micro_batches().saturating_sub(1);
            run(rank, stage.repeated()..program.instrs.len())
        })?;
        self.outputs()
    }

    /// The program; of a pipeline, that of its first stage.
    pub fn program(&self) -> &Program {
        &self.stages[0].program
    }

    /// The programs of all stages.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.stages.iter().map(|s| &s.program)
    }

    /// For each rank, how many bytes of weights it read.
    pub fn weight_bytes_read(&self) -> Vec<u64> {
        self.ranks.iter().map(|r| r.weight_bytes_read).collect()
    }

    /// The memory that ranks have used since the program was loaded: of each figure, the largest rank's.
    pub fn memory_use(&self) -> MemoryUse {
        self.memory_of_stages().into_iter().fold(MemoryUse::default(), MemoryUse::most)
    }

    /// The same for each stage.
    pub fn memory_of_stages(&self) -> Vec<MemoryUse> {
        let mut stages = vec![MemoryUse::default(); self.stages.len()];
        for rank in &self.ranks {
            stages[rank.stage] = stages[rank.stage].most(rank.memory);
        }
        stages
    }

    /// The type of a weight.
    pub fn weight_type(&self, name: &str) -> Option<&TensorType> {
        self.holders(name).map(|(stage, id)| &stage.program.buffer(id).ty).next()
    }

    /// What a weight is now, as bytes: after a step, what state has become. Stages that hold it all hold the same.
    pub fn weight_bytes(&self, name: &str) -> Result<Vec<u8>, RunError> {
        let mut holders = self.holders(name);
        let first = holders.next();
        let (stage, id) = first.ok_or_else(|| RunError::NoWeight { name: name.to_string() })?;
        let bytes = self.joined(stage, id)?;
        for (other, id) in holders {
            if self.joined(other, id)? != bytes {
                let (rank, replica) = (stage.first_rank, other.first_rank);
                return Err(RunError::Diverged { name: name.to_string(), rank, replica });
            }
        }
        Ok(bytes)
    }

    /// Loads weights anew, each rank its parts.
    pub fn reload(&mut self, names: &[String], weights: &dyn Weights) -> Result<(), RunError> {
        let mut ids = vec![Vec::new(); self.stages.len()];
        for name in names {
            let before = ids.iter().map(Vec::len).sum::<usize>();
            self.holders(name).for_each(|(stage, id)| ids[stage.index].push(id));
            if ids.iter().map(Vec::len).sum::<usize>() == before {
                return Err(RunError::NoWeight { name: name.clone() });
            }
        }
        on_each_rank(&self.stages, &mut self.ranks, |stage, rank, _| {
            rank.current = None;
            let mut ids = ids[stage.index].iter();
            ids.try_for_each(|&id| rank.load(&stage.program, id, weights))
        })
    }

    /// The stages that hold a weight.
    fn holders(&self, name: &str) -> impl Iterator<Item = (&StageProgram, BufferId)> {
        self.stages.iter().filter_map(move |stage| {
            let mut weights = stage.program.weights.iter().copied();
            let id = weights.find(|&id| stage.program.buffer(id).name == name)?;
            Some((stage, id))
        })
    }

    /// The results, stage after stage. A value that several stages give is the first one's.
    fn outputs(&self) -> Result<Vec<(String, Tensor)>, RunError> {
        let mut outputs: Vec<(String, Tensor)> = Vec::new();
        for stage in &self.stages {
            let before = outputs.len();
            for &id in &stage.program.outputs {
                let buffer = stage.program.buffer(id);
                if outputs[..before].iter().any(|(name, _)| *name == buffer.name) {
                    continue;
                }
                outputs.push(if buffer.dynamic {
                    self.dynamic_output(stage, id)?
                } else {
                    self.output(stage, id)?
                });
            }
        }
        Ok(outputs)
    }

    fn output(&self, stage: &StageProgram, id: BufferId) -> Result<(String, Tensor), RunError> {
        let buffer = stage.program.buffer(id);
        let name = buffer.name.clone();
        match Tensor::from_bytes(buffer.ty.clone(), &self.joined(stage, id)?) {
            Ok(tensor) => Ok((name, tensor)),
            Err(source) => Err(RunError::Output { name, source }),
        }
    }

    /// The ranks of a stage.
    fn ranks_of(&self, stage: &StageProgram) -> &[Rank] {
        let begin = self.ranks.partition_point(|rank| rank.stage < stage.index);
        let end = self.ranks.partition_point(|rank| rank.stage <= stage.index);
        &self.ranks[begin..end]
    }

    /// Joins the parts of a buffer that the ranks of its stage hold.
    fn joined(&self, stage: &StageProgram, id: BufferId) -> Result<Vec<u8>, RunError> {
        let (program, buffer) = (&stage.program, stage.program.buffer(id));
        let failed = |source| RunError::Output { name: buffer.name.clone(), source };
        let len = buffer.ty.bytes();
        let mut bytes = Vec::new();
        if usize::try_from(len).ok().and_then(|n| bytes.try_reserve_exact(n).ok()).is_none() {
            let limit_bytes = planc_ir::tensor::MAX_TENSOR_BYTES;
            return Err(failed(EvalError::TooLarge { bytes: len, limit_bytes }));
        }
        bytes.resize(len as usize, 0);
        let whole = region::whole(&buffer.ty);
        let ranks = self.ranks_of(stage);
        for rank in ranks {
            // Of several copies of one part, the one of the lowest rank counts; the others must be
            // the same, since all ranks run the same instructions.
            let mut home = program.mesh.coord(rank.position);
            for a in program.mesh.axis_ids() {
                if buffer.sharding.split_axes().all(|s| s != a) {
                    home[a.index()] = 0;
                }
            }
            let home = &ranks[program.mesh.rank_at(&home) as usize];
            let (local, part) = rank.part(program, id);
            if home.number == rank.number {
                region::copy(local, part, &whole, &mut bytes);
            } else {
                let (_, original) = home.part(program, id);
                if part != original {
                    let name = buffer.name.clone();
                    let (rank, replica) = (home.number, rank.number);
                    return Err(RunError::Diverged { name, rank, replica });
                }
            }
        }
        Ok(bytes)
    }

    /// The first rank's copy of an output that has no place in the arena; the others must be the same.
    fn dynamic_output(
        &self,
        stage: &StageProgram,
        id: BufferId,
    ) -> Result<(String, Tensor), RunError> {
        let name = stage.program.buffer(id).name.clone();
        let ranks = self.ranks_of(stage).iter();
        let mut copies = ranks.map(|rank| (rank.number, rank.dynamic.get(&id)));
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
fn check(stages: &[Stage], channels: &[Channel]) -> Result<(), RunError> {
    let sizes = |s: &Stage| {
        s.program.mesh.axes.iter().fold(1u64, |n, a| n.saturating_mul(u64::from(a.size)))
    };
    let ranks = stages.iter().map(sizes).fold(0, u64::saturating_add);
    if ranks > MAX_RANKS {
        return Err(RunError::Ranks { ranks, limit: MAX_RANKS });
    }
    for stage in stages {
        let findings = verify(&stage.program);
        if !findings.is_empty() {
            return Err(RunError::Program { findings });
        }
    }
    let findings = pipeline::check(stages, channels);
    if findings.is_empty() { Ok(()) } else { Err(RunError::Pipeline { findings }) }
}

/// The program's constants, each with its tensor.
fn check_constants(
    program: &Program,
    constants: &BTreeMap<String, Tensor>,
) -> Result<Vec<(BufferId, Whole)>, RunError> {
    let find = |&id: &BufferId| {
        let b = program.buffer(id);
        let tensor = constants
            .get(&b.name)
            .filter(|t| *t.ty() == b.ty)
            .ok_or_else(|| RunError::Constant { name: b.name.clone(), ty: b.ty.clone() })?;
        Ok((id, Whole::new(tensor)))
    };
    program.constants.iter().map(find).collect()
}

/// Refuses what is an input of no stage.
fn check_names(stages: &[StageProgram], inputs: &BTreeMap<String, Tensor>) -> Result<(), RunError> {
    let inputs_of = |s: &'_ StageProgram| -> Vec<String> {
        s.program.inputs.iter().map(|&i| s.program.buffer(i).name.clone()).collect()
    };
    let mut named: Vec<String> = stages.iter().flat_map(inputs_of).collect();
    match inputs.keys().find(|name| !named.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let mut seen = BTreeSet::new();
            named.retain(|name| seen.insert(name.clone()));
            let inputs = named.iter().map(|n| format!("`{n}`")).collect();
            Err(RunError::UnknownInput { name: name.clone(), inputs })
        }
    }
}

/// The program's inputs, each with its tensor.
fn check_inputs(
    program: &Program,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<(BufferId, Whole)>, RunError> {
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
