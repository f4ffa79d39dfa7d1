//! When each rank ran each instruction: measured only where it is asked for.

use crate::{Executor, RunError, Session, TrainStep};
use planc_ir::Tensor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a rank did in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct RankTimes {
    /// Its number among all of the plan.
    pub rank: u32,
    /// The index of its stage.
    pub stage: usize,
    /// The instructions, in the order in which they ran.
    pub instrs: Vec<InstrTime>,
}

/// An instruction, and when it ran, in microseconds since the step began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstrTime {
    /// Its number in the program.
    pub instr: usize,
    /// For which micro-batch, of what runs for each.
    pub micro_batch: Option<u32>,
    /// When the one before it was done.
    pub start_us: f64,
    /// When it was done.
    pub end_us: f64,
}

/// Results by name.
type Outputs = Vec<(String, Tensor)>;

impl Executor {
    /// [`step`](Executor::step), and when each rank ran what.
    ///
    /// # Errors
    /// As those of `step`.
    pub fn step_timed(
        &mut self,
        micro_batches: &[BTreeMap<String, Tensor>],
    ) -> Result<(Outputs, Vec<RankTimes>), RunError> {
        let ranks: Vec<(u32, usize)> = self.ranks.iter().map(|r| (r.number, r.stage)).collect();
        let seen: BTreeMap<u32, Mutex<Vec<Instant>>> =
            ranks.iter().map(|&(rank, _)| (rank, Mutex::default())).collect();
        let begun = Instant::now();
        let outputs = self.run_observed(micro_batches, &|rank, _| {
            if let Some(seen) = seen.get(&rank) {
                // Each rank has a list of its own, and pushing leaves it whole.
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            }
        })?;
        let times = ranks.into_iter().map(|(rank, stage)| {
            let seen = seen[&rank].lock().unwrap_or_else(PoisonError::into_inner);
            let us = |at: &Instant| at.saturating_duration_since(begun).as_secs_f64() * 1e6;
            let spans = seen.windows(2).map(|pair| (us(&pair[0]), us(&pair[1])));
            let instrs = self.sequence(stage).zip(spans);
            let instrs = instrs.map(|((instr, micro_batch), (start_us, end_us))| InstrTime {
                instr,
                micro_batch,
                start_us,
                end_us,
            });
            RankTimes { rank, stage, instrs: instrs.collect() }
        });
        let times = times.collect();
        Ok((outputs, times))
    }

    /// The instructions of a stage as they run, and for which micro-batch.
    fn sequence(&self, stage: usize) -> impl Iterator<Item = (usize, Option<u32>)> {
        let stage = &self.stages[stage];
        let once = stage.repeated()..stage.program.instrs.len();
        let with = |instrs: Range<usize>, m: Option<u32>| instrs.map(move |instr| (instr, m));
        let runs = stage.runs().into_iter();
        runs.flat_map(move |run| with(run.instrs, Some(run.micro_batch))).chain(with(once, None))
    }
}

impl Session {
    /// [`run`](Session::run), and when each rank ran what.
    ///
    /// # Errors
    /// As those of `run`.
    pub fn run_timed(
        &mut self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<(Outputs, Vec<RankTimes>), RunError> {
        let (outputs, times) = self.executor.step_timed(std::slice::from_ref(inputs))?;
        Ok((self.in_order(outputs), times))
    }

    /// [`train_step`](Session::train_step), and when each rank ran what.
    ///
    /// # Errors
    /// As those of `train_step`.
    pub fn train_step_timed(
        &mut self,
        micro_batches: &[BTreeMap<String, Tensor>],
        learning_rate: f32,
    ) -> Result<(TrainStep, Vec<RankTimes>), RunError> {
        let mut times = Vec::new();
        let step = self.train_step_by(micro_batches, learning_rate, |executor, inputs| {
            let outputs;
            (outputs, times) = executor.step_timed(inputs)?;
            Ok(outputs)
        })?;
        Ok((step, times))
    }
}
