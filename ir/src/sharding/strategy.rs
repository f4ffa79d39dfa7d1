//! Strategies: annotations on a graph. A strategy never edits the graph.

use super::mesh::Mesh;
use super::rule::FactorId;
use super::spec::Sharding;
use serde::{Deserialize, Serialize};

/// What one mesh axis does for one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AxisUse {
    /// Every rank along the axis does the same work.
    Replicate,
    /// The axis splits this factor of the op's rule.
    Split(FactorId),
    /// The op carries a partial sum through: the inputs in this set of
    /// [`FactorRule::linear`](super::FactorRule::linear) are partial sums over the axis.
    Linear(u8),
}

/// The strategy of one op: what each mesh axis does for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpStrategy {
    /// One entry a mesh axis.
    pub axes: Vec<AxisUse>,
}

impl OpStrategy {
    /// Every rank does the same work.
    pub fn replicated(mesh: &Mesh) -> Self {
        Self { axes: vec![AxisUse::Replicate; mesh.rank()] }
    }
}

/// The strategy of a graph on one mesh.
///
/// Each value has one *home* sharding: that in which its producer leaves it (for inputs, weights and
/// constants, that in which it is loaded). A consumer that needs another sharding gets it by a
/// reshard on the edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strategy {
    /// The mesh.
    pub mesh: Mesh,
    /// One entry a node of the graph.
    pub ops: Vec<OpStrategy>,
    /// One entry a value of the graph: the home sharding. For a node's output it equals what the
    /// node's strategy yields.
    pub values: Vec<Sharding>,
}
