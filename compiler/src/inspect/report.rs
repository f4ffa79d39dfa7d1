//! What the inspect command tells a person.

use super::Inspection;
use crate::report::units::{bytes, count, flops};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// Nodes named for each reason before the rest is counted.
const MAX_NAMES: usize = 3;

/// The report.
pub fn report(file: &str, i: &Inspection) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "{label:<12}{text}");
    };
    let producer = if i.producer.is_empty() { "an unnamed exporter" } else { &i.producer };
    line("model", format!("{file}: {producer}, opset {}, IR version {}", i.opset, i.ir_version));
    if !i.symbols.is_empty() {
        line("symbols", symbols(i));
    }
    line("nodes", format!("{} imported, {} after raising", i.imported_nodes, i.nodes));
    let total = i.weight_bytes.values().fold(0u64, |sum, &n| sum.saturating_add(n));
    let by_type: Vec<String> =
        i.weight_bytes.iter().map(|(dtype, &n)| format!("{dtype} {}", bytes(n))).collect();
    line(
        "parameters",
        format!("{}; weights {}: {}", count(i.parameters), bytes(total), none(&by_type.join(", "))),
    );
    let total: f64 = i.matrix_flops.values().sum();
    let by_op: Vec<String> =
        i.matrix_flops.iter().map(|(op, &n)| format!("{op} {}", flops(n))).collect();
    line("matrix work", format!("{}: {}", flops(total), none(&by_op.join(", "))));
    line(
        "activations",
        format!(
            "{} in all, {} live at most",
            bytes(i.activation_bytes),
            bytes(i.peak_activation_bytes)
        ),
    );
    for (n, layers) in i.layers.iter().enumerate() {
        let name = match layers.name.as_str() {
            "" if layers.repeats == 1 => "outside of blocks: ".to_string(),
            "" => String::new(),
            name => format!("{}: ", plain(name)),
        };
        let label = if n == 0 { "layers" } else { "" };
        let ops = tally(&layers.ops);
        line(label, format!("{:>3} × {:<3} {name}{ops}", layers.repeats, layers.nodes));
    }
    for (n, family) in i.families.iter().enumerate() {
        let label = if n == 0 { "families" } else { "" };
        let forms = match family.forms.len() {
            1 if family.forms.values().all(|&n| n == family.count) => {
                family.forms.keys().next().cloned().unwrap_or_default()
            }
            _ => tally(&family.forms),
        };
        line(label, format!("{:<18}{:>4}  {forms}", family.name, family.count));
    }
    line("raised", none(&tally(&i.raised)));
    if i.opaque.is_empty() {
        line("opaque", "nothing".to_string());
    }
    for (n, opaque) in i.opaque.iter().enumerate() {
        let label = if n == 0 { "opaque" } else { "" };
        let mut names: Vec<String> =
            opaque.nodes.iter().take(MAX_NAMES).map(|name| format!("`{}`", plain(name))).collect();
        if opaque.nodes.len() > MAX_NAMES {
            names.push("…".to_string());
        }
        let times = opaque.nodes.len();
        line(label, format!("{} × {times}: {} ({})", opaque.op, opaque.why, names.join(", ")));
    }
    out
}

/// `batch=2, past_seq=8, total_seq=9 (past_seq + 1)`.
fn symbols(i: &Inspection) -> String {
    let one = |(name, value): (&String, &u64)| {
        let name_text = plain(name);
        match i.relations.get(name) {
            Some(expression) => format!("{name_text}={value} ({})", plain(expression)),
            None if i.assumed.contains(name) => format!("{name_text}={value} (assumed)"),
            None => format!("{name_text}={value}"),
        }
    };
    i.symbols.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// `MatMul 6, Map 4`, the most frequent first.
fn tally<T: Copy + Ord + Display>(counts: &BTreeMap<String, T>) -> String {
    let mut sorted: Vec<(&String, T)> = counts.iter().map(|(name, &n)| (name, n)).collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    sorted.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
}

fn none(text: &str) -> String {
    if text.is_empty() { "none".to_string() } else { text.to_string() }
}

/// A name from the file without what would disturb the terminal.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
