//! Puts nodes into topological order, checks that every value is defined once, drops what is unused.

use super::error::ImportError;
use super::functions::{Item, bodies};
use super::wire::{GraphProto, TensorProto, ValueInfoProto};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Sorts nodes so that each reads only what is defined before it; those that may come in any order
/// stay in the file's. `defined` says what defines a value without a node, `outer` whether an
/// enclosing graph defines it.
pub(super) fn sort<'a>(
    items: Vec<Item<'a>>,
    defined: &HashMap<&str, &'static str>,
    outer: impl Fn(&str) -> bool,
) -> Result<Vec<Item<'a>>, ImportError> {
    let order = {
        let producers = producers(&items, defined)?;
        let predecessors =
            predecessors(&items, &producers, |name| defined.contains_key(name) || outer(name))?;
        order(&items, &predecessors)?
    };
    let mut items: Vec<Option<Item<'a>>> = items.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|i| items[i].take()).collect())
}

/// Drops nodes that no output needs, and notes which outputs of the others are read.
pub(super) fn live<'a>(sorted: Vec<Item<'a>>, outputs: &[ValueInfoProto]) -> Vec<Item<'a>> {
    let mut needed: HashSet<&str> = outputs.iter().map(ValueInfoProto::name).collect();
    let mut read = vec![0; sorted.len()];
    for (item, read) in sorted.iter().zip(&mut read).rev() {
        let last = item.node.output.iter().rposition(|o| needed.contains(o.as_str()));
        *read = last.map_or(0, |i| i + 1);
        if *read > 0 {
            needed.extend(item.node.input.iter().map(String::as_str).filter(|n| !n.is_empty()));
            needed.extend(bodies(&item.node).flat_map(free_names));
        }
    }
    let counted = sorted.into_iter().zip(read).map(|(item, outputs)| Item { outputs, ..item });
    counted.filter(|item| item.outputs > 0).collect()
}

/// For each value, the node that outputs it.
fn producers<'i>(
    items: &'i [Item<'_>],
    defined: &HashMap<&str, &'static str>,
) -> Result<HashMap<&'i str, usize>, ImportError> {
    let mut producers = HashMap::new();
    let node = |i: usize| format!("node `{}`", items[i].name());
    for (i, item) in items.iter().enumerate() {
        for name in item.node.output.iter().map(String::as_str).filter(|o| !o.is_empty()) {
            let first = match producers.insert(name, i) {
                Some(first) => node(first),
                None => match defined.get(name) {
                    Some(what) => (*what).to_string(),
                    None => continue,
                },
            };
            return Err(ImportError::Duplicate {
                what: "the value",
                name: name.to_string(),
                first,
                second: node(i),
            });
        }
    }
    Ok(producers)
}

/// For each node, the nodes whose outputs it reads.
fn predecessors(
    items: &[Item<'_>],
    producers: &HashMap<&str, usize>,
    known: impl Fn(&str) -> bool,
) -> Result<Vec<Vec<usize>>, ImportError> {
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        let own = item.node.input.iter().map(String::as_str).filter(|n| !n.is_empty());
        let captured = bodies(&item.node).flat_map(free_names);
        let mut list = Vec::new();
        for name in own.chain(captured) {
            match producers.get(name) {
                Some(&p) => list.push(p),
                None if known(name) => {}
                None => {
                    return Err(ImportError::Undefined {
                        node: item.name(),
                        op_type: item.node.op_type().to_string(),
                        value: name.to_string(),
                    });
                }
            }
        }
        list.sort_unstable();
        list.dedup();
        out.push(list);
    }
    Ok(out)
}

/// What a body reads from outside. Depth is bounded by that of the messages.
fn free_names(body: &GraphProto) -> Vec<&str> {
    let inputs = body.input.iter().map(ValueInfoProto::name);
    let initializers = body.initializer.iter().map(TensorProto::name);
    let outputs = body.node.iter().flat_map(|n| &n.output).map(String::as_str);
    let local: HashSet<&str> = inputs.chain(initializers).chain(outputs).collect();
    let mut read: Vec<&str> = Vec::new();
    for node in &body.node {
        read.extend(node.input.iter().map(String::as_str));
        read.extend(bodies(node).flat_map(free_names));
    }
    read.extend(body.output.iter().map(ValueInfoProto::name));
    let mut seen = HashSet::new();
    read.retain(|name| !name.is_empty() && !local.contains(name) && seen.insert(*name));
    read
}

fn order(items: &[Item<'_>], predecessors: &[Vec<usize>]) -> Result<Vec<usize>, ImportError> {
    let mut successors: Vec<Vec<usize>> = vec![Vec::new(); items.len()];
    let mut missing: Vec<usize> = Vec::with_capacity(items.len());
    for (i, before) in predecessors.iter().enumerate() {
        missing.push(before.len());
        for &p in before {
            successors[p].push(i);
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..items.len()).filter(|&i| missing[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(items.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &s in &successors[i] {
            missing[s] -= 1;
            if missing[s] == 0 {
                ready.push(Reverse(s));
            }
        }
    }
    match missing.iter().position(|&n| n > 0) {
        None => Ok(order),
        Some(start) => Err(ImportError::Cycle {
            nodes: circle(start, predecessors, &missing)
                .into_iter()
                .map(|i| items[i].name())
                .collect(),
        }),
    }
}

/// How many nodes of a circle are named.
const LISTED_NODES: usize = 8;

/// A circle among the nodes that could not be ordered: every one of them waits for another.
fn circle(start: usize, predecessors: &[Vec<usize>], missing: &[usize]) -> Vec<usize> {
    let mut walk = vec![start];
    let mut seen = HashMap::from([(start, 0)]);
    let waits_for = |at: usize| predecessors[at].iter().copied().find(|&p| missing[p] > 0);
    let mut at = start;
    while let Some(next) = waits_for(at) {
        if let Some(&first) = seen.get(&next) {
            let mut circle = walk.split_off(first);
            circle.push(next);
            circle.reverse();
            circle.truncate(LISTED_NODES);
            return circle;
        }
        seen.insert(next, walk.len());
        walk.push(next);
        at = next;
    }
    walk
}
