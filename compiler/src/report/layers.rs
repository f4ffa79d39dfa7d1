//! The per-layer table: what each mesh axis does for each kind of layer, and what is exchanged after it.
//!
//! Layers whose names differ only in numbers and that do the same are one row.

use super::units::micros;
use planc_cost_model::CostModel;
use planc_ir::program::{Instr, Program};
use planc_ir::sharding::{AxisUse, FactorKind, Sharding, Strategy, op_shardings};
use planc_ir::{DType, Graph, NodeId, TensorType, ValueId};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

/// A row: equal layers.
struct Row {
    layer: String,
    op: &'static str,
    strategy: String,
    then: String,
    repeats: usize,
    compute_us: f64,
    communication_us: f64,
}

/// The table, its rows in model order; beyond `max_rows` the cheapest are summed up in one line.
pub fn table(
    graph: &Graph,
    strategy: &Strategy,
    program: &Program,
    cost: &CostModel,
    max_rows: usize,
) -> String {
    let exchanged = exchanges(graph, program, cost);
    let mut rows: Vec<Row> = Vec::new();
    let mut index: HashMap<(String, &'static str, String, String), usize> = HashMap::new();
    for id in graph.node_ids().filter(|&id| !graph.is_dynamic(id)) {
        let (then, communication_us) = exchanged.get(&id).cloned().unwrap_or_default();
        let node = graph.node(id);
        let (compute_us, heavy) = compute(graph, strategy, cost, id);
        if !heavy && then.is_empty() {
            continue;
        }
        let label = if node.scope.is_empty() { &node.name } else { &node.scope };
        let row = Row {
            layer: collapse(label),
            op: node.op.name(),
            strategy: words(graph, strategy, id),
            then,
            repeats: 1,
            compute_us,
            communication_us,
        };
        let key = (row.layer.clone(), row.op, row.strategy.clone(), row.then.clone());
        if let Some(&at) = index.get(&key) {
            rows[at].repeats += 1;
            rows[at].compute_us += row.compute_us;
            rows[at].communication_us += row.communication_us;
        } else {
            index.insert(key, rows.len());
            rows.push(row);
        }
    }
    render(&rows, max_rows)
}

fn render(rows: &[Row], max_rows: usize) -> String {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let total = |r: &Row| r.compute_us + r.communication_us;
    order.sort_by(|&a, &b| total(&rows[b]).total_cmp(&total(&rows[a])).then(a.cmp(&b)));
    let mut shown: Vec<usize> = order.iter().copied().take(max_rows).collect();
    shown.sort_unstable();
    let width = |f: &dyn Fn(&Row) -> usize, least: usize| {
        shown.iter().map(|&i| f(&rows[i])).max().unwrap_or(0).max(least)
    };
    let name_width = width(&|r| shorten(&r.layer, 40).chars().count(), 5);
    let op_width = width(&|r| r.op.len(), 2);
    let strategy_width = width(&|r| r.strategy.chars().count(), 8);
    let mut out = format!(
        "{:<name_width$}  {:>4}  {:<op_width$}  {:<strategy_width$}  {:>9}  then\n",
        "layer", "", "op", "strategy", "compute",
    );
    for i in shown {
        let r = &rows[i];
        let repeats = if r.repeats > 1 { format!("×{}", r.repeats) } else { String::new() };
        let then = if r.then.is_empty() {
            String::new()
        } else {
            format!("  {} {}", r.then, micros(r.communication_us))
        };
        let layer = shorten(&r.layer, 40);
        let row = format!(
            "{layer:<name_width$}  {repeats:>4}  {:<op_width$}  {:<strategy_width$}  {:>9}{then}",
            r.op,
            r.strategy,
            micros(r.compute_us),
        );
        out.push_str(row.trim_end());
        out.push('\n');
    }
    let rest: Vec<&Row> = order.iter().skip(max_rows).map(|&i| &rows[i]).collect();
    if !rest.is_empty() {
        let us: f64 = rest.iter().map(|r| total(r)).sum();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "… and {} smaller rows, {} (--all)", rest.len(), micros(us));
    }
    out
}

/// A node's compute time on the largest local parts, and whether it earns a row by itself.
fn compute(graph: &Graph, strategy: &Strategy, cost: &CostModel, id: NodeId) -> (f64, bool) {
    let strategy_of = &strategy.ops[id.index()];
    let Ok(shardings) = op_shardings(graph, id, &strategy.mesh, strategy_of) else {
        return (0.0, false);
    };
    let node = graph.node(id);
    let local = |values: &[ValueId], shardings: &[Sharding]| -> Vec<TensorType> {
        values
            .iter()
            .zip(shardings)
            .map(|(&v, s)| {
                let ty = graph.ty(v);
                TensorType::new(ty.dtype, s.max_local_shape(&ty.shape, &strategy.mesh))
            })
            .collect()
    };
    let outputs = local(&node.outputs, &shardings.outputs);
    let work = node.op.work(&local(&node.inputs, &shardings.inputs), &outputs);
    let dtype = outputs.first().map_or(DType::F32, |t| t.dtype);
    let heavy = work.kind.is_matrix();
    (cost.op_us(&work, dtype), heavy)
}

/// For each node, what is exchanged of its outputs: kinds of collectives and their time.
fn exchanges(
    graph: &Graph,
    program: &Program,
    cost: &CostModel,
) -> BTreeMap<NodeId, (String, f64)> {
    use planc_ir::sharding::reshard::StepCost as _;
    let producer: HashMap<&str, NodeId> = graph
        .node_ids()
        .flat_map(|id| {
            graph.node(id).outputs.iter().map(move |&v| (graph.value(v).name.as_str(), id))
        })
        .collect();
    let mut found: BTreeMap<NodeId, (String, f64)> = BTreeMap::new();
    for (step, input, output) in program.instrs.iter().flat_map(Instr::steps) {
        let (from, to) = (program.buffer(input), program.buffer(output));
        let Some(&id) = producer.get(from.name.as_str()) else { continue };
        if !step.is_collective() {
            continue;
        }
        let local = |b: &planc_ir::program::Buffer| {
            TensorType::new(b.ty.dtype, b.sharding.max_local_shape(&b.ty.shape, &program.mesh))
        };
        let us = cost.step_us(step, &local(from), &local(to), &program.mesh);
        let axes: Vec<&str> =
            step.axes().iter().map(|&a| program.mesh.axis(a).name.as_str()).collect();
        let entry = found.entry(id).or_default();
        if !entry.0.is_empty() {
            entry.0.push_str(", ");
        }
        // Writing to a string cannot fail.
        let _ = write!(entry.0, "{} over {}", step.name(), axes.join("+"));
        entry.1 += us;
    }
    found
}

/// `data: b0, tensor: n`, or `replicated`; factors that are reduced are marked `Σ`.
fn words(graph: &Graph, strategy: &Strategy, id: NodeId) -> String {
    let rule = graph.rule(id);
    let uses: Vec<String> = strategy
        .mesh
        .axes
        .iter()
        .zip(&strategy.ops[id.index()].axes)
        .filter_map(|(axis, usage)| match *usage {
            AxisUse::Replicate => None,
            AxisUse::Split(f) => {
                let factor = &rule.factors[f.index()];
                let sum = if matches!(factor.kind, FactorKind::Reduce(_)) { "Σ" } else { "" };
                Some(format!("{}: {sum}{}", axis.name, factor.name))
            }
            AxisUse::Linear(_) => Some(format!("{}: partial", axis.name)),
        })
        .collect();
    if uses.is_empty() { "replicated".to_string() } else { uses.join(", ") }
}

/// Runs of digits become `*`: `h.3.attn` and `h.4.attn` are layers of one kind.
pub fn collapse(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        match c {
            '0'..='9' if out.ends_with('*') => {}
            '0'..='9' => out.push('*'),
            c => out.push(c),
        }
    }
    out
}

/// The end of a long name, which tells more than its beginning.
fn shorten(name: &str, most: usize) -> String {
    let n = name.chars().count();
    if n <= most {
        return name.to_string();
    }
    format!("…{}", name.chars().skip(n + 1 - most).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_collapse_and_shorten() {
        assert_eq!(collapse("h.12.attn3"), "h.*.attn*");
        assert_eq!(collapse("a\nb"), "a b");
        assert_eq!(shorten("abcdef", 4), "…def");
        assert_eq!(shorten("abc", 4), "abc");
    }
}
