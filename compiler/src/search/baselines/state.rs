//! Data parallelism with state in shards, as ZeRO's stages (Rajbhandari et al., 2020) and FSDP have it.
//!
//! Starting from plain data parallelism, each optimizer step is split over all ranks along one dimension of
//! its parameter, and so is the optimizer's state. What else is in shards is the stage:
//!
//! 1. nothing: gradients are reduced to every rank, and new parameters gathered;
//! 2. gradients: each rank gets the sum of its part only;
//! 3. parameters: they are gathered where they are read.

use crate::search::space::{NodeCandidate, Space};
use planc_ir::ops::Op;
use planc_ir::ops::optimizer_step::FIRST_STATE;
use planc_ir::sharding::{AxisUse, Strategy};
use planc_ir::{Node, Phase, ValueDef, ValueId};

/// What is in shards besides the optimizer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // see the module
pub enum Sharded {
    OptimizerState,
    Gradients,
    Parameters,
}

/// The strategy with state in shards.
pub fn shard(space: &Space<'_>, mut strategy: Strategy, what: Sharded) -> Strategy {
    let graph = space.graph;
    let mut in_forward = vec![false; graph.values.len()];
    for node in graph.nodes.iter().filter(|n| n.phase != Phase::Update) {
        node.inputs.iter().for_each(|v| in_forward[v.index()] = true);
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        if !matches!(node.op, Op::OptimizerStep(_)) {
            continue;
        }
        let Some(step) = widest(candidates(space, at)) else { continue };
        take(space, &mut strategy, at, step);
        let own = std::iter::once(0).chain(FIRST_STATE..node.inputs.len());
        for operand in own {
            let v = node.inputs[operand];
            if what == Sharded::Parameters || !in_forward[v.index()] {
                strategy.values[v.index()] = space.shardings[step.inputs[operand]].clone();
            }
        }
        let is_whole = |c: &NodeCandidate| c.strategy.axes.iter().all(|a| *a == AxisUse::Replicate);
        gradient(space, &mut strategy, node.inputs[1], |c| match what {
            Sharded::OptimizerState => is_whole(c),
            _ => c.outputs.first() == Some(&step.inputs[1]),
        });
        copy(space, &mut strategy, node, step, what);
    }
    strategy
}

fn candidates<'a>(space: &'a Space<'_>, at: usize) -> &'a [NodeCandidate] {
    &space.nodes[&space.blocks.leader[at]]
}

/// The candidate that uses most axes, for one dimension if that is possible, the first of those.
fn widest(candidates: &[NodeCandidate]) -> Option<&NodeCandidate> {
    let key = |c: &NodeCandidate| {
        let mut split: Vec<_> =
            c.strategy.axes.iter().filter(|a| matches!(a, AxisUse::Split(_))).collect();
        let axes = split.len();
        split.sort_unstable();
        split.dedup();
        (axes, std::cmp::Reverse(split.len()))
    };
    let most = candidates.iter().map(key).max()?;
    candidates.iter().find(|c| key(c) == most && most.0 > 0)
}

/// Settles a node on a candidate.
fn take(space: &Space<'_>, strategy: &mut Strategy, at: usize, candidate: &NodeCandidate) {
    strategy.ops[at] = candidate.strategy.clone();
    for (v, &left) in space.graph.nodes[at].outputs.iter().zip(&candidate.outputs) {
        strategy.values[v.index()] = space.shardings[left].clone();
    }
}

/// Settles what makes a gradient on the first candidate that is wanted, and its accumulator with it.
fn gradient(
    space: &Space<'_>,
    strategy: &mut Strategy,
    gradient: ValueId,
    is_wanted: impl Fn(&NodeCandidate) -> bool,
) {
    let ValueDef::Node { node, .. } = space.graph.value(gradient).def else { return };
    let all = candidates(space, node.index());
    let Some(candidate) = all.iter().find(|c| is_wanted(c)) else { return };
    take(space, strategy, node.index(), candidate);
    for (v, &needed) in space.graph.node(node).inputs.iter().zip(&candidate.inputs) {
        if matches!(space.graph.value(*v).def, ValueDef::Accumulator) {
            strategy.values[v.index()] = space.shardings[needed].clone();
        }
    }
}

/// Settles the copy of a new parameter in another type, which is made from the rank's part.
fn copy(
    space: &Space<'_>,
    strategy: &mut Strategy,
    step: &Node,
    candidate: &NodeCandidate,
    what: Sharded,
) {
    let graph = space.graph;
    let (Some(&new), Some(&left)) = (step.outputs.first(), candidate.outputs.first()) else {
        return;
    };
    for (at, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.inputs == [new]) {
        let fits = |c: &&NodeCandidate| c.inputs.first() == Some(&left);
        let Some(cast) = candidates(space, at).iter().find(fits) else { continue };
        take(space, strategy, at, cast);
        for c in graph.carried.iter().filter(|c| node.outputs.contains(&c.next)) {
            if what == Sharded::Parameters {
                strategy.values[c.state.index()] = space.shardings[cast.outputs[0]].clone();
            }
        }
    }
}
