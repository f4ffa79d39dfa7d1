//! Writes a graph, a strategy and a program down as a [`Plan`].

use crate::search::SearchResult;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use planc_codegen::{CodegenError, MemoryReport};
use planc_cost_model::{CostModel, simulate};
use planc_ir::graph::{Graph, Value, ValueDef, WeightSource};
use planc_ir::onnx::Model;
use planc_ir::plan::{
    Baseline, Certificate, Channel, Constant, FORMAT, ModelRef, Named, NodeStrategy, Plan,
    Prediction, Semantics, Source, Stage, Training, Weight,
};
use planc_ir::program::{BufferId, Program};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Largest weight that a plan carries inline, because the model stores it in a typed field that cannot
/// be read in place.
const MAX_INLINE_BYTES: u64 = 64 << 20;

/// A plan that cannot be written down.
#[derive(Debug, Error)]
pub enum EmitError {
    /// A weight without a place in a file is too large to be carried in the plan.
    #[error(
        "weight `{name}` ({bytes} bytes) is stored in a typed field of the model, which cannot be read in \
         place, and is too large to be carried in the plan: re-save the model with raw data"
    )]
    InlineWeight {
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// The program names a value that the graph does not have.
    #[error("the program loads `{0}`, which the model does not have")]
    UnknownValue(String),
    /// The program's memory cannot be counted.
    #[error(transparent)]
    Memory(#[from] CodegenError),
    /// The cluster could not be written as JSON.
    #[error(transparent)]
    Cluster(#[from] planc_cost_model::CostError),
    /// What a training step was made from could not be written as JSON.
    #[error("what the step is made from has no JSON form: {0}")]
    Settings(#[from] serde_json::Error),
}

/// What a stage computes and how; a plan without a pipeline has one stage.
#[derive(Debug)]
pub struct StageParts<'a> {
    /// The graph as it was planned: the model's, or a part of it.
    pub graph: &'a Graph,
    /// How it is split.
    pub search: &'a SearchResult,
    /// What its ranks run.
    pub program: Program,
}

/// What is known of a plan beside what it says to do.
#[derive(Clone, Debug)]
pub struct Merits {
    /// What it takes.
    pub predicted: Prediction,
    /// What simpler strategies take.
    pub baselines: Vec<Baseline>,
    /// How good it is proven to be.
    pub certificate: Certificate,
}

/// The plan that runs the stages' programs, which together compute `graph`: the model's as it was planned.
///
/// # Errors
/// See [`EmitError`].
#[allow(clippy::too_many_arguments)] // what a plan is made of
pub fn plan(
    model: &Model,
    graph: &Graph,
    file: &str,
    cost: &CostModel,
    stages: Vec<StageParts<'_>>,
    channels: Vec<Channel>,
    merits: Merits,
    training: Option<Training>,
) -> Result<Plan, EmitError> {
    let (mut weights, mut constants): (Vec<Weight>, Vec<Constant>) = (Vec::new(), Vec::new());
    let mut named = BTreeSet::new();
    for stage in &stages {
        let by_name: BTreeMap<&str, &Value> =
            stage.graph.values.iter().map(|v| (v.name.as_str(), v)).collect();
        let value = |id: BufferId| {
            let name = &stage.program.buffer(id).name;
            by_name.get(name.as_str()).copied().ok_or_else(|| EmitError::UnknownValue(name.clone()))
        };
        for &b in &stage.program.weights {
            let value = value(b)?;
            if named.insert(value.name.clone()) {
                weights.push(weight(value)?);
            }
        }
        for &b in &stage.program.constants {
            let value = value(b)?;
            if named.insert(value.name.clone()) {
                constants.push(constant(value)?);
            }
        }
    }
    for value in unread(&model.graph, &weights) {
        weights.push(weight(value)?);
    }
    let named = |ids: &[planc_ir::ValueId]| {
        ids.iter()
            .map(|&v| Named { name: graph.value(v).name.clone(), ty: graph.ty(v).clone() })
            .collect()
    };
    let mut first_rank = 0;
    let mut planned = Vec::with_capacity(stages.len());
    for StageParts { graph, search, program } in stages {
        let ranks = program.mesh.ranks();
        planned.push(Stage { first_rank, strategy: strategies(graph, search), program });
        first_rank += ranks;
    }
    let Merits { predicted, baselines, certificate } = merits;
    Ok(Plan {
        format: FORMAT,
        checksum: String::new(),
        model: ModelRef {
            name: graph.name.clone(),
            file: file.to_string(),
            digest: model.digest.clone(),
            bindings: model.bindings.clone(),
            parameters: model.parameters,
            flops: matrix_flops(graph),
            inputs: named(&graph.inputs),
            outputs: named(&graph.outputs),
        },
        training,
        cluster: cost.cluster().to_json()?,
        semantics: Semantics::Exact,
        predicted,
        baselines,
        certificate,
        stages: planned,
        channels,
        weights,
        constants,
    })
}

/// The weights in the model file that a plan does not load, since a loss does not depend on them, say. The plan
/// names them all the same: the model's digest leaves out their bytes.
fn unread<'a>(model: &'a Graph, loaded: &[Weight]) -> Vec<&'a Value> {
    let loaded: BTreeSet<&str> = loaded.iter().map(|w| w.name.as_str()).collect();
    let is_unread = |v: &&Value| {
        matches!(v.def, ValueDef::Weight(WeightSource::ModelFile { .. }))
            && !loaded.contains(v.name.as_str())
    };
    model.values.iter().filter(is_unread).collect()
}

/// Each node's strategy, for readers.
fn strategies(graph: &Graph, search: &SearchResult) -> Vec<NodeStrategy> {
    let named = graph.nodes.iter().zip(&search.strategy.ops).map(|(node, strategy)| NodeStrategy {
        node: node.name.clone(),
        op: node.op.name().to_string(),
        strategy: strategy.clone(),
    });
    named.collect()
}

/// What the evaluator says of the chosen strategy.
pub fn prediction(search: &SearchResult) -> Prediction {
    let e = &search.evaluation;
    Prediction {
        total_us: e.total_us,
        compute_us: e.compute_us,
        communication_us: e.communication_us.clone(),
        exposed_us: None,
        memory_bytes: e.memory_bytes,
        weight_bytes: e.weight_bytes,
        activation_bytes: e.activation_bytes(),
    }
}

/// What a program takes that communicates beside compute: the simulator's time, and its arena.
///
/// # Errors
/// If its bytes cannot be counted.
pub fn simulated(program: &Program, cost: &CostModel) -> Result<Prediction, CodegenError> {
    let simulation = simulate(program, cost);
    let memory = MemoryReport::of(program)?;
    Ok(Prediction {
        total_us: simulation.total_us,
        exposed_us: Some(simulation.exposed_us()),
        compute_us: simulation.compute_us,
        communication_us: simulation.communication_us,
        memory_bytes: memory.arena_bytes,
        weight_bytes: memory.weight_bytes,
        activation_bytes: memory.arena_bytes.saturating_sub(memory.weight_bytes),
    })
}

/// Floating-point operations of matrix products and convolutions.
pub fn matrix_flops(graph: &Graph) -> f64 {
    graph
        .node_ids()
        .filter(|&id| !graph.is_dynamic(id))
        .map(|id| graph.node(id).op.work(&graph.input_types(id), &graph.output_types(id)))
        .filter(|w| w.kind.is_matrix())
        .map(|w| w.flops)
        .sum()
}

/// A weight as a plan names it.
///
/// # Errors
/// If it is none, or a plan cannot carry it.
pub fn weight(value: &Value) -> Result<Weight, EmitError> {
    let ValueDef::Weight(source) = &value.def else {
        return Err(EmitError::UnknownValue(value.name.clone()));
    };
    let source = place(&value.name, source)?;
    Ok(Weight { name: value.name.clone(), ty: value.ty.clone(), source })
}

/// Where a weight's contents lie, as a plan says it.
fn place(name: &str, source: &WeightSource) -> Result<Source, EmitError> {
    Ok(match source {
        WeightSource::ModelFile { offset, .. } => Source::File { location: None, offset: *offset },
        WeightSource::External { location, offset, .. } => {
            Source::File { location: Some(location.clone()), offset: *offset }
        }
        WeightSource::Inline(t) => {
            let bytes = t.ty().bytes();
            if bytes > MAX_INLINE_BYTES {
                return Err(EmitError::InlineWeight { name: name.to_string(), bytes });
            }
            Source::Inline(STANDARD.encode(t.to_bytes()))
        }
        WeightSource::Fill { value } => Source::Fill(*value),
        WeightSource::Cast { from, source } => {
            Source::Cast { from: *from, source: Box::new(place(name, source)?) }
        }
    })
}

/// A constant as a plan holds it.
///
/// # Errors
/// If it is none.
pub fn constant(value: &Value) -> Result<Constant, EmitError> {
    match &value.def {
        ValueDef::Constant(t) => Ok(Constant {
            name: value.name.clone(),
            ty: value.ty.clone(),
            data: STANDARD.encode(t.to_bytes()),
        }),
        _ => Err(EmitError::UnknownValue(value.name.clone())),
    }
}
