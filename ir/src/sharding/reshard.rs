//! Resharding: the cheapest sequence of steps from one sharding of a tensor to another.
//!
//! [`Step::apply`] is the only definition of what a step does to a sharding: the search for paths,
//! the partitioner and the verifier all go through it. How steps are priced is supplied from outside
//! ([`StepCost`]).

mod network;
mod path;

pub use path::{Path, Resharder, reshard, reshard_all, reshard_reduced};

use super::mesh::{AxisId, Mesh};
use super::spec::{DimSharding, ReduceKind, Sharding};
use crate::graph::TensorType;
use serde::{Deserialize, Serialize};

/// One step. Axes are always the least significant ones of their dimension, most significant first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Partial over `axes` becomes replicated over them.
    AllReduce {
        /// The axes.
        axes: Vec<AxisId>,
        /// How contributions combine.
        kind: ReduceKind,
    },
    /// Partial over `axes` becomes split over them in `dim`, as new least significant axes.
    ReduceScatter {
        /// The axes.
        axes: Vec<AxisId>,
        /// The dimension.
        dim: usize,
        /// How contributions combine.
        kind: ReduceKind,
        /// Block length of the new split.
        unit: u64,
    },
    /// The least significant `axes` of `dim` are gathered.
    AllGather {
        /// The axes.
        axes: Vec<AxisId>,
        /// The dimension.
        dim: usize,
    },
    /// The least significant `axes` of `from` become new least significant axes of `to`.
    AllToAll {
        /// The axes.
        axes: Vec<AxisId>,
        /// The dimension that is gathered.
        from: usize,
        /// The dimension that is split.
        to: usize,
        /// Block length of the new split.
        unit: u64,
    },
    /// Each rank keeps its part of `dim`: a local step.
    Slice {
        /// The new least significant axes.
        axes: Vec<AxisId>,
        /// The dimension.
        dim: usize,
        /// Block length of the new split.
        unit: u64,
    },
    /// Replicated over `axes` becomes partial over them: the rank at coordinate 0 keeps its value, the
    /// others take the neutral element. A local step.
    ToPartial {
        /// The axes.
        axes: Vec<AxisId>,
        /// How contributions combine.
        kind: ReduceKind,
    },
}

/// Prices steps. Supplied from outside: this crate knows no costs.
pub trait StepCost {
    /// Time of a step in microseconds, at least 0, from the largest local types before and after.
    fn step_us(&self, step: &Step, before: &TensorType, after: &TensorType, mesh: &Mesh) -> f64;
}

impl Step {
    /// The axes that it works over.
    pub fn axes(&self) -> &[AxisId] {
        match self {
            Self::AllReduce { axes, .. }
            | Self::ReduceScatter { axes, .. }
            | Self::AllGather { axes, .. }
            | Self::AllToAll { axes, .. }
            | Self::Slice { axes, .. }
            | Self::ToPartial { axes, .. } => axes,
        }
    }

    /// Whether ranks exchange data.
    pub const fn is_collective(&self) -> bool {
        !matches!(self, Self::Slice { .. } | Self::ToPartial { .. })
    }

    /// The name of its kind, as reports say it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AllReduce { .. } => "all-reduce",
            Self::ReduceScatter { .. } => "reduce-scatter",
            Self::AllGather { .. } => "all-gather",
            Self::AllToAll { .. } => "all-to-all",
            Self::Slice { .. } => "slice",
            Self::ToPartial { .. } => "to-partial",
        }
    }

    /// Whether both are collectives that can run as one: of one kind, over the same axes.
    pub fn joins(&self, other: &Self) -> bool {
        let reduces = |s: &Self| match s {
            Self::AllReduce { kind, .. } | Self::ReduceScatter { kind, .. } => Some(*kind),
            _ => None,
        };
        self.is_collective()
            && std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.axes() == other.axes()
            && reduces(self) == reduces(other)
    }

    /// The sharding after the step, or `None` if it does not apply.
    ///
    /// `from` must be a valid sharding of a tensor of shape `shape`, in canonical form; the result is
    /// one too. The step itself may be anything.
    pub fn apply(&self, from: &Sharding, shape: &[u64], mesh: &Mesh) -> Option<Sharding> {
        if self.axes().is_empty() || shape.len() != from.dims.len() {
            return None;
        }
        let mut s = from.clone();
        match self {
            Self::AllReduce { axes, kind } => take_partial(&mut s, axes, *kind)?,
            Self::ReduceScatter { axes, dim, kind, unit } => {
                take_partial(&mut s, axes, *kind)?;
                push_axes(&mut s, axes, *dim, *unit, shape, mesh)?;
            }
            Self::AllGather { axes, dim } => pop_axes(&mut s, axes, *dim, shape, mesh)?,
            Self::AllToAll { axes, from, to, unit } => {
                if from == to {
                    return None;
                }
                pop_axes(&mut s, axes, *from, shape, mesh)?;
                push_axes(&mut s, axes, *to, *unit, shape, mesh)?;
            }
            Self::Slice { axes, dim, unit } => {
                push_axes(&mut s, axes, *dim, *unit, shape, mesh)?;
            }
            Self::ToPartial { axes, kind } => {
                for &a in axes {
                    if !is_free(&s, a, mesh) {
                        return None;
                    }
                    s.partial.push((a, *kind));
                }
                s.partial.sort_unstable();
            }
        }
        Some(s)
    }
}

/// Whether the tensor is replicated over an axis of the mesh.
fn is_free(s: &Sharding, axis: AxisId, mesh: &Mesh) -> bool {
    axis.index() < mesh.rank()
        && s.split_axes().all(|a| a != axis)
        && s.partial.iter().all(|&(a, _)| a != axis)
}

/// Removes axes from the partial ones.
fn take_partial(s: &mut Sharding, axes: &[AxisId], kind: ReduceKind) -> Option<()> {
    for &a in axes {
        let i = s.partial.iter().position(|&p| p == (a, kind))?;
        s.partial.remove(i);
    }
    Some(())
}

/// Removes the least significant axes of a dimension.
fn pop_axes(
    s: &mut Sharding,
    axes: &[AxisId],
    dim: usize,
    shape: &[u64],
    mesh: &Mesh,
) -> Option<()> {
    let d = s.dims.get_mut(dim)?;
    let kept = d.axes.strip_suffix(axes)?.to_vec();
    *d = DimSharding { axes: kept, unit: d.unit }.canonical(shape[dim], mesh);
    Some(())
}

/// Adds least significant axes to a dimension. Every new part must lie within the old part of the
/// same rank, so that nothing has to move.
fn push_axes(
    s: &mut Sharding,
    axes: &[AxisId],
    dim: usize,
    unit: u64,
    shape: &[u64],
    mesh: &Mesh,
) -> Option<()> {
    let n = *shape.get(dim)?;
    if unit == 0 || unit > n.max(1) || !n.is_multiple_of(unit) {
        return None;
    }
    let old = &s.dims[dim];
    if !old.axes.is_empty()
        && (DimSharding { axes: old.axes.clone(), unit }).canonical(n, mesh) != *old
    {
        return None;
    }
    for &a in axes {
        if !is_free(s, a, mesh) {
            return None;
        }
        s.dims[dim].axes.push(a);
    }
    let axes = std::mem::take(&mut s.dims[dim].axes);
    s.dims[dim] = DimSharding { axes, unit }.canonical(n, mesh);
    Some(())
}
