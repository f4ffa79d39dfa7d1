//! A stage of a plan: its program, and what follows from it for those who run it.

use crate::comm::transfer::Route;
use planc_ir::plan::Stage;
use planc_ir::program::{BufferId, Instr, Pass, Program};
use std::collections::BTreeMap;
use std::ops::Range;

/// A stage that is run.
#[derive(Debug)]
pub struct StageProgram {
    /// Its index in the plan.
    pub index: usize,
    /// What its first rank is among all of the plan.
    pub first_rank: u32,
    pub program: Program,
    /// For each instruction, the dynamic buffers that it is the last to read.
    pub freed: Vec<Vec<BufferId>>,
    /// For each instruction that sends or receives, what goes to or comes from whom.
    pub routes: BTreeMap<usize, Route>,
}

/// Instructions that run for one micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub instrs: Range<usize>,
    pub micro_batch: u32,
    /// Whether they are the first for the micro-batch.
    pub begins: bool,
}

impl StageProgram {
    /// The stages of a plan that [`check`](planc_ir::plan::pipeline::check) accepts.
    pub fn all(stages: Vec<Stage>) -> Vec<Self> {
        let mut routes = routes(&stages);
        let stages = stages.into_iter().zip(&mut routes).enumerate();
        stages
            .map(|(index, (stage, routes))| Self {
                index,
                first_rank: stage.first_rank,
                freed: last_reads(&stage.program),
                program: stage.program,
                routes: std::mem::take(routes),
            })
            .collect()
    }

    /// How many micro-batches a step has.
    pub fn micro_batches(&self) -> u32 {
        self.program.micro_batches.map_or(1, |m| m.count)
    }

    /// The number of the first instruction that runs once a step.
    pub fn repeated(&self) -> usize {
        self.program.micro_batches.map_or(self.program.instrs.len(), |m| m.instrs)
    }

    /// Whether an instruction runs for each micro-batch.
    pub fn is_repeated(&self, instr: usize) -> bool {
        instr < self.repeated()
    }

    /// What runs for the micro-batches, in order.
    pub fn runs(&self) -> Vec<Run> {
        let micro_batches = self.micro_batches();
        if self.program.passes.is_empty() {
            let instrs = 0..self.repeated();
            let run = |micro_batch| Run { instrs: instrs.clone(), micro_batch, begins: true };
            return (0..micro_batches).map(run).collect();
        }
        let mut passes: BTreeMap<(Pass, u32), Range<usize>> = BTreeMap::new();
        let mut begin = 0;
        for p in &self.program.passes {
            passes.insert((p.pass, p.chunk), begin..p.end);
            begin = p.end;
        }
        let mut begun = vec![false; micro_batches as usize];
        let runs = self.program.order.iter().map(|a| Run {
            instrs: passes.get(&(a.pass, a.chunk)).cloned().unwrap_or_default(),
            micro_batch: a.micro_batch,
            begins: !std::mem::replace(&mut begun[a.micro_batch as usize], true),
        });
        runs.collect()
    }
}

/// By stage and instruction, what is sent and received.
fn routes(stages: &[Stage]) -> Vec<BTreeMap<usize, Route>> {
    let mut routes: Vec<BTreeMap<usize, Route>> = stages.iter().map(|_| BTreeMap::new()).collect();
    let mut receivers = BTreeMap::new();
    for (stage, s) in stages.iter().enumerate() {
        for (at, instr) in s.program.instrs.iter().enumerate() {
            if let Instr::Receive { channel, buffer } = instr {
                receivers.insert(*channel, (stage, at, *buffer));
            }
        }
    }
    for (stage, s) in stages.iter().enumerate() {
        for (at, instr) in s.program.instrs.iter().enumerate() {
            if let Instr::Send { channel, buffer } = instr
                && let Some(&(other, received_at, received)) = receivers.get(channel)
            {
                let to = &stages[other];
                let from = (s, s.program.buffer(*buffer));
                let (sends, receives) =
                    Route::both(*channel, from, (to, to.program.buffer(received)));
                routes[stage].insert(at, sends);
                routes[other].insert(received_at, receives);
            }
        }
    }
    routes
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
