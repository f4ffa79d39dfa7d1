//! What the plan command tells a person: one screen.

pub mod layers;
pub mod operators;
mod pipeline;
pub mod units;

use crate::compile::{Compiled, CompiledStage};
use planc_cost_model::CostModel;
use planc_ir::plan::{Baseline, Prediction};
use std::fmt::Write as _;
use units::{bytes, count, flops, micros, percent};

/// Rows of the layer table before it is cut.
const MAX_ROWS: usize = 16;

/// Weights that are not trained are listed up to this number.
const MAX_UNTRAINED: usize = 8;

/// The report on a plan, within a screen unless `all_rows`.
pub fn plan_report(cost: &CostModel, compiled: &Compiled, all_rows: bool) -> String {
    let plan = &compiled.plan;
    let nodes: usize = compiled.stages.iter().map(|s| s.graph.nodes.len()).sum();
    let mut out = String::new();
    // Writing to a string cannot fail.
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "{label:<12}{text}");
    };
    line(
        "model",
        format!(
            "{}: {} nodes, {} parameters, {} in matrix products",
            plan.model.file,
            nodes,
            count(plan.model.parameters),
            flops(plan.model.flops),
        ),
    );
    if !plan.model.bindings.is_empty() {
        let bound: Vec<String> =
            plan.model.bindings.iter().map(|(k, v)| format!("{k}={v}")).collect();
        line("bound", bound.join(", "));
    }
    let raised = compiled.raised.counts();
    if !raised.is_empty() {
        let raised: Vec<String> = raised.iter().map(|(rule, n)| format!("{n} {rule}")).collect();
        line("raised", raised.join(", "));
    }
    if let (Some(training), Some(step)) = (&plan.training, &compiled.step) {
        let number = step.parameters.len();
        let micro_batches = match training.micro_batches {
            1 => String::new(),
            n => format!(", {n} micro-batches a step"),
        };
        line("training", format!("{number} parameters{micro_batches}"));
        for (what, how) in &training.recipe {
            line("", format!("{what}: {how}"));
        }
        for (name, why) in step.untrained.iter().take(MAX_UNTRAINED) {
            line("", format!("not trained: {name} ({why})"));
        }
        if let Some(more) = step.untrained.len().checked_sub(MAX_UNTRAINED).filter(|&n| n > 0) {
            line("", format!("and {more} more that are not trained"));
        }
    }
    line("cluster", cluster(cost));
    let rows = if all_rows { usize::MAX } else { MAX_ROWS };
    for (heading, stage) in pipeline::distinct(compiled) {
        let mesh = &compiled.stages[stage].search.strategy.mesh;
        let _ = writeln!(out, "{heading:<12}{mesh}");
        let _ = writeln!(out);
        let CompiledStage { graph, search, .. } = &compiled.stages[stage];
        let program = &plan.stages[stage].program;
        out.push_str(&layers::table(graph, &search.strategy, program, cost, rows));
    }
    let _ = writeln!(out);
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "{label:<12}{text}");
    };
    line("predicted", time(&plan.predicted));
    line(
        "memory",
        format!(
            "{} of {} per device: weights {}, activations {}",
            bytes(plan.predicted.memory_bytes),
            bytes(cost.memory_bytes()),
            bytes(plan.predicted.weight_bytes),
            bytes(plan.predicted.activation_bytes),
        ),
    );
    for (i, b) in plan.baselines.iter().enumerate() {
        line(if i == 0 { "baselines" } else { "" }, baseline(b, plan.certificate.evaluated_us));
    }
    let c = &plan.certificate;
    let space: Vec<String> =
        c.space.iter().map(|(k, v)| format!("{v} {}", k.replace('_', " "))).collect();
    line(
        "certificate",
        format!(
            "{}: objective {}, bound {}, gap {}; evaluated {}",
            c.status,
            micros(c.objective_us),
            micros(c.bound_us),
            percent(c.gap),
            micros(c.evaluated_us),
        ),
    );
    line("", format!("{}; {}", c.solver, space.join(", ")));
    if plan.predicted.exposed_us.is_some() {
        line(
            "",
            "baselines and certificate count communication after compute, not beside it".into(),
        );
    }
    out
}

/// `42.1 µs: compute 30.1 µs, all-reduce 12.0 µs`.
fn time(p: &Prediction) -> String {
    let mut parts = vec![format!("compute {}", micros(p.compute_us))];
    parts.extend(
        p.communication_us
            .iter()
            .filter(|(_, us)| **us > 0.0)
            .map(|(kind, us)| format!("{kind} {}", micros(*us))),
    );
    let exposed = p
        .exposed_us
        .map_or_else(String::new, |us| format!("; communication adds {} to compute", micros(us)));
    format!("{}: {}{exposed}", micros(p.total_us), parts.join(", "))
}

fn baseline(b: &Baseline, chosen_us: f64) -> String {
    let fits = if b.fits { "" } else { " (does not fit)" };
    format!(
        "{:<24}{:<22}{:>10}  {:>6.2}x  {} per device{fits}",
        b.name,
        b.mesh,
        micros(b.total_us),
        b.total_us / chosen_us,
        bytes(b.memory_bytes),
    )
}

/// `8 × h100-sxm-80gb on 1 node`.
fn cluster(cost: &CostModel) -> String {
    let nodes = cost.cluster().node_count();
    let devices: Vec<String> = cost
        .cluster()
        .nodes
        .iter()
        .map(|g| format!("{} × {}", g.count.saturating_mul(g.devices), g.device))
        .collect();
    let nodes = if nodes == 1 { "1 node".to_string() } else { format!("{nodes} nodes") };
    format!("{} on {nodes}", devices.join(" + "))
}
