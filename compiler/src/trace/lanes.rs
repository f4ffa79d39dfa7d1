//! Rows for what may overlap.

use super::chrome::Interval;
use std::collections::BTreeSet;

/// A lane for each interval, so that those of a lane do not overlap. The intervals are in order of their starts, and
/// none is before 0.
pub fn lanes(intervals: impl IntoIterator<Item = Interval>) -> Vec<u32> {
    // When each lane is free, as bits, which of numbers that are not negative are in their order.
    let mut free: BTreeSet<(u64, u32)> = BTreeSet::new();
    let mut lanes = Vec::new();
    for Interval { start_us, end_us } in intervals {
        let lane = match free.first().copied() {
            Some((at, lane)) if f64::from_bits(at) <= start_us => {
                free.pop_first();
                lane
            }
            _ => free.len() as u32,
        };
        free.insert((end_us.max(start_us).to_bits(), lane));
        lanes.push(lane);
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_in_other_lanes() {
        let of = |list: &[(f64, f64)]| {
            lanes(list.iter().map(|&(start_us, end_us)| Interval { start_us, end_us }))
        };
        assert_eq!(of(&[(0.0, 2.0), (2.0, 3.0), (3.0, 3.0), (3.0, 4.0)]), [0, 0, 0, 0]);
        assert_eq!(
            of(&[(0.0, 5.0), (1.0, 3.0), (2.0, 9.0), (3.5, 4.0), (5.0, 6.0)]),
            [0, 1, 2, 1, 1]
        );
        assert_eq!(of(&[(0.0, 5.0), (1.0, 6.0), (5.0, 6.0)]), [0, 1, 0]);
    }
}
