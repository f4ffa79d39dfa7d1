//! The mesh: devices as a grid with named axes.

use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// An index into [`Mesh::axes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AxisId(pub u8);

impl AxisId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One axis of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MeshAxis {
    /// Such as `data` or `tensor`.
    pub name: String,
    /// Number of coordinates, at least 1.
    pub size: u32,
    /// The share of each coordinate in whatever the axis splits, for mixed devices; `None` means
    /// equal shares. As long as `size`, no share 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Vec<u32>>,
}

impl MeshAxis {
    /// The sum of all shares: what one coordinate's share is a fraction of.
    pub fn total_share(&self) -> u64 {
        match &self.shares {
            None => u64::from(self.size),
            Some(shares) => shares.iter().map(|&s| u64::from(s)).sum(),
        }
    }
}

/// Devices as a grid. Ranks are numbered row-major: the last axis varies fastest, so it is the one
/// whose groups lie closest together (within a node).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mesh {
    /// Axes, outermost first.
    pub axes: Vec<MeshAxis>,
}

/// A rank's position: one coordinate an axis.
pub type Coord = Vec<u32>;

/// The most ranks of one mesh.
pub const MAX_RANKS: u32 = 1 << 16;

/// The most axes of one mesh.
pub const MAX_AXES: usize = 16;

/// The most parts that uneven shares may divide a whole into, over all axes together: keeps exact
/// fractions within 128 bits.
pub const MAX_SHARES: u64 = 1 << 48;

/// A mesh that is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum MeshError {
    #[error("the mesh has {axes} axes; at most {MAX_AXES} are possible")]
    TooManyAxes { axes: usize },
    #[error("mesh axis `{axis}` has no coordinates; its size must be at least 1")]
    Empty { axis: String },
    #[error("mesh axis `{axis}` has {found} shares for {size} coordinates; give one each")]
    ShareCount { axis: String, size: u32, found: usize },
    #[error("mesh axis `{axis}` gives a coordinate a share of 0; leave such a device out")]
    ZeroShare { axis: String },
    #[error("two mesh axes are called `{axis}`")]
    SameName { axis: String },
    #[error("the mesh has more than {MAX_RANKS} ranks")]
    TooManyRanks,
    #[error("the shares of the mesh's axes add up to too much; divide them by a common factor")]
    SharesTooLarge,
}

impl Mesh {
    /// A mesh of even axes.
    pub fn new<'a>(axes: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let axes = axes
            .into_iter()
            .map(|(name, size)| MeshAxis { name: name.to_string(), size, shares: None })
            .collect();
        Self { axes }
    }

    /// Whether the mesh is sound. All other methods rely on it.
    pub fn check(&self) -> Result<(), MeshError> {
        if self.axes.len() > MAX_AXES {
            return Err(MeshError::TooManyAxes { axes: self.axes.len() });
        }
        let (mut ranks, mut parts) = (1u64, 1u64);
        for (i, a) in self.axes.iter().enumerate() {
            let axis = || a.name.clone();
            if a.size == 0 {
                return Err(MeshError::Empty { axis: axis() });
            }
            if self.axes[..i].iter().any(|b| a.name == b.name) {
                return Err(MeshError::SameName { axis: axis() });
            }
            if let Some(shares) = &a.shares {
                if shares.len() != a.size as usize {
                    let found = shares.len();
                    return Err(MeshError::ShareCount { axis: axis(), size: a.size, found });
                }
                if shares.contains(&0) {
                    return Err(MeshError::ZeroShare { axis: axis() });
                }
            }
            ranks = ranks.saturating_mul(u64::from(a.size));
            parts = parts.saturating_mul(a.total_share());
        }
        if ranks > u64::from(MAX_RANKS) {
            return Err(MeshError::TooManyRanks);
        }
        if parts > MAX_SHARES {
            return Err(MeshError::SharesTooLarge);
        }
        Ok(())
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.axes.iter().map(|a| a.size).product()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.axes.len()
    }

    /// All axis ids.
    pub fn axis_ids(&self) -> impl DoubleEndedIterator<Item = AxisId> + use<> {
        (0..self.axes.len() as u8).map(AxisId)
    }

    /// The axis with this id.
    pub fn axis(&self, id: AxisId) -> &MeshAxis {
        &self.axes[id.index()]
    }

    /// Size of an axis.
    pub fn size(&self, id: AxisId) -> u32 {
        self.axis(id).size
    }

    /// Product of the sizes of some axes: the size of a group that spans them.
    pub fn group_size(&self, axes: &[AxisId]) -> u32 {
        axes.iter().map(|&a| self.size(a)).product()
    }

    /// Distance in ranks between neighbours along an axis.
    pub fn stride(&self, id: AxisId) -> u32 {
        self.axes[id.index() + 1..].iter().map(|a| a.size).product()
    }

    /// The position of a rank.
    pub fn coord(&self, rank: u32) -> Coord {
        self.axis_ids().map(|a| rank / self.stride(a) % self.size(a)).collect()
    }

    /// The rank at a position.
    pub fn rank_at(&self, coord: &[u32]) -> u32 {
        self.axis_ids().map(|a| coord[a.index()] * self.stride(a)).sum()
    }

    /// The ranks that share all coordinates with `rank` but those along `axes`, ordered by their
    /// coordinates along `axes` (first axis slowest): a communicator.
    pub fn group(&self, rank: u32, axes: &[AxisId]) -> Vec<u32> {
        let mut base = self.coord(rank);
        for &a in axes {
            base[a.index()] = 0;
        }
        let mut group = vec![self.rank_at(&base)];
        for &a in axes {
            let (size, stride) = (self.size(a), self.stride(a));
            group = group.iter().flat_map(|&r| (0..size).map(move |c| r + c * stride)).collect();
        }
        group
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, a) in self.axes.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{}: {}", a.name, a.size)?;
        }
        f.write_str("}")
    }
}
