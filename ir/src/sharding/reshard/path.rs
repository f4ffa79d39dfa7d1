//! The search for the cheapest sequence of steps: Dijkstra over the shardings of one tensor.
//!
//! # What a path may pass through
//!
//! The shardings of a tensor on a mesh of a few axes are few (each axis is free, partial, or in one
//! dimension), but two sets would be unbounded or useless, so a path's [`Scope`] limits them by its two
//! ends:
//!
//! 1. Block lengths: of a dimension, 1 and those that the ends have there.
//! 2. Partial values: a replicated value is made partial only over axes over which the target is.
//!
//! Ties go to fewer steps, then to the sharding that was found first, so that equal input gives equal
//! paths.

use super::{Step, StepCost, is_free};
use crate::graph::TensorType;
use crate::sharding::{AxisId, DimSharding, Mesh, ReduceKind, Sharding};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap};

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
    reshard_all(ty, from, std::slice::from_ref(to), mesh, cost).pop().flatten()
}

/// [`reshard`] to each of many targets, in one search where their scopes agree.
pub fn reshard_all(
    ty: &TensorType,
    from: &Sharding,
    targets: &[Sharding],
    mesh: &Mesh,
    cost: &dyn StepCost,
) -> Vec<Option<Path>> {
    let mut paths = vec![None; targets.len()];
    let mut by_scope: BTreeMap<Scope, Vec<usize>> = BTreeMap::new();
    for (i, to) in targets.iter().enumerate() {
        if let Some(scope) = Scope::between(ty, from, to, mesh) {
            by_scope.entry(scope).or_default().push(i);
        }
    }
    for (scope, mut wanted) in by_scope {
        let mut search = Search::new(ty, from, scope, mesh, cost);
        while !wanted.is_empty() {
            let Some(at) = search.settle() else { break };
            wanted.retain(|&i| {
                let reached = search.states[at].sharding == targets[i];
                if reached {
                    paths[i] = Some(search.path_to(at));
                }
                !reached
            });
        }
    }
    paths
}

/// The cheapest sequence of steps after which nothing is partial, wherever that leads: how a graph's
/// output is finished.
pub fn reshard_reduced(
    ty: &TensorType,
    from: &Sharding,
    mesh: &Mesh,
    cost: &dyn StepCost,
) -> Option<Path> {
    let whole = Sharding::replicated(ty.rank());
    let mut search = Search::new(ty, from, Scope::between(ty, from, &whole, mesh)?, mesh, cost);
    while let Some(at) = search.settle() {
        if search.states[at].sharding.partial.is_empty() {
            return Some(search.path_to(at));
        }
    }
    None
}

/// Remembers paths, for callers that ask for the same ones again and again.
pub struct Resharder<'a> {
    mesh: &'a Mesh,
    cost: &'a dyn StepCost,
    paths: HashMap<TensorType, HashMap<(Sharding, Sharding), Option<Path>>>,
}

impl std::fmt::Debug for Resharder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resharder").field("mesh", &self.mesh).finish_non_exhaustive()
    }
}

impl<'a> Resharder<'a> {
    /// With nothing remembered.
    pub fn new(mesh: &'a Mesh, cost: &'a dyn StepCost) -> Self {
        Self { mesh, cost, paths: HashMap::new() }
    }

    /// See [`reshard`].
    pub fn path(&mut self, ty: &TensorType, from: &Sharding, to: &Sharding) -> Option<&Path> {
        if !self.paths.contains_key(ty) {
            self.paths.insert(ty.clone(), HashMap::new());
        }
        self.paths
            .get_mut(ty)?
            .entry((from.clone(), to.clone()))
            .or_insert_with(|| reshard(ty, from, to, self.mesh, self.cost))
            .as_ref()
    }

    /// The cost of [`Resharder::path`] in microseconds.
    pub fn cost_us(&mut self, ty: &TensorType, from: &Sharding, to: &Sharding) -> Option<f64> {
        if from == to { Some(0.0) } else { self.path(ty, from, to).map(|p| p.cost_us) }
    }

    /// See [`reshard_all`]: one row of a cost matrix.
    pub fn costs_us(
        &mut self,
        ty: &TensorType,
        from: &Sharding,
        targets: &[Sharding],
    ) -> Vec<Option<f64>> {
        let known = self.paths.entry(ty.clone()).or_default();
        let missing: Vec<Sharding> = targets
            .iter()
            .filter(|&to| !known.contains_key(&(from.clone(), to.clone())))
            .cloned()
            .collect();
        let found = reshard_all(ty, from, &missing, self.mesh, self.cost);
        known.extend(missing.into_iter().map(|to| (from.clone(), to)).zip(found));
        targets.iter().map(|to| self.cost_us(ty, from, to)).collect()
    }
}

/// What a path between two shardings may pass through; see the module's page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scope {
    /// Of each dimension, the block lengths.
    units: Vec<Vec<u64>>,
    /// Axes that may become partial, and how.
    partial: Vec<(AxisId, ReduceKind)>,
}

impl Scope {
    fn between(ty: &TensorType, from: &Sharding, to: &Sharding, mesh: &Mesh) -> Option<Self> {
        if !from.is_valid(ty.rank(), mesh) || !to.is_valid(ty.rank(), mesh) {
            return None;
        }
        let units = from.dims.iter().zip(&to.dims).map(|(a, b)| {
            let mut units = vec![1, a.unit, b.unit];
            units.sort_unstable();
            units.dedup();
            units
        });
        Some(Self { units: units.collect(), partial: to.partial.clone() })
    }
}

/// A sharding that the search has found.
struct State {
    sharding: Sharding,
    /// The largest part.
    local: TensorType,
    /// Of the best path found so far.
    cost_us: f64,
    steps: u32,
    /// The last step of that path and where it starts.
    arrived: Option<(usize, Step)>,
    settled: bool,
}

/// An entry of the queue: the state as it was when queued.
#[derive(PartialEq)]
struct Entry {
    cost_us: f64,
    steps: u32,
    state: usize,
}

impl Eq for Entry {}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.cost_us
            .total_cmp(&other.cost_us)
            .then(self.steps.cmp(&other.steps))
            .then(self.state.cmp(&other.state))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Search<'a> {
    ty: &'a TensorType,
    scope: Scope,
    mesh: &'a Mesh,
    cost: &'a dyn StepCost,
    states: Vec<State>,
    index: HashMap<Sharding, usize>,
    queue: BinaryHeap<Reverse<Entry>>,
}

impl<'a> Search<'a> {
    fn new(
        ty: &'a TensorType,
        from: &Sharding,
        scope: Scope,
        mesh: &'a Mesh,
        cost: &'a dyn StepCost,
    ) -> Self {
        let mut search = Self {
            ty,
            scope,
            mesh,
            cost,
            states: Vec::new(),
            index: HashMap::new(),
            queue: BinaryHeap::new(),
        };
        let start = search.intern(from.clone());
        (search.states[start].cost_us, search.states[start].steps) = (0.0, 0);
        search.queue.push(Reverse(Entry { cost_us: 0.0, steps: 0, state: start }));
        search
    }

    fn intern(&mut self, sharding: Sharding) -> usize {
        if let Some(&at) = self.index.get(&sharding) {
            return at;
        }
        let local =
            TensorType::new(self.ty.dtype, sharding.max_local_shape(&self.ty.shape, self.mesh));
        self.index.insert(sharding.clone(), self.states.len());
        self.states.push(State {
            sharding,
            local,
            cost_us: f64::MAX,
            steps: u32::MAX,
            arrived: None,
            settled: false,
        });
        self.states.len() - 1
    }

    /// The next sharding in order of distance, whose best path is now known.
    fn settle(&mut self) -> Option<usize> {
        while let Some(Reverse(Entry { state: at, .. })) = self.queue.pop() {
            if std::mem::replace(&mut self.states[at].settled, true) {
                continue;
            }
            let sharding = self.states[at].sharding.clone();
            for step in self.steps_from(&sharding) {
                let Some(next) = step.apply(&sharding, &self.ty.shape, self.mesh) else { continue };
                self.relax(at, step, next);
            }
            return Some(at);
        }
        None
    }

    fn relax(&mut self, at: usize, step: Step, next: Sharding) {
        let next = self.intern(next);
        if self.states[next].settled {
            return;
        }
        let (before, after) = (&self.states[at].local, &self.states[next].local);
        let cost_us = self.states[at].cost_us + self.cost.step_us(&step, before, after, self.mesh);
        let steps = self.states[at].steps + 1;
        let state = &mut self.states[next];
        let order = cost_us.total_cmp(&state.cost_us).then(steps.cmp(&state.steps));
        if order == Ordering::Less {
            (state.cost_us, state.steps) = (cost_us, steps);
            state.arrived = Some((at, step));
            self.queue.push(Reverse(Entry { cost_us, steps, state: next }));
        }
    }

    fn path_to(&self, mut at: usize) -> Path {
        let cost_us = self.states[at].cost_us;
        let (mut steps, mut shardings) = (Vec::new(), Vec::new());
        while let Some((before, step)) = &self.states[at].arrived {
            steps.push(step.clone());
            shardings.push(self.states[at].sharding.clone());
            at = *before;
        }
        steps.reverse();
        shardings.reverse();
        Path { steps, shardings, cost_us }
    }

    /// Every step that the scope offers; those that do not nest with what is there fail to apply.
    fn steps_from(&self, s: &Sharding) -> Vec<Step> {
        let mut steps = Vec::new();
        let free: Vec<AxisId> =
            self.mesh.axis_ids().filter(|&a| is_free(s, a, self.mesh)).collect();

        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod] {
            let of_kind = |list: &[(AxisId, ReduceKind)]| -> Vec<AxisId> {
                list.iter().filter(|p| p.1 == kind).map(|p| p.0).collect()
            };
            for axes in arrangements(&of_kind(&s.partial)) {
                if axes.is_sorted() {
                    steps.push(Step::AllReduce { axes: axes.clone(), kind });
                }
                self.each_split(s, &axes, |dim, unit| {
                    steps.push(Step::ReduceScatter { axes: axes.clone(), dim, kind, unit });
                });
            }
            let mut wanted = of_kind(&self.scope.partial);
            wanted.retain(|a| free.contains(a));
            for axes in arrangements(&wanted) {
                if axes.is_sorted() {
                    steps.push(Step::ToPartial { axes, kind });
                }
            }
        }
        for (from, d) in s.dims.iter().enumerate() {
            for first in 0..d.axes.len() {
                let axes = &d.axes[first..];
                steps.push(Step::AllGather { axes: axes.to_vec(), dim: from });
                self.each_split(s, axes, |to, unit| {
                    if to != from {
                        steps.push(Step::AllToAll { axes: axes.to_vec(), from, to, unit });
                    }
                });
            }
        }
        for axes in arrangements(&free) {
            self.each_split(s, &axes, |dim, unit| {
                steps.push(Step::Slice { axes: axes.clone(), dim, unit });
            });
        }
        steps
    }

    /// Every dimension to which the axes may be added, and in which block length.
    fn each_split(&self, s: &Sharding, axes: &[AxisId], mut f: impl FnMut(usize, u64)) {
        for (dim, (d, &n)) in s.dims.iter().zip(&self.ty.shape).enumerate() {
            let mut split = d.axes.clone();
            split.extend_from_slice(axes);
            let mut seen = Vec::new();
            for &unit in &self.scope.units[dim] {
                let split = DimSharding { axes: split.clone(), unit }.canonical(n, self.mesh);
                // Block lengths that say the same partition are one step.
                if seen.contains(&split.unit) {
                    continue;
                }
                seen.push(split.unit);
                f(dim, unit);
            }
        }
    }
}

/// Every ordered selection of one or more of these axes.
fn arrangements(axes: &[AxisId]) -> Vec<Vec<AxisId>> {
    let mut all = Vec::new();
    let mut last: Vec<Vec<AxisId>> = vec![Vec::new()];
    while !last.is_empty() {
        last = last
            .iter()
            .flat_map(|start| {
                axes.iter().filter(|a| !start.contains(a)).map(|&a| {
                    let mut longer = start.clone();
                    longer.push(a);
                    longer
                })
            })
            .collect();
        all.extend_from_slice(&last);
    }
    all
}
