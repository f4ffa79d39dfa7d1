//! Runs a plan for a model.

use crate::weights::{PlanWeights, decode};
use crate::{Executor, MemoryUse, RunError, training};
use planc_ir::digest::model_digest;
use planc_ir::plan::{Plan, Source, Training};
use planc_ir::{Tensor, TensorType};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// A plan with its weights in place, ready to run any number of times.
#[derive(Debug)]
pub struct Session {
    pub(crate) executor: Executor,
    /// The names of the model's outputs, in its order.
    outputs: Vec<String>,
    /// What the plan says of training, if its steps train.
    pub(crate) training: Option<Training>,
    /// Steps of training that led to the present state.
    pub(crate) steps_done: u64,
}

impl Session {
    /// Checks that the plan is one for the model at `model` and that its programs are valid, and loads
    /// every rank's slices of the weights. External weight files are looked for beside the model.
    pub fn load(plan: &Plan, model: &Path) -> Result<Self, RunError> {
        check_model(plan, model)?;
        let weights = PlanWeights::new(model, &plan.weights)?;
        let constants = plan
            .constants
            .iter()
            .map(|c| {
                let bytes = decode("constant", &c.name, &c.ty, &c.data)?;
                let tensor = Tensor::from_bytes(c.ty.clone(), &bytes).map_err(|e| {
                    let why = e.to_string();
                    RunError::Contents { what: "constant", name: c.name.clone(), why }
                })?;
                Ok((c.name.clone(), tensor))
            })
            .collect::<Result<BTreeMap<_, _>, RunError>>()?;
        let stages = plan.stages.clone();
        let executor = Executor::of_stages(stages, &plan.channels, &weights, &constants)?;
        if let Some(training) = &plan.training {
            training::check(training, &executor)?;
        }
        let outputs = plan.model.outputs.iter().map(|o| o.name.clone()).collect();
        Ok(Self { executor, outputs, training: plan.training.clone(), steps_done: 0 })
    }

    /// Runs the plan. Inputs and results are whole tensors; results come in the model's order.
    pub fn run(
        &mut self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let outputs = self.executor.run(inputs)?;
        Ok(self.in_order(outputs))
    }

    /// Results of several stages in the model's order.
    pub(crate) fn in_order(&self, mut outputs: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
        outputs.sort_by_cached_key(|(name, _)| {
            self.outputs.iter().position(|o| o == name).unwrap_or(self.outputs.len())
        });
        outputs
    }

    /// The memory that ranks have used: of each figure, the largest rank's.
    pub fn memory_use(&self) -> MemoryUse {
        self.executor.memory_use()
    }

    /// The same for each stage.
    pub fn memory_of_stages(&self) -> Vec<MemoryUse> {
        self.executor.memory_of_stages()
    }

    /// For each rank, how many bytes of weights it read.
    pub fn weight_bytes_read(&self) -> Vec<u64> {
        self.executor.weight_bytes_read()
    }
}

/// Compares the model's digest with the plan's. It covers everything but the weights' bytes.
fn check_model(plan: &Plan, model: &Path) -> Result<(), RunError> {
    let ranges: Vec<Range<u64>> =
        plan.weights.iter().filter_map(|w| in_model(&w.ty, &w.source)).collect();
    let path = || model.to_path_buf();
    let found = match model_digest(model, &ranges) {
        Ok(found) => found,
        // The plan's weights do not even lie inside this file.
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => e.to_string(),
        Err(source) => return Err(RunError::Model { path: path(), source }),
    };
    if found == plan.model.digest {
        Ok(())
    } else {
        let expected = plan.model.digest.clone();
        Err(RunError::OtherModel { path: path(), expected, found })
    }
}

/// The bytes of the model file that a weight lies in, if it lies there.
fn in_model(ty: &TensorType, source: &Source) -> Option<Range<u64>> {
    match source {
        Source::File { location: None, offset } => Some(*offset..offset.saturating_add(ty.bytes())),
        Source::Cast { from, source } => {
            in_model(&TensorType::new(*from, ty.shape.clone()), source)
        }
        _ => None,
    }
}
