//! What goes from one mesh to another: everything, once, from who has it, and evenly.

use planc_ir::sharding::transfer::{End, Piece, pieces};
use planc_ir::sharding::{AxisId, DimSharding, Mesh, Sharding};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A mesh, perhaps with uneven shares, and a sharding of `rank` dimensions on it.
fn end(rank: usize) -> impl Strategy<Value = (Mesh, Sharding)> {
    let axis = (1u32..4, any::<bool>(), 0..=rank);
    (prop::collection::vec(axis, 1..4), 1u64..3).prop_map(move |(axes, unit)| {
        let mut mesh = Mesh::new(["a", "b", "c"].into_iter().zip(axes.iter().map(|a| a.0)));
        let mut sharding = Sharding::replicated(rank);
        for (i, (size, uneven, dim)) in axes.into_iter().enumerate() {
            mesh.axes[i].shares = uneven.then(|| (1..=size).collect());
            if let Some(dim) = sharding.dims.get_mut(dim) {
                dim.axes.push(AxisId(i as u8));
                dim.unit = unit;
            }
        }
        (mesh, sharding)
    })
}

/// Extents and two ends.
fn case() -> impl Strategy<Value = (Vec<u64>, (Mesh, Sharding), (Mesh, Sharding))> {
    (0usize..4).prop_flat_map(|rank| {
        let extents = prop::collection::vec((0u64..4).prop_map(|n| 2 * n), rank);
        (extents, end(rank), end(rank))
    })
}

fn ends<'a>(from: &'a (Mesh, Sharding), to: &'a (Mesh, Sharding)) -> (End<'a>, End<'a>) {
    let end = |e: &'a (Mesh, Sharding)| End { mesh: &e.0, sharding: &e.1 };
    (end(from), end(to))
}

/// The indices of the elements in a box.
fn elements(ranges: &[std::ops::Range<u64>]) -> Vec<Vec<u64>> {
    ranges.iter().fold(vec![Vec::new()], |all, range| {
        let longer = |index: &Vec<u64>| -> Vec<Vec<u64>> {
            range.clone().map(|i| [index.as_slice(), &[i]].concat()).collect()
        };
        all.iter().flat_map(longer).collect()
    })
}

fn count(piece: &Piece) -> u64 {
    piece.ranges.iter().map(|r| r.end - r.start).product()
}

proptest! {
    #[test]
    fn every_element_arrives_once_from_a_rank_that_holds_it((shape, from, to) in case()) {
        let (source, destination) = ends(&from, &to);
        let all = pieces(&shape, source, destination);
        let holds = |end: End<'_>, rank| end.sharding.ranges(&shape, end.mesh, &end.mesh.coord(rank));
        for rank in 0..to.0.ranks() {
            let mut arrived: Vec<Vec<u64>> = Vec::new();
            for piece in all.iter().filter(|p| p.destination == rank) {
                prop_assert!(count(piece) > 0);
                let held = holds(source, piece.source);
                let inside = piece.ranges.iter().zip(&held).all(|(p, h)| h.start <= p.start && p.end <= h.end);
                prop_assert!(inside, "{:?} of {:?}", piece, held);
                arrived.extend(elements(&piece.ranges));
            }
            arrived.sort();
            prop_assert_eq!(arrived, elements(&holds(destination, rank)));
        }
    }

    #[test]
    fn ranks_that_hold_the_same_send_evenly((shape, from, to) in case()) {
        let (source, destination) = ends(&from, &to);
        let all = pieces(&shape, source, destination);
        let largest = all.iter().map(count).max().unwrap_or(0);
        let mut loads: BTreeMap<Vec<(u64, u64)>, Vec<u64>> = BTreeMap::new();
        for rank in 0..from.0.ranks() {
            let coord = from.0.coord(rank);
            let split: Vec<(u64, u64)> = from.1.split_axes().map(|a| (u64::from(a.0), u64::from(coord[a.index()]))).collect();
            let sent = all.iter().filter(|p| p.source == rank).map(count).sum();
            loads.entry(split).or_default().push(sent);
        }
        for alike in loads.values() {
            let (least, most) = (alike.iter().min().unwrap(), alike.iter().max().unwrap());
            prop_assert!(most - least <= largest, "{:?}", alike);
        }
    }

    #[test]
    fn under_equal_shardings_rank_i_sends_to_rank_i((shape, from, _) in case()) {
        let (source, destination) = ends(&from, &from);
        for piece in pieces(&shape, source, destination) {
            prop_assert_eq!(piece.source, piece.destination);
        }
    }
}

#[test]
fn a_whole_is_dealt_out_in_turn() {
    let (two, four) = (Mesh::new([("a", 2)]), Mesh::new([("b", 4)]));
    let whole = Sharding::replicated(1);
    let split = Sharding { dims: vec![DimSharding::split([AxisId(0)])], partial: vec![] };
    let from = End { mesh: &two, sharding: &whole };
    let to = End { mesh: &four, sharding: &split };
    let pairs = |all: Vec<Piece>| -> Vec<(u32, u32)> {
        all.iter().map(|p| (p.source, p.destination)).collect()
    };
    assert_eq!(pairs(pieces(&[8], from, to)), [(0, 0), (1, 1), (0, 2), (1, 3)]);
    let back = pieces(&[8], to, from);
    assert_eq!(pairs(back), [0, 1].map(|d| [0, 1, 2, 3].map(|s| (s, d))).concat());
}
