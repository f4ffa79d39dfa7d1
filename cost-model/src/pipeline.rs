//! An event simulation of a pipeline: when each stage runs each pass of each micro-batch.
//!
//! * A stage runs its actions one after another, in its order, each as soon as it has what it needs; the update
//!   comes after its last.
//! * What goes to another stage takes its time beside compute, and any number of sends go at once. Within a stage
//!   nothing is sent.
//! * Every rank of a stage does the same at the same time, so a stage has one time line.
//!
//! So every start is a maximum of sums of times: no pass that takes longer, and no send, lets a pipeline end earlier.

use planc_ir::program::pipeline::{OrderFinding, Pipeline};
use planc_ir::program::{Action, Pass};

/// How long what is done for a part and a micro-batch takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartTimes {
    /// The forward pass.
    pub forward_us: f64,
    /// The backward pass; where weights have no pass of their own, with the gradients of weights.
    pub backward_us: f64,
    /// The gradients of weights, where they have a pass of their own.
    pub weights_us: f64,
    /// From the forward pass' end until its results are with the next part.
    pub send_forward_us: f64,
    /// From the backward pass' end until its results are with the part before.
    pub send_backward_us: f64,
}

impl PartTimes {
    /// How long a pass takes.
    pub const fn pass_us(&self, pass: Pass) -> f64 {
        match pass {
            Pass::Forward => self.forward_us,
            Pass::Backward => self.backward_us,
            Pass::Weights => self.weights_us,
        }
    }

    /// How long it takes until the part that a pass sends to has what it needs.
    const fn send_us(&self, pass: Pass) -> f64 {
        match pass {
            Pass::Forward => self.send_forward_us,
            Pass::Backward => self.send_backward_us,
            Pass::Weights => 0.0,
        }
    }
}

/// The times of a pipeline, in microseconds, of which none is negative. What has none takes no time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineTimes {
    /// Of each part, in the order of the chain.
    pub parts: Vec<PartTimes>,
    /// Of each stage's update.
    pub update_us: Vec<f64>,
}

/// An action, and when it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// What runs.
    pub action: Action,
    /// When it starts.
    pub start_us: f64,
    /// When it ends.
    pub end_us: f64,
}

/// What a pipeline does when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineSimulation {
    /// From the first start until the last stage is done.
    pub total_us: f64,
    /// How long each stage works, with its update.
    pub busy_us: Vec<f64>,
    /// The actions of each stage, in its order.
    pub spans: Vec<Vec<Span>>,
    /// When each stage is done, with its update.
    pub end_us: Vec<f64>,
}

impl PipelineSimulation {
    /// The share of the stages' time that is lost.
    pub fn bubble(&self) -> f64 {
        let all_us = self.total_us * self.busy_us.len() as f64;
        if all_us > 0.0 { 1.0 - self.busy_us.iter().sum::<f64>() / all_us } else { 0.0 }
    }
}

/// Simulates a pipeline; takes time and memory in proportion to the number of its actions.
///
/// # Errors
/// What [`Pipeline::check`] finds.
pub fn simulate(
    pipeline: &Pipeline,
    times: &PipelineTimes,
) -> Result<PipelineSimulation, Vec<OrderFinding>> {
    let steps = pipeline.sequence()?;
    let part = |part: usize| times.parts.get(part).copied().unwrap_or_default();
    let stages = pipeline.orders.len();
    let mut simulation = PipelineSimulation {
        total_us: 0.0,
        busy_us: vec![0.0; stages],
        spans: pipeline.orders.iter().map(|order| Vec::with_capacity(order.len())).collect(),
        end_us: vec![0.0; stages],
    };
    let mut step_end_us = Vec::with_capacity(steps.len());
    for step in &steps {
        let sent_us = step.sent_by.map_or(0.0, |sender| {
            let from = &steps[sender];
            let send_us = part(from.part).send_us(from.action.pass);
            step_end_us[sender] + if from.stage == step.stage { 0.0 } else { send_us }
        });
        let kept_us = step.kept_by.map_or(0.0, |keeper| step_end_us[keeper]);
        let start_us = simulation.end_us[step.stage].max(sent_us).max(kept_us);
        let takes_us = part(step.part).pass_us(step.action.pass);
        let end_us = start_us + takes_us;
        step_end_us.push(end_us);
        simulation.end_us[step.stage] = end_us;
        simulation.busy_us[step.stage] += takes_us;
        simulation.spans[step.stage].push(Span { action: step.action, start_us, end_us });
    }
    for (stage, update_us) in times.update_us.iter().take(stages).enumerate() {
        simulation.end_us[stage] += update_us;
        simulation.busy_us[stage] += update_us;
    }
    simulation.total_us = simulation.end_us.iter().copied().fold(0.0, f64::max);
    Ok(simulation)
}
