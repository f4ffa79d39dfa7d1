//! What a training step was made from, as a plan carries it.

use super::{Recompute, Step, TrainError, TrainOptions, recompute::recompute, step};
use planc_ir::Graph;
use serde::{Deserialize, Serialize};

/// Everything that makes the step that was planned out of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What was asked for.
    pub step: TrainOptions,
    /// What is computed again in the backward phase.
    pub recompute: Recompute,
    /// Whether weights are gathered again for the backward phase.
    pub gather_again: bool,
    /// How it is cut into the stages of a pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineSettings>,
}

/// How a step is cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineSettings {
    /// The forward nodes before which it is cut.
    pub cuts: Vec<usize>,
    /// The stage that holds each part.
    pub holders: Vec<u32>,
    /// What each stage computes again in the backward phase.
    pub recompute: Vec<Recompute>,
    /// Whether each stage gathers weights again for the backward phase.
    pub gather_again: Vec<bool>,
}

impl Settings {
    /// The step of a model, with what it recomputes.
    ///
    /// # Errors
    /// If the loss or a parameter's gradient cannot be had.
    pub fn step(&self, model: &Graph) -> Result<Step, TrainError> {
        let mut step = step(model, &self.step)?;
        step.graph = recompute(&step.graph, self.recompute);
        Ok(step)
    }
}
