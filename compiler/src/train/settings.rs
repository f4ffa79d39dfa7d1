//! What a training step was made from, as a plan carries it.

use super::{PipelineError, Recompute, Step, TrainError, TrainOptions, recompute::recompute, step};
use planc_ir::{Graph, Phase};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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

impl PipelineSettings {
    /// Whether a step can be cut so.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn check(&self, step: &Graph) -> Result<(), PipelineError> {
        let forward = step.nodes.partition_point(|n| n.phase == Phase::Forward);
        let mut before = 0;
        for &cut in &self.cuts {
            if cut <= before || cut >= forward {
                return Err(PipelineError::Cut { cut, forward });
            }
            before = cut;
        }
        let (cuts, holders) = (self.cuts.len(), self.holders.len());
        if holders != cuts + 1 {
            return Err(PipelineError::Holders { cuts, holders });
        }
        let distinct: BTreeSet<u32> = self.holders.iter().copied().collect();
        let stages = distinct.len();
        if let Some(stage) = (0..stages as u32).find(|stage| !distinct.contains(stage)) {
            return Err(PipelineError::NoPart { stage });
        }
        let policies = [
            (self.recompute.len(), "what they recompute"),
            (self.gather_again.len(), "what they gather again"),
        ];
        if let Some((found, what)) = policies.into_iter().find(|(found, _)| *found != stages) {
            return Err(PipelineError::Policies { stages, found, what });
        }
        let several: BTreeSet<u32> = self
            .holders
            .iter()
            .zip(self.chunks())
            .filter(|(_, chunk)| *chunk > 0)
            .map(|(&s, _)| s)
            .collect();
        for (stage, &recompute) in self.recompute.iter().enumerate() {
            if several.contains(&(stage as u32)) && recompute != Recompute::Nothing {
                return Err(PipelineError::Recompute { stage, recompute });
            }
        }
        Ok(())
    }

    /// By part, which of the parts of its stage it is.
    pub fn chunks(&self) -> Vec<u32> {
        let mut held = BTreeMap::new();
        let mut next = |stage: &u32| {
            let count: &mut u32 = held.entry(*stage).or_default();
            *count += 1;
            *count - 1
        };
        self.holders.iter().map(&mut next).collect()
    }
}
