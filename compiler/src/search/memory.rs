//! Memory rows of a request: what is held while each node runs.
//!
//! Said in [`evaluate`](super::evaluate); here the same is written down for every choice at once. Loaded
//! values stay throughout; a node's result is held from its node to its last reader, an output to the
//! end; further forms from the first reader to the last; the result of a node that changes only a
//! description shares its operand's bytes while the node runs.
//!
//! Where several micro-batches are under way, what is kept for their backward phases and their inputs are held
//! throughout, as often as that.
//!
//! Rows that no choice can bring over the limit are left out, and so are rows that hold no more than
//! another one.

use super::formulate::Formulation;
use super::request::{Form, Home, Memory, MemoryRow};
use super::space::{Maker, Source, Space};
use super::state::next_values;
use super::ways::{Ways, held_bytes};
use planc_ir::program::Kernel;
use planc_ir::sharding::section;
use planc_ir::{Graph, Phase, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The memory of a formulation, with all rows that could exceed the limit.
pub fn memory(
    space: &Space<'_>,
    ways: &Ways,
    formulation: &Formulation,
    limit_bytes: u64,
) -> Memory {
    let homes: Vec<Home> = (0..space.groups.len())
        .map(|g| {
            let ty = &space.groups[g].ty;
            let (decision, homes) = formulation.home(space, g);
            let bytes = homes.iter().map(|&s| held_bytes(ty, &space.shardings[s], space.mesh));
            Home { decision, bytes: bytes.collect() }
        })
        .collect();
    let mut forms = Vec::new();
    let mut form_of = BTreeMap::new();
    for (&(g, section), &edge) in &formulation.edges {
        let group = &space.groups[g];
        let bytes = ways.from[g]
            .iter()
            .map(|&f| ways.to[g].iter().map(|&t| bytes_between(ways, group, f, t)).collect())
            .collect();
        form_of.insert((g, section), forms.len());
        forms.push(Form { edge, bytes });
    }
    let mut memory = Memory { limit_bytes, homes, forms, rows: Vec::new() };
    let rows: Vec<MemoryRow> = rows(space, &form_of)
        .into_iter()
        .filter(|row| worst_bytes(&memory, row) > limit_bytes)
        .collect();
    let implied =
        |row: &MemoryRow| rows.iter().any(|other| other != row && holds_no_more(row, other));
    memory.rows = rows.iter().filter(|row| !implied(row)).cloned().collect();
    memory
}

/// Whether all that one row holds, another holds too.
fn holds_no_more(row: &MemoryRow, other: &MemoryRow) -> bool {
    let within = |a: &[(usize, u64)], b: &[(usize, u64)]| {
        a.iter()
            .all(|(item, n)| b.binary_search_by_key(item, |x| x.0).is_ok_and(|at| b[at].1 >= *n))
    };
    within(&row.homes, &other.homes) && within(&row.forms, &other.forms)
}

fn bytes_between(ways: &Ways, group: &super::space::Group, from: usize, to: usize) -> u64 {
    ways.way(group, from, to).map_or(0, |w| w.bytes)
}

/// Every point in time, equal ones once.
fn rows(space: &Space<'_>, form_of: &BTreeMap<(usize, Phase), usize>) -> BTreeSet<MemoryRow> {
    let graph = space.graph;
    let end = graph.nodes.len();
    let held = held(space);
    // By point, how many values of each group are held there in their home and in further forms.
    let mut homes: Vec<BTreeMap<usize, u64>> = vec![BTreeMap::new(); end + 1];
    let mut forms: Vec<BTreeMap<usize, u64>> = vec![BTreeMap::new(); end + 1];
    for (g, group) in space.groups.iter().enumerate() {
        for &v in &group.members {
            let readers = held[v.index()].values().flatten().copied();
            let last = readers.map(|(_, last)| last).max();
            let (from, to) = lifetime(space, group.maker, v, last);
            let is_input = group.maker == Maker::Loaded(Source::Input);
            let (from, to, copies) = kept(graph, from, to, graph.under_way, is_input);
            for point in homes.iter_mut().take(to + 1).skip(from) {
                *point.entry(g).or_default() += copies;
            }
            for (&section, &span) in &held[v.index()] {
                let (Some(&form), Some((first, last))) = (form_of.get(&(g, section)), span) else {
                    continue;
                };
                let copies = match group.maker {
                    Maker::Loaded(Source::Weight | Source::Constant) => 1,
                    _ => graph.under_way,
                };
                let (first, last, copies) = kept(graph, first, last, copies, false);
                for point in &mut forms[first..=last] {
                    *point.entry(form).or_default() += copies;
                }
            }
        }
    }
    let row = |(homes, forms): (BTreeMap<usize, u64>, BTreeMap<usize, u64>)| MemoryRow {
        homes: homes.into_iter().collect(),
        forms: forms.into_iter().collect(),
    };
    homes.into_iter().zip(forms).map(row).collect()
}

/// From when to when something that is used in between is held, and how often: see [`Graph::under_way`].
fn kept(graph: &Graph, from: usize, to: usize, copies: u32, is_input: bool) -> (usize, usize, u64) {
    let end = graph.nodes.len();
    let phase = |at: usize| graph.nodes.get(at).or(graph.nodes.last()).map(|n| n.phase);
    let crosses = phase(from) == Some(Phase::Forward) && phase(to) == Some(Phase::Backward);
    if graph.under_way > 1 && (crosses || is_input) {
        (0, end, copies.into())
    } else {
        (from, to, 1)
    }
}

/// The first and last point at which each value is used, by section.
fn held(space: &Space<'_>) -> Vec<BTreeMap<Phase, Option<(usize, usize)>>> {
    let graph = space.graph;
    let end = graph.nodes.len();
    let mut held: Vec<BTreeMap<Phase, Option<(usize, usize)>>> =
        vec![BTreeMap::new(); graph.values.len()];
    let mut used = |v: ValueId, phase: Phase, first: usize, last: usize| {
        let section = section(graph, v, phase, space.gather_again);
        let span = held[v.index()].entry(section).or_default();
        let (so_far, until) = span.unwrap_or((first, last));
        *span = Some((first.min(so_far), last.max(until)));
    };
    for (at, node) in graph.nodes.iter().enumerate() {
        node.inputs.iter().for_each(|&v| used(v, node.phase, at, at));
    }
    let last_phase = graph.nodes.last().map_or(Phase::Forward, |n| n.phase);
    for next in next_values(graph) {
        let phase = next.maker.map_or(last_phase, |at| graph.nodes[at].phase);
        let at = next.maker.unwrap_or(end);
        used(next.carried.next, phase, at, if next.in_place { at } else { end });
    }
    graph.outputs.iter().for_each(|&v| used(v, last_phase, end, end));
    held
}

/// The first and last point at which a value is held in its home.
fn lifetime(space: &Space<'_>, maker: Maker, v: ValueId, last: Option<usize>) -> (usize, usize) {
    let graph = space.graph;
    let end = graph.nodes.len();
    let planc_ir::ValueDef::Node { node, .. } = &graph.value(v).def else {
        debug_assert!(matches!(maker, Maker::Loaded(_)));
        return (0, end);
    };
    let describes = matches!(graph.node(*node).op.lower(), Kernel::Copy);
    let last = last.unwrap_or(node.index()).max(node.index());
    (node.index() + usize::from(describes), last)
}

/// What a row holds at most under any choice.
fn worst_bytes(memory: &Memory, row: &MemoryRow) -> u64 {
    let most = |bytes: &[u64]| bytes.iter().copied().max().unwrap_or(0);
    let homes = row.homes.iter().map(|&(h, n)| n.saturating_mul(most(&memory.homes[h].bytes)));
    let forms = row.forms.iter().map(|&(f, n)| {
        let all = memory.forms[f]
            .bytes
            .iter()
            .map(|row| row.iter().fold(0u64, |a, &b| a.saturating_add(b)));
        n.saturating_mul(all.max().unwrap_or(0))
    });
    homes.chain(forms).fold(0, u64::saturating_add)
}
