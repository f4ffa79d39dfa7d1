//! What a plan is checked against.

use crate::rewrite::raise;
use crate::stages::{Stages, stages};
use crate::train::recompute::recompute;
use crate::train::{PipelineSettings, Settings, Step, TrainError};
use planc_ir::Graph;
use planc_ir::plan::{Channel, Training};
use std::collections::BTreeSet;

/// A model in the forms that the checks need.
#[derive(Debug)]
pub struct Graphs {
    /// What was planned: the raised model, or a training step made of it.
    pub planned: Graph,
    /// What each stage of the plan computes of it; without a pipeline, one computes all.
    pub stages: Vec<Expected>,
    /// The ways between them.
    pub channels: Vec<Channel>,
    /// What its numbers are compared with: the model as it was imported, or a step made of that.
    pub reference: Graph,
    /// Whether the reference is made of the raised model after all: not every op of exporters has a gradient,
    /// and raising may merge parameters.
    pub is_raised: bool,
    /// What a plan says of the step.
    pub training: Option<Training>,
}

/// What a stage of a plan is expected to compute.
#[derive(Debug)]
pub struct Expected {
    /// Its graph, with what it recomputes.
    pub graph: Graph,
    /// The chunk of each node; empty where there is one.
    pub chunk_of: Vec<u32>,
    /// Whether it gathers weights again for the backward phase.
    pub gather_again: bool,
}

impl Graphs {
    /// Of a model as it was imported.
    ///
    /// # Errors
    /// If the step cannot be made, or not be cut as the settings say.
    pub fn of(imported: Graph, settings: Option<&Settings>) -> Result<Self, TrainError> {
        let raised = raise(&imported).graph;
        let alone = |graph: &Graph, gather_again| {
            let (graph, chunk_of) = (graph.clone(), Vec::new());
            (vec![Expected { graph, chunk_of, gather_again }], Vec::new())
        };
        let Some(settings) = settings else {
            let (stages, channels) = alone(&raised, false);
            let (planned, reference) = (raised, imported);
            let (is_raised, training) = (false, None);
            return Ok(Self { planned, stages, channels, reference, is_raised, training });
        };
        let Step { graph: planned, training, .. } = settings.step(&raised)?;
        let (stages, channels) = match &settings.pipeline {
            Some(pipeline) => cut(&planned, pipeline)?,
            None => alone(&planned, settings.gather_again),
        };
        let unraised = crate::train::step(&imported, &settings.step).ok();
        let unraised = unraised.filter(|s| is_alike(&s.training, &training));
        let is_raised = unraised.is_none();
        let reference = unraised.map_or_else(|| planned.clone(), |step| step.graph);
        let training = Some(training);
        Ok(Self { planned, stages, channels, reference, is_raised, training })
    }
}

/// The stages of a step.
fn cut(
    step: &Graph,
    settings: &PipelineSettings,
) -> Result<(Vec<Expected>, Vec<Channel>), TrainError> {
    settings.check(step)?;
    let chunks = settings.chunks();
    let has_chunks = chunks.iter().any(|&chunk| chunk > 0);
    let Stages { stages, channels } = stages(step, &settings.cuts, &settings.holders);
    let policies = settings.recompute.iter().zip(&settings.gather_again);
    let expected = stages.into_iter().zip(policies).map(|(stage, (&again, &gather_again))| {
        let chunk = |part: &u32| chunks[*part as usize];
        let of_nodes = stage.part_of.iter().filter(|_| has_chunks);
        let chunk_of = of_nodes.map(chunk).collect();
        Expected { graph: recompute(&stage.graph, again), chunk_of, gather_again }
    });
    Ok((expected.collect(), channels))
}

/// Whether steps have the same inputs and state, in whatever order. Outputs are alike in order, if not in name.
fn is_alike(a: &Training, b: &Training) -> bool {
    let state = |t: &Training| t.state.iter().cloned().collect::<BTreeSet<String>>();
    let inputs = |t: &Training| (t.labels.clone(), t.learning_rate.clone());
    state(a) == state(b) && inputs(a) == inputs(b)
}
