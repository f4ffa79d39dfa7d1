//! The shardings of one tensor type and the steps between them: what paths are searched in.
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
//! Steps and prices between shardings of one type in one scope do not depend on where a path begins or
//! ends, so they are worked out once for all paths.

use super::{Step, StepCost, is_free};
use crate::graph::TensorType;
use crate::sharding::{AxisId, DimSharding, Mesh, ReduceKind, Sharding};
use std::collections::HashMap;
use std::rc::Rc;

/// What a path between two shardings may pass through.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    /// Of each dimension, the block lengths.
    units: Vec<Vec<u64>>,
    /// Axes that may become partial, and how.
    partial: Vec<(AxisId, ReduceKind)>,
}

impl Scope {
    pub(super) fn between(
        ty: &TensorType,
        from: &Sharding,
        to: &Sharding,
        mesh: &Mesh,
    ) -> Option<Self> {
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

/// The shardings of one type in one scope that were found so far, and the steps between them.
pub(super) struct Network<'a> {
    ty: TensorType,
    scope: Scope,
    mesh: &'a Mesh,
    cost: &'a dyn StepCost,
    pub(super) nodes: Vec<Node>,
    index: HashMap<Rc<Sharding>, usize>,
}

pub(super) struct Node {
    pub(super) sharding: Rc<Sharding>,
    /// The largest part.
    local: TensorType,
    /// The steps that lead away; `None` until they are asked for.
    edges: Option<Rc<[Edge]>>,
}

pub(super) struct Edge {
    pub(super) step: Step,
    pub(super) to: usize,
    pub(super) cost_us: f64,
}

impl<'a> Network<'a> {
    pub(super) fn new(
        ty: TensorType,
        scope: Scope,
        mesh: &'a Mesh,
        cost: &'a dyn StepCost,
    ) -> Self {
        Self { ty, scope, mesh, cost, nodes: Vec::new(), index: HashMap::new() }
    }

    pub(super) fn node(&mut self, sharding: Sharding) -> usize {
        if let Some(&at) = self.index.get(&sharding) {
            return at;
        }
        let shape = sharding.max_local_shape(&self.ty.shape, self.mesh);
        let (local, sharding) = (TensorType::new(self.ty.dtype, shape), Rc::new(sharding));
        self.index.insert(Rc::clone(&sharding), self.nodes.len());
        self.nodes.push(Node { sharding, local, edges: None });
        self.nodes.len() - 1
    }

    pub(super) fn edges(&mut self, at: usize) -> Rc<[Edge]> {
        if let Some(edges) = &self.nodes[at].edges {
            return Rc::clone(edges);
        }
        let from = Rc::clone(&self.nodes[at].sharding);
        let mut edges = Vec::new();
        for step in self.steps_from(&from) {
            let Some(next) = step.apply(&from, &self.ty.shape, self.mesh) else { continue };
            let to = self.node(next);
            let (before, after) = (&self.nodes[at].local, &self.nodes[to].local);
            let cost_us = self.cost.step_us(&step, before, after, self.mesh);
            edges.push(Edge { step, to, cost_us });
        }
        let edges: Rc<[Edge]> = edges.into();
        self.nodes[at].edges = Some(Rc::clone(&edges));
        edges
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
