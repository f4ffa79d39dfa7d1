//! Resharding: the cheapest sequence of steps from one sharding of a tensor to another.

use super::mesh::{AxisId, Mesh};
use super::spec::{ReduceKind, Sharding};
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

    /// The sharding after the step, or `None` if it does not apply.
    pub fn apply(&self, from: &Sharding, shape: &[u64], mesh: &Mesh) -> Option<Sharding> {
        let _ = (from, shape, mesh);
        None
    }
}

/// The cheapest sequence of steps from `from` to `to`, empty if they are equal; `None` if there is
/// none (a partial value cannot become partial in another way, say).
pub fn reshard(
    ty: &TensorType,
    from: &Sharding,
    to: &Sharding,
    mesh: &Mesh,
    cost: &dyn StepCost,
) -> Option<(Vec<Step>, f64)> {
    let _ = (ty, cost, mesh);
    (from == to).then(|| (Vec::new(), 0.0))
}
