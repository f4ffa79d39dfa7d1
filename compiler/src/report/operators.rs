//! The ONNX operators that planc reads, as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// An operator that planc reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Its name.
    pub name: &'static str,
    /// Its domain; ONNX's own is written out.
    pub domain: &'static str,
    /// The versions from which on it is read, each in its own way.
    pub since: Vec<i64>,
}

/// All operators by domain and name, ONNX's own first.
pub fn operators() -> Vec<Operator> {
    let mut since: BTreeMap<(&str, &str), Vec<i64>> = BTreeMap::new();
    for entry in planc_ir::ops::decoders() {
        since.entry((entry.domain, entry.name)).or_default().push(entry.since);
    }
    let operator = |((domain, name), mut since): ((&'static str, &'static str), Vec<i64>)| {
        since.sort_unstable();
        Operator { name, domain: if domain.is_empty() { "ai.onnx" } else { domain }, since }
    };
    since.into_iter().map(operator).collect()
}

/// The table in Markdown, with what stands above it in docs/operators.md.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Operators\n\nThe ONNX operators that planc reads, and the opsets from which on it does. A model with others is refused \
         with one error\nthat lists them all. `planc ops --markdown` writes this page.\n\n\
         | operator | domain | read from opset |\n|---|---|---|\n",
    );
    for operator in operators() {
        let since: Vec<String> = operator.since.iter().map(ToString::to_string).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {} | {} | {} |", operator.name, operator.domain, since.join(", "));
    }
    out
}
