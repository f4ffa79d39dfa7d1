//! The search for the cheapest sequence of steps: Dijkstra over the shardings of one tensor.
//!
//! Ties go to fewer steps, then to the lesser sharding, so that equal input gives equal paths whatever
//! was asked before.

use super::network::{Network, Scope};
use super::{Step, StepCost};
use crate::graph::TensorType;
use crate::sharding::{Mesh, Sharding};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::rc::Rc;

/// A sequence of steps and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// In order; empty if the two ends are equal.
    pub steps: Vec<Step>,
    /// The sharding after each step; the last is the target.
    pub shardings: Vec<Sharding>,
    /// The sum of the steps' times, in microseconds.
    pub cost_us: f64,
}

/// The cheapest sequence of steps from `from` to `to`. There is one between any two shardings of a
/// tensor of this type in canonical form; `None` if they are not that.
pub fn reshard(
    ty: &TensorType,
    from: &Sharding,
    to: &Sharding,
    mesh: &Mesh,
    cost: &dyn StepCost,
) -> Option<Path> {
    Resharder::new(mesh, cost).path(ty, from, to).cloned()
}

/// [`reshard`] to each of many targets.
pub fn reshard_all(
    ty: &TensorType,
    from: &Sharding,
    targets: &[Sharding],
    mesh: &Mesh,
    cost: &dyn StepCost,
) -> Vec<Option<Path>> {
    Resharder::new(mesh, cost).paths(ty, from, targets)
}

/// The cheapest sequence of steps after which nothing is partial, wherever that leads: how a graph's
/// output is finished.
pub fn reshard_reduced(
    ty: &TensorType,
    from: &Sharding,
    mesh: &Mesh,
    cost: &dyn StepCost,
) -> Option<Path> {
    let scope = Scope::between(ty, from, &Sharding::replicated(ty.rank()), mesh)?;
    let mut network = Network::new(ty.clone(), scope, mesh, cost);
    let mut search = Search::new(&mut network, from);
    while let Some(at) = search.settle() {
        if search.network.nodes[at].sharding.partial.is_empty() {
            return Some(search.path_to(at));
        }
    }
    None
}

/// Finds paths and remembers them, with all that was worked out on the way.
pub struct Resharder<'a> {
    mesh: &'a Mesh,
    cost: &'a dyn StepCost,
    types: HashMap<TensorType, Known<'a>>,
}

/// What is known of the reshards of one type.
#[derive(Default)]
struct Known<'a> {
    paths: HashMap<(Sharding, Sharding), Option<Path>>,
    networks: BTreeMap<Scope, Network<'a>>,
}

impl std::fmt::Debug for Resharder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resharder").field("mesh", &self.mesh).finish_non_exhaustive()
    }
}

impl<'a> Resharder<'a> {
    /// With nothing known.
    pub fn new(mesh: &'a Mesh, cost: &'a dyn StepCost) -> Self {
        Self { mesh, cost, types: HashMap::new() }
    }

    /// See [`reshard`].
    pub fn path(&mut self, ty: &TensorType, from: &Sharding, to: &Sharding) -> Option<&Path> {
        let key = (from.clone(), to.clone());
        if !self.types.get(ty).is_some_and(|known| known.paths.contains_key(&key)) {
            self.find(ty, from, std::slice::from_ref(to));
        }
        self.types.get(ty)?.paths.get(&key)?.as_ref()
    }

    /// The cost of [`Resharder::path`] in microseconds.
    pub fn cost_us(&mut self, ty: &TensorType, from: &Sharding, to: &Sharding) -> Option<f64> {
        if from == to { Some(0.0) } else { self.path(ty, from, to).map(|p| p.cost_us) }
    }

    /// See [`reshard_all`].
    pub fn paths(
        &mut self,
        ty: &TensorType,
        from: &Sharding,
        targets: &[Sharding],
    ) -> Vec<Option<Path>> {
        self.find(ty, from, targets);
        targets.iter().map(|to| self.path(ty, from, to).cloned()).collect()
    }

    /// Finds the paths that are not known, in one search where their scopes agree.
    fn find(&mut self, ty: &TensorType, from: &Sharding, targets: &[Sharding]) {
        let (mesh, cost) = (self.mesh, self.cost);
        let Known { paths, networks } = self.types.entry(ty.clone()).or_default();
        let mut by_scope: BTreeMap<Scope, Vec<&Sharding>> = BTreeMap::new();
        for to in targets {
            let key = (from.clone(), to.clone());
            if paths.contains_key(&key) {
                continue;
            }
            paths.insert(key, None);
            if let Some(scope) = Scope::between(ty, from, to, mesh) {
                by_scope.entry(scope).or_default().push(to);
            }
        }
        for (scope, mut wanted) in by_scope {
            let network = networks
                .entry(scope.clone())
                .or_insert_with(|| Network::new(ty.clone(), scope, mesh, cost));
            let mut search = Search::new(network, from);
            while !wanted.is_empty() {
                let Some(at) = search.settle() else { break };
                if let Some(i) =
                    wanted.iter().position(|&to| *to == *search.network.nodes[at].sharding)
                {
                    let to = wanted.swap_remove(i).clone();
                    paths.insert((from.clone(), to), Some(search.path_to(at)));
                }
            }
        }
    }
}

/// An entry of the queue: a node and a path to it.
struct Entry {
    cost_us: f64,
    steps: usize,
    sharding: Rc<Sharding>,
    node: usize,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.cost_us
            .total_cmp(&other.cost_us)
            .then(self.steps.cmp(&other.steps))
            .then_with(|| self.sharding.cmp(&other.sharding))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

/// The best path to a node that was found so far.
#[derive(Clone)]
struct Best {
    cost_us: f64,
    steps: usize,
    /// The last step, and the node from which it leads; none at the start.
    arrived: Option<(usize, Step)>,
    /// Whether no better path can be found.
    is_settled: bool,
}

/// Dijkstra's algorithm from one node.
struct Search<'n, 'a> {
    network: &'n mut Network<'a>,
    best: Vec<Option<Best>>,
    queue: BinaryHeap<Reverse<Entry>>,
}

impl<'n, 'a> Search<'n, 'a> {
    fn new(network: &'n mut Network<'a>, from: &Sharding) -> Self {
        let start = network.node(from.clone());
        let mut search = Self { network, best: Vec::new(), queue: BinaryHeap::new() };
        search.improve(start, Best { cost_us: 0.0, steps: 0, arrived: None, is_settled: false });
        search
    }

    fn improve(&mut self, node: usize, best: Best) {
        let sharding = Rc::clone(&self.network.nodes[node].sharding);
        let (cost_us, steps) = (best.cost_us, best.steps);
        self.queue.push(Reverse(Entry { cost_us, steps, sharding, node }));
        if self.best.len() <= node {
            self.best.resize(self.network.nodes.len(), None);
        }
        self.best[node] = Some(best);
    }

    /// The next node in order of distance, whose best path is now known.
    fn settle(&mut self) -> Option<usize> {
        while let Some(Reverse(Entry { cost_us, steps, node: at, .. })) = self.queue.pop() {
            let Some(best) = &mut self.best[at] else { continue };
            if std::mem::replace(&mut best.is_settled, true) {
                continue;
            }
            for edge in self.network.edges(at).iter() {
                let (cost_us, steps) = (cost_us + edge.cost_us, steps + 1);
                let known = self.best.get(edge.to).and_then(Option::as_ref);
                let is_better = known.is_none_or(|b| {
                    let order = cost_us.total_cmp(&b.cost_us).then(steps.cmp(&b.steps));
                    !b.is_settled && order.is_lt()
                });
                if is_better {
                    let arrived = Some((at, edge.step.clone()));
                    self.improve(edge.to, Best { cost_us, steps, arrived, is_settled: false });
                }
            }
            return Some(at);
        }
        None
    }

    /// The best path to a settled node.
    fn path_to(&self, mut at: usize) -> Path {
        let cost_us = self.best[at].as_ref().map_or(0.0, |b| b.cost_us);
        let (mut steps, mut shardings) = (Vec::new(), Vec::new());
        while let Some(Best { arrived: Some((before, step)), .. }) = &self.best[at] {
            steps.push(step.clone());
            shardings.push((*self.network.nodes[at].sharding).clone());
            at = *before;
        }
        steps.reverse();
        shardings.reverse();
        Path { steps, shardings, cost_us }
    }
}
