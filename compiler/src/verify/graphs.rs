//! What a plan is checked against.

use crate::rewrite::raise;
use crate::train::{Settings, Step, TrainError};
use planc_ir::Graph;
use planc_ir::plan::Training;
use std::collections::BTreeSet;

/// A model in the forms that the checks need.
#[derive(Debug)]
pub struct Graphs {
    /// What was planned: the raised model, or a training step made of it.
    pub planned: Graph,
    /// What its numbers are compared with: the model as it was imported, or a step made of that.
    pub reference: Graph,
    /// Whether the reference is made of the raised model after all: not every op of exporters has a gradient,
    /// and raising may merge parameters.
    pub is_raised: bool,
    /// What a plan says of the step.
    pub training: Option<Training>,
}

impl Graphs {
    /// Of a model as it was imported.
    ///
    /// # Errors
    /// If the step cannot be made.
    pub fn of(imported: Graph, settings: Option<&Settings>) -> Result<Self, TrainError> {
        let raised = raise(&imported).graph;
        let Some(settings) = settings else {
            let (planned, reference) = (raised, imported);
            return Ok(Self { planned, reference, is_raised: false, training: None });
        };
        let Step { graph: planned, training, .. } = settings.step(&raised)?;
        let unraised = crate::train::step(&imported, &settings.step).ok();
        let unraised = unraised.filter(|s| is_alike(&s.training, &training));
        let is_raised = unraised.is_none();
        let reference = unraised.map_or_else(|| planned.clone(), |step| step.graph);
        Ok(Self { planned, reference, is_raised, training: Some(training) })
    }
}

/// Whether steps have the same inputs and state, in whatever order. Outputs are alike in order, if not in name.
fn is_alike(a: &Training, b: &Training) -> bool {
    let state = |t: &Training| t.state.iter().cloned().collect::<BTreeSet<String>>();
    let inputs = |t: &Training| (t.labels.clone(), t.learning_rate.clone());
    state(a) == state(b) && inputs(a) == inputs(b)
}
