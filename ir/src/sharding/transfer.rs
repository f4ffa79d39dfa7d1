//! Who sends what to whom when a tensor goes from one mesh to another.
//!
//! Each rank of the mesh that receives needs the box of its part. What several ranks of the mesh that sends hold
//! alike, each of them sends some of: of those that hold what a rank needs, the one that has sent least so far, and
//! of equals the first. So between equal meshes, under equal shardings, rank `i` sends to rank `i`.

use super::mesh::Mesh;
use super::spec::Sharding;
use crate::graph::elements;
use std::collections::BTreeMap;
use std::ops::Range;

/// A tensor on a mesh, with nothing left to reduce.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The mesh.
    pub mesh: &'a Mesh,
    /// How the tensor is split over it.
    pub sharding: &'a Sharding,
}

/// What one rank sends to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The rank that sends, of the mesh that does.
    pub source: u32,
    /// The rank that receives, of the other mesh.
    pub destination: u32,
    /// The box, one range a dimension of the whole tensor. It is not empty.
    pub ranges: Vec<Range<u64>>,
}

/// What the ranks that hold one part alike have sent.
struct Part {
    ranges: Vec<Range<u64>>,
    /// Each rank, and the elements that it sends.
    ranks: Vec<(u64, u32)>,
}

/// The pieces in which a tensor of extents `shape` goes from one end to the other, by destination. Those of a rank
/// are disjoint and make up its part.
pub fn pieces(shape: &[u64], from: End<'_>, to: End<'_>) -> Vec<Piece> {
    let mut parts = parts(shape, from);
    let mut pieces = Vec::new();
    for destination in 0..to.mesh.ranks() {
        let needed = to.sharding.ranges(shape, to.mesh, &to.mesh.coord(destination));
        for part in &mut parts {
            let ranges: Vec<Range<u64>> = part
                .ranges
                .iter()
                .zip(&needed)
                .map(|(a, b)| a.start.max(b.start)..a.end.min(b.end))
                .collect();
            let size: Vec<u64> = ranges.iter().map(|r| r.end.saturating_sub(r.start)).collect();
            let size = elements(&size);
            if size == 0 {
                continue;
            }
            if let Some((load, source)) = part.ranks.iter_mut().min_by_key(|(load, _)| *load) {
                *load = load.saturating_add(size);
                pieces.push(Piece { source: *source, destination, ranges });
            }
        }
    }
    pieces
}

/// The different parts, each with the ranks that hold it, in order.
fn parts(shape: &[u64], end: End<'_>) -> Vec<Part> {
    let mut is_split = vec![false; end.mesh.rank()];
    end.sharding.split_axes().for_each(|a| is_split[a.index()] = true);
    let mut parts: BTreeMap<Vec<u32>, Part> = BTreeMap::new();
    for rank in 0..end.mesh.ranks() {
        let coord = end.mesh.coord(rank);
        let split = coord.iter().zip(&is_split).map(|(&c, &split)| if split { c } else { 0 });
        let part = parts.entry(split.collect()).or_insert_with(|| Part {
            ranges: end.sharding.ranges(shape, end.mesh, &coord),
            ranks: Vec::new(),
        });
        part.ranks.push((0, rank));
    }
    parts.into_values().collect()
}
