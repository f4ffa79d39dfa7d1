//! The numerical check: see the module above.

use super::compare::{Comparison, Tolerance, compare, random_inputs};
use super::graphs::Expected;
use super::{Graphs, Options, VerifyError, imported, step};
use crate::emit::matrix_flops;
use crate::train::Settings;
use planc_cost_model::CostModel;
use planc_ir::graph::{Graph, ValueDef, WeightSource};
use planc_ir::onnx::import;
use planc_ir::plan::{Named, Plan, Stage};
use planc_ir::sharding::{Sharding, Strategy, StrategyError};
use planc_ir::weights::{ModelFiles, Weights as _};
use planc_ir::{DType, Tensor, TensorType, ValueId, interp};
use planc_runtime::Executor;
use std::collections::BTreeMap;
use std::path::Path;

/// Work up to which the plan is run on its own dimensions.
const MAX_FLOPS: f64 = 2e9;

/// Bytes of all values together up to which a graph is evaluated.
const MAX_BYTES: u64 = 1 << 30;

/// What symbolic dimensions are bound to where the plan's own are too large.
const SMALL_EXTENT: u64 = 8;

/// The numerical check's result.
#[derive(Debug)]
pub enum Numerical {
    /// It was made.
    Compared {
        /// On what.
        what: String,
        /// The output that differs most.
        worst: Comparison,
    },
    /// It could not be made.
    Skipped {
        /// Why.
        why: String,
    },
}

/// Runs the plan, or its strategies on small dimensions, and compares with the reference evaluation.
///
/// # Errors
/// If something that should run does not.
pub fn check(
    plan: &Plan,
    graphs: &Graphs,
    settings: Option<&Settings>,
    path: &Path,
    options: &Options,
) -> Result<Numerical, VerifyError> {
    if options.bind.is_empty() && is_cheap(&graphs.reference) {
        let what = match plan.stages.len() {
            1 => "the plan's own program".to_string(),
            stages => format!("the plan's own programs of {stages} stages"),
        };
        return run(what, graphs, plan.stages.clone(), path, options.seed);
    }
    if plan.model.bindings.is_empty() {
        let why = "the model is too large for the reference evaluation, and none of its dimensions \
                   is symbolic, so it cannot be made smaller";
        return Ok(Numerical::Skipped { why: why.to_string() });
    }
    let bind: BTreeMap<String, u64> = plan
        .model
        .bindings
        .iter()
        .map(|(name, &n)| {
            let small = n.min(SMALL_EXTENT);
            (name.clone(), options.bind.get(name).copied().unwrap_or(small))
        })
        .collect();
    let bound: Vec<String> = bind.iter().map(|(name, n)| format!("{name}={n}")).collect();
    let what = format!("the plan's strategies with {}", bound.join(", "));
    let skipped = |why: String| Ok(Numerical::Skipped { why });
    let small = match import(path, &imported(settings, bind)) {
        Ok(small) => small,
        Err(e) => return skipped(format!("{what}: {e}")),
    };
    let small = match Graphs::of(small.graph, settings) {
        Ok(small) => small,
        Err(e) => return skipped(format!("{what}: {e}")),
    };
    let mut stages = small.stages.iter().zip(&graphs.stages);
    if small.stages.len() != graphs.stages.len()
        || !stages.all(|(small, own)| same_nodes(&small.graph, &own.graph))
    {
        return skipped(format!("{what}: the model's nodes depend on its dimensions; try --bind"));
    }
    if !is_cheap(&small.reference) {
        return skipped(format!("{what}: the model is too large for the reference evaluation"));
    }
    let strategies = plan.stages.iter().zip(&small.stages).map(|(s, e)| strategy(s, e));
    let strategies: Vec<Strategy> = match strategies.collect() {
        Ok(strategies) => strategies,
        Err(e) => return skipped(format!("{what}: {e}; try --bind")),
    };
    let cost = CostModel::of_plan(plan).map_err(|e| VerifyError::Cluster(e.to_string()))?;
    let mut stages = plan.stages.clone();
    for ((stage, strategy), expected) in stages.iter_mut().zip(&strategies).zip(&small.stages) {
        let (graph, order) = (&expected.graph, &stage.program.order);
        stage.program = if order.is_empty() {
            planc_codegen::partition(graph, strategy, &cost)?
        } else {
            planc_codegen::stage(graph, strategy, &cost, &expected.chunk_of, order)?
        };
    }
    run(what, &small, stages, path, options.seed)
}

fn is_cheap(graph: &Graph) -> bool {
    let bytes = graph.values.iter().fold(0u64, |n, v| n.saturating_add(v.ty.bytes()));
    let repeats = graph.micro_batches;
    bytes.saturating_mul(u64::from(repeats)) <= MAX_BYTES
        && matrix_flops(graph) * f64::from(repeats) <= MAX_FLOPS
}

fn same_nodes(a: &Graph, b: &Graph) -> bool {
    a.nodes.len() == b.nodes.len()
        && a.nodes.iter().zip(&b.nodes).all(|(a, b)| a.name == b.name && a.op.name() == b.op.name())
}

/// The strategies of a stage of the plan on a graph with other dimensions.
fn strategy(stage: &Stage, expected: &Expected) -> Result<Strategy, StrategyError> {
    let graph = &expected.graph;
    let program = &stage.program;
    let mesh = program.mesh.clone();
    let loaded: BTreeMap<&str, &Sharding> = [&program.inputs, &program.weights, &program.constants]
        .into_iter()
        .flatten()
        .map(|&id| (program.buffer(id).name.as_str(), &program.buffer(id).sharding))
        .collect();
    let ops = stage.strategy.iter().map(|s| s.strategy.clone()).collect();
    let strategy = Strategy::from_ops(graph, mesh.clone(), ops, |v| {
        let value = graph.value(v);
        match loaded.get(value.name.as_str()) {
            Some(&home) if home.dims.len() == value.ty.rank() => {
                home.clone().canonical(&value.ty.shape, &mesh)
            }
            _ => Sharding::replicated(value.ty.rank()),
        }
    })?;
    Ok(Strategy { gather_again: expected.gather_again, ..strategy })
}

/// Runs programs of the stages of what was planned and the reference on the same random inputs.
fn run(
    mut what: String,
    graphs: &Graphs,
    stages: Vec<Stage>,
    path: &Path,
    seed: u64,
) -> Result<Numerical, VerifyError> {
    let graph = &graphs.reference;
    let weights = if let Some(weights) = weights(graph, path) {
        weights
    } else {
        what.push_str(", random weights");
        random_weights(graph, seed)?
    };
    if let Some(training) = &graphs.training {
        if graphs.is_raised {
            what.push_str(", against the raised model's step");
        }
        let worst = step::run(graphs, &training.learning_rate, stages, weights, seed)?;
        return Ok(Numerical::Compared { what, worst });
    }
    let named = named(graph);
    let inputs = random_inputs(&named, seed)?;
    let ordered: Vec<Tensor> = named.iter().map(|n| inputs[&n.name].clone()).collect();
    let expected = interp::evaluate(graph, &ordered, &Loaded(&weights))?;
    let constants = constants(&graphs.planned);
    let mut executor = Executor::of_stages(stages, &graphs.channels, &weights, &constants)?;
    let found = in_order(&graphs.planned, executor.run(&inputs)?)?;

    let mut worst = Comparison { max_abs: 0.0, max_rel: 0.0, equal: true };
    for (found, expected) in found.iter().zip(&expected) {
        let c = compare(found, expected, tolerance(expected.dtype()));
        worst.max_abs = worst.max_abs.max(c.max_abs);
        worst.max_rel = worst.max_rel.max(c.max_rel);
        worst.equal &= c.equal;
    }
    Ok(Numerical::Compared { what, worst })
}

/// The results of all stages in the order of a graph's outputs.
pub(super) fn in_order(
    graph: &Graph,
    results: Vec<(String, Tensor)>,
) -> Result<Vec<Tensor>, VerifyError> {
    let results: BTreeMap<String, Tensor> = results.into_iter().collect();
    let result = |&v: &ValueId| {
        let name = &graph.value(v).name;
        results.get(name).cloned().ok_or_else(|| VerifyError::NoResult { name: name.clone() })
    };
    graph.outputs.iter().map(result).collect()
}

/// The inputs of a graph.
pub(super) fn named(graph: &Graph) -> Vec<Named> {
    let named = |&v| Named { name: graph.value(v).name.clone(), ty: graph.ty(v).clone() };
    graph.inputs.iter().map(named).collect()
}

/// The constants of a graph by name.
pub(super) fn constants(graph: &Graph) -> BTreeMap<String, Tensor> {
    let constant = |v: &planc_ir::graph::Value| match &v.def {
        ValueDef::Constant(t) => Some((v.name.clone(), t.as_ref().clone())),
        _ => None,
    };
    graph.values.iter().filter_map(constant).collect()
}

/// What rounding in another order may change.
fn tolerance(dtype: DType) -> Tolerance {
    match dtype {
        DType::F64 => Tolerance { atol: 1e-9, rtol: 1e-9 },
        DType::F16 => Tolerance { atol: 1e-2, rtol: 1e-2 },
        DType::BF16 => Tolerance { atol: 5e-2, rtol: 5e-2 },
        _ => Tolerance { atol: 1e-4, rtol: 1e-3 },
    }
}

/// The model's weights; `None` if their files are absent.
fn weights(graph: &Graph, path: &Path) -> Option<BTreeMap<String, Tensor>> {
    let files = ModelFiles::new(path);
    graph
        .values
        .iter()
        .filter_map(|v| match &v.def {
            ValueDef::Weight(source) => {
                Some(files.load(&v.name, &v.ty, source).ok().map(|t| (v.name.clone(), t)))
            }
            _ => None,
        })
        .collect()
}

/// Small random weights, so that activations stay of one magnitude through a deep network; what no file holds
/// anyway is what it is.
fn random_weights(
    graph: &Graph,
    seed: u64,
) -> Result<BTreeMap<String, Tensor>, planc_ir::EvalError> {
    let mut rng = fastrand::Rng::with_seed(seed);
    graph
        .values
        .iter()
        .filter(|v| matches!(v.def, ValueDef::Weight(_)))
        .map(|v| {
            let fan_in = v.ty.shape.iter().rev().nth(1).copied().unwrap_or(1).max(1);
            let scale = 1.0 / (fan_in as f64).sqrt();
            let t = Tensor::from_f64(v.ty.clone(), |_| match v.def {
                ValueDef::Weight(WeightSource::Fill { value }) => value,
                _ => (rng.f64() * 2.0 - 1.0) * scale,
            })?;
            Ok((v.name.clone(), t))
        })
        .collect()
}

/// Weights in memory, for the reference evaluation.
pub(super) struct Loaded<'a>(pub &'a BTreeMap<String, Tensor>);

impl planc_ir::weights::Weights for Loaded<'_> {
    fn load(
        &self,
        name: &str,
        _: &TensorType,
        _: &planc_ir::WeightSource,
    ) -> Result<Tensor, planc_ir::weights::WeightError> {
        self.0.get(name).cloned().ok_or(planc_ir::weights::WeightError::None)
    }
}
