//! From a model to a training step.
//!
//! ```text
//! Graph ──precision──▶ Graph ──loss──▶ + loss ──dropout──▶ draws by number ──differentiate──▶ + gradients
//!   ──recompute──▶ less is kept ──update──▶ + accumulation, clipping, optimizer: a step whose state is carried
//! ```
//!
//! A step is a [`Graph`] like any other: it is split, priced, partitioned and run by what does so for
//! inference. Parameters, gradients and the optimizer's state are values with shardings of their own, so data
//! parallelism, sharded state (ZeRO 1 to 3) and tensor parallelism are points of one space.
//!
//! - [`precision`]: computing in a narrower type than the state.
//! - [`loss`]: the loss, and the gradient that differentiation starts from.
//! - [`dropout`]: other elements are dropped in each micro-batch.
//! - [`differentiate`]: gradients of everything that a parameter is wanted of.
//! - [`recompute`]: computing again in the backward phase what is not kept.
//! - [`policy`]: which of that is worth it.
//! - [`settings`]: all of that as a plan carries it, so that the step can be made again.
//! - [`update`]: what happens to gradients: accumulation, loss scaling, clipping, the optimizer.

mod append;
pub mod differentiate;
pub mod dropout;
pub mod error;
pub mod loss;
pub mod parameters;
pub mod policy;
pub mod precision;
pub mod recompute;
pub mod settings;
pub mod update;

pub use error::{PipelineError, TrainError};
pub use loss::Loss;
pub use precision::Precision;
pub use recompute::Recompute;
pub use settings::{PipelineSettings, Settings};
pub use update::{LossScale, Optimizer, Trained};

use planc_ir::finish::{prune, unique_names};
use planc_ir::onnx::ImportOptions;
use planc_ir::plan::Training;
use planc_ir::{Graph, ValueDef, ValueId};
use precision::{Lowered, Master};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is asked of a training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainOptions {
    /// What is made smaller.
    pub loss: Loss,
    /// How.
    pub optimizer: Optimizer,
    /// In what type activations and gradients are computed.
    pub precision: Precision,
    /// The largest norm of all gradients together; larger ones are scaled down to it.
    pub clip_norm: Option<f64>,
    /// How often a step runs forward and backward before the update.
    pub micro_batches: u32,
    /// Patterns (`*` stands for anything) of names of weights that stay as they are.
    pub frozen: Vec<String>,
    /// What decides, with the place of a dropout in the model and the number of the micro-batch, which elements are
    /// dropped; if there is no seed, none are.
    pub dropout: Option<u32>,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            loss: Loss::CrossEntropy { output: None },
            optimizer: Optimizer::default(),
            precision: Precision::AsModel,
            clip_norm: None,
            micro_batches: 1,
            frozen: Vec::new(),
            dropout: Some(0),
        }
    }
}

impl TrainOptions {
    /// How a model is imported that is to be trained so.
    pub const fn import(&self, bind: BTreeMap<String, u64>) -> ImportOptions {
        ImportOptions { bind, training: true, dropout: self.dropout.is_some() }
    }
}

/// A training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The graph; its outputs are the loss and, where gradients are clipped, their norm before that.
    pub graph: Graph,
    /// What a plan says of it.
    pub training: Training,
    /// The weights that are trained.
    pub parameters: Vec<String>,
    /// Floating-point weights that are not, and why.
    pub untrained: BTreeMap<String, &'static str>,
}

/// A model with its loss and gradients.
struct Differentiated {
    graph: Graph,
    masters: BTreeMap<ValueId, Master>,
    /// What the loss was scaled by, if it was.
    scale: Option<ValueId>,
    /// What counts micro-batches for dropout, if there is any.
    drawn: Option<ValueId>,
    loss: loss::Appended,
    trained: Vec<Trained>,
    /// Their names.
    parameters: Vec<String>,
    untrained: BTreeMap<String, &'static str>,
}

fn differentiated(model: &Graph, options: &TrainOptions) -> Result<Differentiated, TrainError> {
    if options.micro_batches == 0 {
        return Err(TrainError::MicroBatches);
    }
    if let Some(norm) = options.clip_norm.filter(|n| !n.is_finite() || *n <= 0.0) {
        return Err(TrainError::ClipNorm { norm });
    }
    let Lowered { mut graph, masters } = precision::lower(model, options.precision)?;
    let mut untrained = BTreeMap::new();
    let name = |graph: &Graph, v: ValueId| {
        masters.get(&v).map_or_else(|| graph.value(v).name.clone(), |m| m.name.clone())
    };
    let candidates = parameters::candidates(&graph, &masters, &options.frozen, &mut untrained)?;
    let scale =
        (options.precision == Precision::F16).then(|| LossScale::DYNAMIC.append(&mut graph));
    let loss = loss::append(&mut graph, &options.loss, scale)?;
    let drawn = dropout::draw(&mut graph, loss.value, options.dropout, options.micro_batches)?;
    let mut collect = |graph: &mut Graph, parameter, gradient| {
        update::collect(graph, parameter, gradient, options.micro_batches)
    };
    let gradients =
        differentiate::differentiate(&mut graph, &loss.seeds, &candidates, &mut collect)?;
    let mut trained = Vec::new();
    for parameter in candidates {
        match gradients.get(&parameter) {
            Some(&gradient) => trained.push(Trained { parameter, gradient }),
            None => {
                untrained.insert(name(&graph, parameter), "the loss does not depend on it");
            }
        }
    }
    if trained.is_empty() {
        return Err(TrainError::NoParameters);
    }
    let parameters = trained.iter().map(|t| name(&graph, t.parameter)).collect();
    Ok(Differentiated { graph, masters, scale, drawn, loss, trained, parameters, untrained })
}

/// The model with its loss and the gradients of its parameters as outputs, in the order of the parameters
/// that are returned with it; and the input of labels, if one was added.
///
/// # Errors
/// If the loss or a parameter's gradient cannot be had.
pub fn gradients(
    model: &Graph,
    options: &TrainOptions,
) -> Result<(Graph, Vec<String>, Option<String>), TrainError> {
    let mut d = differentiated(model, options)?;
    let gradients = d.trained.iter().map(|t| t.gradient);
    d.graph.outputs = std::iter::once(d.loss.value).chain(gradients).collect();
    let mut graph = prune(d.graph);
    unique_names(&mut graph);
    Ok((graph, d.parameters, d.loss.labels))
}

/// The training step of a model. Everything is kept for the backward phase; see [`recompute`].
///
/// # Errors
/// If the loss or a parameter's gradient cannot be had.
pub fn step(model: &Graph, options: &TrainOptions) -> Result<Step, TrainError> {
    let d = differentiated(model, options)?;
    let Differentiated { mut graph, masters, scale, drawn, loss, trained, parameters, untrained } =
        d;
    let updated = update::append(&mut graph, loss.value, &trained, &masters, scale, options)?;
    if let Some(state) = drawn {
        dropout::advance(&mut graph, state, options.micro_batches)?;
    }
    graph.outputs = updated.outputs;
    let mut graph = prune(graph);
    unique_names(&mut graph);
    let named = |v: ValueId| graph.value(v).name.clone();
    let is_weight = |v: ValueId| matches!(graph.value(v).def, ValueDef::Weight(_));
    let states = graph.carried.iter().map(|c| c.state).filter(|&v| is_weight(v));
    let training = Training {
        loss: graph.outputs.first().map_or_else(String::new, |&v| named(v)),
        labels: loss.labels,
        learning_rate: updated.learning_rate,
        micro_batches: options.micro_batches,
        recipe: recipe(options, drawn.is_some()),
        // Who makes the plan knows what else belongs to them.
        settings: serde_json::Value::Null,
        state: states.map(named).collect(),
    };
    Ok(Step { graph, training, parameters, untrained })
}

/// What was asked for, in words.
fn recipe(options: &TrainOptions, drops: bool) -> BTreeMap<String, String> {
    let mut recipe = BTreeMap::from([
        ("loss".to_string(), options.loss.to_string()),
        ("optimizer".to_string(), options.optimizer.to_string()),
        ("precision".to_string(), options.precision.name().to_string()),
    ]);
    if let Some(norm) = options.clip_norm {
        recipe.insert("gradient norm".to_string(), format!("at most {norm}"));
    }
    if let Some(seed) = options.dropout.filter(|_| drops) {
        recipe.insert("dropout".to_string(), format!("seed {seed}"));
    }
    if !options.frozen.is_empty() {
        recipe.insert("frozen".to_string(), options.frozen.join(", "));
    }
    recipe
}
