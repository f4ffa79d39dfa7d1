//! Printing. Prints any graph, also one that the verifier rejects, so that it can be looked at.

use super::literal;
use crate::graph::{Carried, Extents, Graph, Node, Phase, ValueDef, ValueId, WeightSource};
use crate::ops::Op;
use std::collections::BTreeSet;
use std::fmt::{self, Write};

/// The textual form of a graph.
pub fn print(graph: &Graph) -> String {
    graph.to_string()
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {} {{", quote(&self.name))?;
        for &id in &self.inputs {
            source(f, self, id)?;
        }
        let listed: BTreeSet<ValueId> = self.inputs.iter().copied().collect();
        for id in self.value_ids().filter(|id| !listed.contains(id)) {
            if !matches!(self.value(id).def, ValueDef::Node { .. }) {
                source(f, self, id)?;
            }
        }
        for n in &self.nodes {
            node(f, self, n)?;
        }
        for id in &self.outputs {
            writeln!(f, "  output {id}")?;
        }
        for Carried { state, next } in &self.carried {
            writeln!(f, "  carried {state} {next}")?;
        }
        if self.micro_batches != 1 {
            writeln!(f, "  micro_batches {}", self.micro_batches)?;
        }
        if self.under_way != 1 {
            writeln!(f, "  under_way {}", self.under_way)?;
        }
        f.write_str("}\n")
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// A value that no node defines.
fn source(f: &mut fmt::Formatter<'_>, graph: &Graph, id: ValueId) -> fmt::Result {
    write!(f, "  {} = ", def(graph, id))?;
    match graph.values.get(id.index()).map(|v| &v.def) {
        Some(ValueDef::Input | ValueDef::Node { .. }) | None => f.write_str("input")?,
        Some(ValueDef::Accumulator) => f.write_str("accumulator")?,
        Some(ValueDef::Constant(t)) => write!(f, "constant {}", literal::print(t))?,
        Some(ValueDef::Weight(source)) => {
            f.write_str("weight ")?;
            place(f, source)?;
        }
    }
    writeln!(f, " : {}", ty(graph, id))
}

/// Where a weight's contents come from.
fn place(f: &mut fmt::Formatter<'_>, source: &WeightSource) -> fmt::Result {
    match source {
        WeightSource::Inline(t) => f.write_str(&literal::print(t)),
        WeightSource::ModelFile { offset, bytes } => write!(f, "file({offset}, {bytes})"),
        WeightSource::External { location, offset, bytes } => {
            write!(f, "external({}, {offset}, {bytes})", quote(location))
        }
        // As bits, so that every number comes back.
        WeightSource::Fill { value } => write!(f, "fill({})", value.to_bits()),
        WeightSource::Cast { from, source } => {
            write!(f, "cast({from}, ")?;
            place(f, source)?;
            f.write_str(")")
        }
    }
}

fn node(f: &mut fmt::Formatter<'_>, graph: &Graph, node: &Node) -> fmt::Result {
    let defs = list(&node.outputs, |v| def(graph, v));
    let types = list(&node.outputs, |v| ty(graph, v));
    let inputs = list(&node.inputs, |v| v.to_string());
    if defs.is_empty() {
        write!(f, "  {}({inputs})", node.op.name())?;
    } else {
        write!(f, "  {defs} = {}({inputs})", node.op.name())?;
    }
    if let Some(attributes) = attributes(&node.op) {
        write!(f, " {attributes}")?;
    }
    write!(f, " @ {}", quote(&node.name))?;
    if !node.scope.is_empty() {
        write!(f, " scope {}", quote(&node.scope))?;
    }
    if node.phase != Phase::Forward {
        write!(f, " phase {}", node.phase.name())?;
    }
    if types.is_empty() { writeln!(f) } else { writeln!(f, " : {types}") }
}

/// An op's attributes as JSON, `None` when it has none. The op's own serialised form is
/// `{"Name":attributes}`; what cannot be serialised prints as an object that does not parse back.
fn attributes(op: &Op) -> Option<String> {
    let tagged = match serde_json::to_string(op) {
        Ok(json) => json,
        Err(e) => return Some(format!("{{\"unprintable\":{}}}", quote(&e.to_string()))),
    };
    let inner = tagged.strip_prefix(&format!("{{{}:", quote(op.name())))?.strip_suffix('}')?;
    (inner != "{}" && inner != "null").then(|| inner.to_string())
}

fn def(graph: &Graph, id: ValueId) -> String {
    let name = graph.values.get(id.index()).map_or("", |v| v.name.as_str());
    format!("{id} {}", quote(name))
}

fn ty(graph: &Graph, id: ValueId) -> String {
    match graph.values.get(id.index()) {
        None => "undefined".to_string(),
        Some(v) if v.extents == Extents::Dynamic => format!("{}[*]", v.ty.dtype),
        Some(v) => v.ty.to_string(),
    }
}

fn list(ids: &[ValueId], item: impl Fn(ValueId) -> String) -> String {
    ids.iter().map(|&v| item(v)).collect::<Vec<_>>().join(", ")
}

/// As a JSON string.
fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            // Writing to a string cannot fail.
            c if c.is_control() => drop(write!(out, "\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
