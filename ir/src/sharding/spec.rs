//! The sharding of one tensor: which mesh axes split which dimension, and what is still unreduced.

use super::mesh::{AxisId, Mesh};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// How partial results combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the names say it
pub enum ReduceKind {
    Sum,
    Max,
    Min,
    Prod,
}

impl ReduceKind {
    /// The printed name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
            Self::Prod => "prod",
        }
    }
}

/// How one dimension is split.
///
/// An extent `n` is `n / unit` blocks; they are dealt out contiguously, part `i` of `p` equal shares
/// getting blocks `floor(i·b/p) .. floor((i+1)·b/p)`. Dropping the last axis of the list merges
/// neighbouring parts exactly, whatever divides what, so an all-gather over it is always possible.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DimSharding {
    /// Axes that split the dimension, the most significant first.
    pub axes: Vec<AxisId>,
    /// Indivisible block length; 1 unless blocks matter and do not divide (28 heads of 64 over 8
    /// ranks). Always 1 where `axes` is empty.
    pub unit: u64,
}

impl DimSharding {
    /// Not split.
    pub const fn whole() -> Self {
        Self { axes: Vec::new(), unit: 1 }
    }

    /// Split by these axes into single elements.
    pub fn split(axes: impl Into<Vec<AxisId>>) -> Self {
        Self { axes: axes.into(), unit: 1 }
    }

    /// The part of an extent `n` that the rank at `coord` holds.
    pub fn range(&self, n: u64, mesh: &Mesh, coord: &[u32]) -> Range<u64> {
        if self.axes.is_empty() {
            return 0..n;
        }
        // The part as an exact fraction of the whole: [lo, lo + width) / den.
        let (mut lo, mut width, mut den) = (0u128, 1u128, 1u128);
        for &a in &self.axes {
            let axis = mesh.axis(a);
            let c = coord[a.index()];
            let (before, share, total) = match &axis.shares {
                None => (u128::from(c), 1, u128::from(axis.size)),
                Some(s) => (
                    s[..c as usize].iter().map(|&x| u128::from(x)).sum(),
                    u128::from(s[c as usize]),
                    s.iter().map(|&x| u128::from(x)).sum(),
                ),
            };
            lo = lo * total + width * before;
            width *= share;
            den *= total;
        }
        let unit = self.unit.max(1);
        let blocks = u128::from(n / unit);
        let start = (lo * blocks / den) as u64 * unit;
        let end = ((lo + width) * blocks / den) as u64 * unit;
        // A remainder smaller than a block belongs to the last part.
        let end = if lo + width == den { n } else { end };
        start..end
    }

    /// The largest part that any rank holds.
    pub fn max_extent(&self, n: u64, mesh: &Mesh) -> u64 {
        if self.axes.is_empty() {
            return n;
        }
        if self.axes.iter().all(|&a| mesh.axis(a).shares.is_none()) {
            let parts = u64::from(mesh.group_size(&self.axes));
            let unit = self.unit.max(1);
            let blocks = n / unit;
            return blocks.div_ceil(parts).saturating_mul(unit).saturating_add(n % unit);
        }
        (0..mesh.ranks())
            .map(|r| self.range(n, mesh, &mesh.coord(r)))
            .map(|r| r.end - r.start)
            .max()
            .unwrap_or(n)
    }

    /// Whether every rank holds the same extent.
    pub fn is_even(&self, n: u64, mesh: &Mesh) -> bool {
        self.axes.iter().all(|&a| mesh.axis(a).shares.is_none())
            && u64::from(mesh.group_size(&self.axes))
                .checked_mul(self.unit.max(1))
                .is_some_and(|block| n.is_multiple_of(block))
    }

    /// The same partition with the smallest unit that says it, so that equal partitions are equal
    /// values.
    #[must_use]
    pub fn canonical(mut self, n: u64, mesh: &Mesh) -> Self {
        if self.axes.is_empty() || self.is_exact(n, mesh) {
            self.unit = 1;
        }
        self
    }

    /// Whether every part is exactly its share of the extent, so that the block length does not
    /// matter.
    fn is_exact(&self, n: u64, mesh: &Mesh) -> bool {
        self.axes
            .iter()
            .map(|&a| mesh.axis(a).total_share())
            .try_fold(self.unit.max(1), u64::checked_mul)
            .is_some_and(|parts| n.is_multiple_of(parts))
    }
}

/// The sharding of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sharding {
    /// One entry a dimension.
    pub dims: Vec<DimSharding>,
    /// Axes over which ranks hold unreduced contributions, in axis order.
    pub partial: Vec<(AxisId, ReduceKind)>,
}

impl Sharding {
    /// Every rank holds the whole tensor.
    pub fn replicated(rank: usize) -> Self {
        Self { dims: vec![DimSharding::whole(); rank], partial: Vec::new() }
    }

    /// Whether every rank holds the whole tensor.
    pub fn is_replicated(&self) -> bool {
        self.partial.is_empty() && self.dims.iter().all(|d| d.axes.is_empty())
    }

    /// Axes that split some dimension.
    pub fn split_axes(&self) -> impl Iterator<Item = AxisId> + '_ {
        self.dims.iter().flat_map(|d| d.axes.iter().copied())
    }

    /// The part of a tensor of shape `shape` that the rank at `coord` holds.
    pub fn ranges(&self, shape: &[u64], mesh: &Mesh, coord: &[u32]) -> Vec<Range<u64>> {
        self.dims.iter().zip(shape).map(|(d, &n)| d.range(n, mesh, coord)).collect()
    }

    /// The extents that the rank at `coord` holds.
    pub fn local_shape(&self, shape: &[u64], mesh: &Mesh, coord: &[u32]) -> Vec<u64> {
        self.ranges(shape, mesh, coord).into_iter().map(|r| r.end - r.start).collect()
    }

    /// The largest extents that any rank holds: what memory and time are computed from.
    pub fn max_local_shape(&self, shape: &[u64], mesh: &Mesh) -> Vec<u64> {
        self.dims.iter().zip(shape).map(|(d, &n)| d.max_extent(n, mesh)).collect()
    }

    /// The same sharding in canonical form for a tensor of shape `shape` (see
    /// [`DimSharding::canonical`]); partial axes in axis order.
    #[must_use]
    pub fn canonical(mut self, shape: &[u64], mesh: &Mesh) -> Self {
        for (d, &n) in self.dims.iter_mut().zip(shape) {
            *d = std::mem::replace(d, DimSharding::whole()).canonical(n, mesh);
        }
        self.partial.sort_unstable();
        self
    }

    /// Whether the sharding is one of a tensor of this rank on this mesh: each axis used once,
    /// units positive.
    pub fn is_valid(&self, rank: usize, mesh: &Mesh) -> bool {
        let mut used = vec![false; mesh.rank()];
        let mut once =
            |a: AxisId| a.index() < used.len() && !std::mem::replace(&mut used[a.index()], true);
        self.dims.len() == rank
            && self.dims.iter().all(|d| d.unit > 0)
            && self.dims.iter().flat_map(|d| &d.axes).all(|&a| once(a))
            && self.partial.iter().all(|&(a, _)| once(a))
    }

    /// Printed with axis names: `[data, _, tensor+x:64] partial(sum: tensor)`.
    pub fn display<'a>(&'a self, mesh: &'a Mesh) -> impl fmt::Display + 'a {
        ShardingDisplay { sharding: self, mesh }
    }
}

struct ShardingDisplay<'a> {
    sharding: &'a Sharding,
    mesh: &'a Mesh,
}

impl fmt::Display for ShardingDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.sharding.dims.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            if d.axes.is_empty() {
                f.write_str("_")?;
            }
            for (j, &a) in d.axes.iter().enumerate() {
                if j > 0 {
                    f.write_str("+")?;
                }
                f.write_str(&self.mesh.axis(a).name)?;
            }
            if d.unit != 1 {
                write!(f, ":{}", d.unit)?;
            }
        }
        f.write_str("]")?;
        for &(a, k) in &self.sharding.partial {
            write!(f, " partial({}: {})", k.name(), self.mesh.axis(a).name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(d: &DimSharding, n: u64, mesh: &Mesh) -> Vec<u64> {
        (0..mesh.ranks())
            .map(|r| d.range(n, mesh, &mesh.coord(r)))
            .map(|r| r.end - r.start)
            .collect()
    }

    #[test]
    fn parts_cover_the_extent_and_nest() {
        let mesh = Mesh::new([("a", 3), ("b", 4)]);
        let (a, b) = (AxisId(0), AxisId(1));
        for n in 0..40 {
            let both = DimSharding::split([a, b]);
            let one = DimSharding::split([a]);
            let p = parts(&both, n, &mesh);
            assert_eq!(p.iter().sum::<u64>(), n);
            assert_eq!(*p.iter().max().unwrap_or(&0), both.max_extent(n, &mesh));
            for r in 0..3u32 {
                let whole = one.range(n, &mesh, &[r, 0]);
                assert_eq!(both.range(n, &mesh, &[r, 0]).start, whole.start);
                assert_eq!(both.range(n, &mesh, &[r, 3]).end, whole.end);
            }
        }
    }

    #[test]
    fn units_stay_whole() {
        let mesh = Mesh::new([("t", 8)]);
        let d = DimSharding { axes: vec![AxisId(0)], unit: 64 };
        let p = parts(&d, 28 * 64, &mesh);
        assert!(p.iter().all(|x| x % 64 == 0));
        assert_eq!(p.iter().sum::<u64>(), 28 * 64);
        assert_eq!(d.max_extent(28 * 64, &mesh), 4 * 64);
        assert_eq!(d.clone().canonical(28 * 64, &mesh), d);
        assert_eq!(d.canonical(32 * 64, &mesh).unit, 1);
    }

    #[test]
    fn shares_are_respected() {
        let mut mesh = Mesh::new([("t", 3)]);
        mesh.axes[0].shares = Some(vec![1, 2, 1]);
        let d = DimSharding::split([AxisId(0)]);
        assert_eq!(parts(&d, 16, &mesh), [4, 8, 4]);
        assert_eq!(d.max_extent(16, &mesh), 8);
    }
}
