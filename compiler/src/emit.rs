//! Writes a graph, a strategy and a program down as a [`Plan`].

use crate::search::SearchResult;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use planc_codegen::{CodegenError, MemoryReport};
use planc_cost_model::{CostModel, simulate};
use planc_ir::graph::{Graph, Value, ValueDef, WeightSource};
use planc_ir::onnx::Model;
use planc_ir::plan::{
    Constant, FORMAT, ModelRef, Named, NodeStrategy, Plan, Prediction, Semantics, Source, Stage,
    Training, Weight,
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

/// The plan that runs `program`, which computes `graph`: the model's graph as it was planned.
///
/// # Errors
/// See [`EmitError`].
pub fn plan(
    model: &Model,
    graph: &Graph,
    file: &str,
    cost: &CostModel,
    search: &SearchResult,
    program: Program,
    training: Option<Training>,
) -> Result<Plan, EmitError> {
    let by_name: BTreeMap<&str, &Value> =
        graph.values.iter().map(|v| (v.name.as_str(), v)).collect();
    let value = |id: BufferId| {
        let name = &program.buffer(id).name;
        by_name.get(name.as_str()).copied().ok_or_else(|| EmitError::UnknownValue(name.clone()))
    };
    let mut weights =
        program.weights.iter().map(|&b| weight(value(b)?)).collect::<Result<Vec<_>, _>>()?;
    for value in unread(&model.graph, &weights) {
        weights.push(weight(value)?);
    }
    let constants =
        program.constants.iter().map(|&b| constant(value(b)?)).collect::<Result<Vec<_>, _>>()?;
    let strategy = graph
        .nodes
        .iter()
        .zip(&search.strategy.ops)
        .map(|(node, strategy)| NodeStrategy {
            node: node.name.clone(),
            op: node.op.name().to_string(),
            strategy: strategy.clone(),
        })
        .collect();
    let named = |ids: &[planc_ir::ValueId]| {
        ids.iter()
            .map(|&v| Named { name: graph.value(v).name.clone(), ty: graph.ty(v).clone() })
            .collect()
    };
    let mut predicted = prediction(search);
    if training.is_some() {
        overlap(&mut predicted, &program, cost)?;
    }
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
        baselines: search.baselines.clone(),
        certificate: search.certificate.clone(),
        stages: vec![Stage { first_rank: 0, strategy, program }],
        channels: Vec::new(),
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

/// What the evaluator says of the chosen strategy.
fn prediction(search: &SearchResult) -> Prediction {
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

/// Says of a program that communicates beside compute what it takes: the simulator's time, and its arena.
fn overlap(
    predicted: &mut Prediction,
    program: &Program,
    cost: &CostModel,
) -> Result<(), CodegenError> {
    let simulation = simulate(program, cost);
    predicted.exposed_us = Some(simulation.exposed_us());
    predicted.total_us = simulation.total_us;
    predicted.compute_us = simulation.compute_us;
    predicted.communication_us = simulation.communication_us;
    let memory = MemoryReport::of(program)?;
    predicted.memory_bytes = memory.arena_bytes;
    predicted.weight_bytes = memory.weight_bytes;
    predicted.activation_bytes = memory.arena_bytes.saturating_sub(memory.weight_bytes);
    Ok(())
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
