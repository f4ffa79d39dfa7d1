//! The plan: one JSON document that says what every rank does. Described in docs/plan-format.md.
//!
//! A plan holds no weights: it names tensors of the model file and where their bytes lie. It carries
//! a checksum of itself and a digest of the model's structure, so that a plan that was edited or cut
//! short, and a plan for another model, are refused.

mod document;
pub mod pipeline;

pub use document::PlanError;

use crate::DType;
use crate::graph::TensorType;
use crate::program::Program;
use crate::sharding::OpStrategy;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the format; a reader refuses any other.
pub const FORMAT: u32 = 1;

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`FORMAT`].
    pub format: u32,
    /// SHA-256 (hex) of the document with this field empty.
    pub checksum: String,
    /// What was planned.
    pub model: ModelRef,
    /// What a step trains, for a plan of training steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// What it was planned for: the cluster description as given or expanded.
    pub cluster: serde_json::Value,
    /// Whether the plan computes what the model says: `exact` is the same mathematics up to
    /// floating-point reordering.
    pub semantics: Semantics,
    /// What was predicted for the plan.
    pub predicted: Prediction,
    /// What simpler strategies would cost, priced by the same evaluator.
    pub baselines: Vec<Baseline>,
    /// How good the plan is proven to be.
    pub certificate: Certificate,
    /// Pipeline stages in order; one for an unpipelined plan.
    pub stages: Vec<Stage>,
    /// The ways between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    /// The weights that programs load, in the model's order, and then those in the model file that they do not.
    pub weights: Vec<Weight>,
    /// Small tensors that came out of constant folding.
    pub constants: Vec<Constant>,
}

/// The model that a plan is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRef {
    /// The graph's name.
    pub name: String,
    /// File name, without folders.
    pub file: String,
    /// See [`crate::digest`].
    pub digest: String,
    /// Values of the symbolic dimensions.
    pub bindings: BTreeMap<String, u64>,
    /// Number of parameters.
    pub parameters: u64,
    /// Floating-point operations of one run.
    pub flops: f64,
    /// Inputs, in the file's order.
    pub inputs: Vec<Named>,
    /// Outputs, in the file's order.
    pub outputs: Vec<Named>,
}

/// What a plan of training steps says to who runs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// The output that is the loss, a scalar: the mean over the micro-batches.
    pub loss: String,
    /// The input that holds what the loss compares with, if planc added it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// The input that is the learning rate, a scalar.
    pub learning_rate: String,
    /// How often a step runs forward and backward.
    pub micro_batches: u32,
    /// The optimizer and all else that was asked for, in words, for reports.
    pub recipe: BTreeMap<String, String>,
    /// The weights that a step changes: parameters and the optimizer's state.
    pub state: Vec<String>,
    /// What the planner made the step from, in its own terms: enough to make it again from the model.
    pub settings: serde_json::Value,
}

/// A named tensor type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Name in the user's file.
    pub name: String,
    /// Type.
    #[serde(flatten)]
    pub ty: TensorType,
}

/// Whether a plan computes what the model says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Semantics {
    /// The same mathematics, floating-point reordering only.
    Exact,
    /// Delayed updates.
    Stale,
    /// Another model.
    Changed,
}

/// Predicted time and memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Time of one step.
    pub total_us: f64,
    /// Of it: kernels.
    pub compute_us: f64,
    /// Of it: communication, by kind of collective. Beside kernels, where `exposed_us` is given.
    pub communication_us: BTreeMap<String, f64>,
    /// What communication adds to the time of kernels, where it runs beside them: in training steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposed_us: Option<f64>,
    /// Largest arena of any rank.
    pub memory_bytes: u64,
    /// Of it: weights and constants.
    pub weight_bytes: u64,
    /// Of it: inputs, activations and results.
    pub activation_bytes: u64,
}

/// A simpler strategy's price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Such as `data parallel`.
    pub name: String,
    /// Its mesh, as printed.
    pub mesh: String,
    /// Time of one step.
    pub total_us: f64,
    /// Largest memory of any rank.
    pub memory_bytes: u64,
    /// Whether that fits.
    pub fits: bool,
}

/// How good a plan is proven to be, within the space that was searched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// The solver's objective.
    pub objective_us: f64,
    /// No strategy in the searched space is faster than this.
    pub bound_us: f64,
    /// `(objective - bound) / objective`.
    pub gap: f64,
    /// `optimal`, `gap limit`, `node limit`, `time limit` or `baseline`.
    pub status: String,
    /// Solver name and version.
    pub solver: String,
    /// Limits under which it ran.
    pub limits: BTreeMap<String, String>,
    /// What the independent evaluator says of the same strategy.
    pub evaluated_us: f64,
    /// What the searched space was: meshes, columns, rows, distinct blocks.
    pub space: BTreeMap<String, u64>,
}

/// A stage: a mesh, a strategy, a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// First of the consecutive global ranks that run the stage.
    pub first_rank: u32,
    /// Each node's strategy, for readers; the program is what runs.
    pub strategy: Vec<NodeStrategy>,
    /// What the ranks run.
    pub program: Program,
}

/// A way by which stages hand on a value. Ranks find out by themselves who sends what to whom: the
/// shardings of the two buffers, and the ranks of the two stages, say it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Name of the value.
    pub value: String,
    /// Index of the stage that sends.
    pub from: u32,
    /// Index of the stage that receives.
    pub to: u32,
}

/// A node's strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStrategy {
    /// Name in the user's model.
    pub node: String,
    /// The op's name.
    pub op: String,
    /// What each mesh axis does.
    pub strategy: OpStrategy,
}

/// A weight of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// Name in the user's model.
    pub name: String,
    /// Type.
    #[serde(flatten)]
    pub ty: TensorType,
    /// Where its bytes lie.
    #[serde(flatten)]
    pub source: Source,
}

/// Where a tensor's bytes lie: little-endian, row-major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// In a file.
    File {
        /// Relative to the model's folder; `None` is the model file itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        location: Option<String>,
        /// From the start of the file.
        offset: u64,
    },
    /// In the plan: base64.
    Inline(String),
    /// Nowhere: every element is this number.
    Fill(#[serde(with = "crate::number")] f64),
    /// Elements of another type, to be converted.
    Cast {
        /// Their type.
        from: DType,
        /// Where they lie.
        source: Box<Source>,
    },
}

/// A constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Name, unique in the plan.
    pub name: String,
    /// Type.
    #[serde(flatten)]
    pub ty: TensorType,
    /// Base64 of its bytes.
    pub data: String,
}
