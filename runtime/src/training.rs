//! Sessions that train.

use crate::{Executor, RunError, Session};
use planc_ir::plan::Training;
use planc_ir::program::{Buffer, BufferId, Program};
use planc_ir::{Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};

/// What a step of training gave.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainStep {
    /// The loss before the step's update.
    pub loss: f64,
    /// All outputs in the model's order, the loss among them.
    pub outputs: Vec<(String, Tensor)>,
}

impl Session {
    /// What the plan says of training.
    pub fn training(&self) -> Result<&Training, RunError> {
        self.training.as_ref().ok_or(RunError::NoTraining)
    }

    /// Steps that led to the present state, those before a checkpoint that was loaded among them.
    pub const fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// The inputs that each micro-batch has, with their types: all but the learning rate.
    pub fn batch_inputs(&self) -> Result<BTreeMap<&str, &TensorType>, RunError> {
        let rate = &self.training()?.learning_rate;
        let inputs = self.executor.programs().flat_map(|p| named(p, &p.inputs));
        let inputs = inputs.filter(|b| b.name != *rate);
        Ok(inputs.map(|b| (b.name.as_str(), &b.ty)).collect())
    }

    /// Runs one step: each micro-batch on its inputs, then the update.
    pub fn train_step(
        &mut self,
        micro_batches: &[BTreeMap<String, Tensor>],
        learning_rate: f32,
    ) -> Result<TrainStep, RunError> {
        self.train_step_by(micro_batches, learning_rate, Executor::step)
    }

    /// The same, where `step` runs the step.
    pub(crate) fn train_step_by(
        &mut self,
        micro_batches: &[BTreeMap<String, Tensor>],
        learning_rate: f32,
        step: impl FnOnce(
            &mut Executor,
            &[BTreeMap<String, Tensor>],
        ) -> Result<Vec<(String, Tensor)>, RunError>,
    ) -> Result<TrainStep, RunError> {
        let training = self.training.as_ref().ok_or(RunError::NoTraining)?;
        let ty = self
            .executor
            .programs()
            .flat_map(|p| named(p, &p.inputs))
            .find_map(|b| (b.name == training.learning_rate).then(|| b.ty.clone()))
            .ok_or_else(|| unsound("has no learning rate"))?;
        let rate = Tensor::from_f64(ty, |_| f64::from(learning_rate))
            .map_err(|source| RunError::Output { name: training.learning_rate.clone(), source })?;
        let with_rate = |inputs: &BTreeMap<String, Tensor>| {
            let mut inputs = inputs.clone();
            inputs.insert(training.learning_rate.clone(), rate.clone());
            inputs
        };
        let micro_batches: Vec<_> = micro_batches.iter().map(with_rate).collect();
        let loss_name = training.loss.clone();
        let outputs = step(&mut self.executor, &micro_batches)?;
        let outputs = self.in_order(outputs);
        self.steps_done = self.steps_done.saturating_add(1);
        let loss = outputs.iter().find(|(name, t)| *name == loss_name && t.len() == 1);
        let loss = loss.map(|(_, t)| t.f64_at(0)).ok_or_else(|| unsound("has no loss"))?;
        Ok(TrainStep { loss, outputs })
    }
}

fn named<'a>(program: &'a Program, ids: &'a [BufferId]) -> impl Iterator<Item = &'a Buffer> {
    ids.iter().map(|&id| program.buffer(id))
}

fn unsound(why: impl Into<String>) -> RunError {
    RunError::Training { why: why.into() }
}

/// Checks what a plan says of training against its programs.
pub fn check(training: &Training, executor: &Executor) -> Result<(), RunError> {
    let is_scalar = |b: &Buffer| b.ty.rank() == 0 && b.ty.dtype.is_float() && !b.dynamic;
    let inputs: Vec<&Buffer> = executor.programs().flat_map(|p| named(p, &p.inputs)).collect();
    let outputs: Vec<&Buffer> = executor.programs().flat_map(|p| named(p, &p.outputs)).collect();
    for (what, name, buffers) in
        [("an input", &training.learning_rate, inputs), ("an output", &training.loss, outputs)]
    {
        if !buffers.into_iter().any(|b| b.name == *name && is_scalar(b)) {
            return Err(unsound(format!("`{name}` is not {what} that is a floating-point scalar")));
        }
    }
    let says = training.micro_batches;
    let runs = executor.program().micro_batches.map_or(1, |m| m.count);
    if says != runs {
        return Err(unsound(format!("it has {says} micro-batches, the program {runs}")));
    }
    let mut changes = BTreeSet::new();
    for program in executor.programs() {
        let states = program.carried.iter().map(|c| c.state);
        let states = states.filter(|s| program.weights.contains(s));
        changes.extend(states.map(|s| program.buffer(s).name.as_str()));
    }
    let listed: BTreeSet<&str> = training.state.iter().map(String::as_str).collect();
    match changes.symmetric_difference(&listed).next() {
        None => Ok(()),
        Some(name) if listed.contains(name) => {
            Err(unsound(format!("`{name}` is listed as state, but no step changes it")))
        }
        Some(name) => {
            Err(unsound(format!("a step changes `{name}`, which is not listed as state")))
        }
    }
}
