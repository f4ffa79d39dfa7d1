//! The memory plan: a place in the arena for every buffer.
//!
//! Two storages may overlap in the arena if they are never live at once. Packing them as low as
//! possible is NP-hard; two greedy orders (largest first, and first come) are tried, each with best
//! fit, and the lower arena wins. No plan can be lower than the bytes that are live at once
//! ([`MemoryReport::bound_bytes`]), so how good it is can be read off.

use crate::CodegenError;
use crate::liveness::{Storage, storages};
use planc_ir::program::{Program, Slot};

/// How much memory one rank needs; the largest part of each buffer decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Weights and constants.
    pub weight_bytes: u64,
    /// The most that inputs, activations and results take at once.
    pub activation_peak_bytes: u64,
    /// What the plan takes in all.
    pub arena_bytes: u64,
}

impl MemoryReport {
    /// What any plan of the program takes at least.
    pub const fn bound_bytes(&self) -> u64 {
        self.weight_bytes + self.activation_peak_bytes
    }

    /// The report on a program that has its places.
    ///
    /// # Errors
    /// If its bytes cannot be counted.
    pub fn of(program: &Program) -> Result<Self, CodegenError> {
        let storages = storages(program)?;
        // Differences between one instruction and the next; the total fits, or `place` had failed.
        let mut change = vec![0i128; program.instrs.len() + 2];
        let mut weight_bytes = 0;
        for s in &storages {
            if s.is_weight {
                weight_bytes += area(s);
            } else {
                change[s.first] += i128::from(area(s));
                change[s.last + 1] -= i128::from(area(s));
            }
        }
        let (mut live, mut peak) = (0, 0);
        for c in change {
            live += c;
            peak = live.max(peak);
        }
        let arena_bytes = program.arena_bytes;
        Ok(Self { weight_bytes, activation_peak_bytes: peak as u64, arena_bytes })
    }
}

/// Gives every buffer its slot, and the program the size of its arena.
///
/// # Errors
/// If one rank's bytes cannot be counted.
pub fn place(program: &mut Program) -> Result<(), CodegenError> {
    let storages = storages(program)?;
    let mut total = 0u64;
    for s in &storages {
        let next = s.area().and_then(|bytes| total.checked_add(bytes));
        total = next.ok_or_else(|| CodegenError::TooLarge {
            value: s.buffers.first().map_or_else(String::new, |&b| program.buffer(b).name.clone()),
        })?;
    }
    let stays = |s: &Storage| s.first == 0 && s.last == program.instrs.len();
    let mut largest_first: Vec<usize> = (0..storages.len()).collect();
    largest_first.sort_by_key(|&i| {
        (!stays(&storages[i]), !storages[i].is_weight, std::cmp::Reverse(area(&storages[i])))
    });
    let mut first_come: Vec<usize> = (0..storages.len()).collect();
    first_come.sort_by_key(|&i| (!stays(&storages[i]), storages[i].first));

    let plans = [pack(&storages, &largest_first), pack(&storages, &first_come)];
    let [a, b] = plans;
    let (offsets, arena_bytes) = if b.1 < a.1 { b } else { a };
    for (s, offset) in storages.iter().zip(offsets) {
        for b in &s.buffers {
            let buffer = &mut program.buffers[b.index()];
            let bytes = buffer.max_bytes(&program.mesh);
            buffer.slot = Slot { offset, bytes };
        }
    }
    program.arena_bytes = arena_bytes;
    Ok(())
}

/// Storage that has its place.
struct Placed {
    offset: u64,
    end: u64,
    first: usize,
    last: usize,
}

/// Places storages in this order, each in the smallest gap that holds it; returns their offsets and
/// the size of the arena.
fn pack(storages: &[Storage], order: &[usize]) -> (Vec<u64>, u64) {
    let mut offsets = vec![0; storages.len()];
    let mut arena_bytes = 0;
    let mut placed: Vec<Placed> = Vec::with_capacity(storages.len()); // by offset
    for &i in order {
        let s = &storages[i];
        let bytes = area(s);
        if bytes == 0 {
            continue;
        }
        let (mut gap_start, mut best): (u64, Option<(u64, u64)>) = (0, None);
        for p in placed.iter().filter(|p| p.first <= s.last && s.first <= p.last) {
            let gap = p.offset.saturating_sub(gap_start);
            if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, gap_start));
            }
            gap_start = gap_start.max(p.end);
        }
        let offset = best.map_or(gap_start, |(_, start)| start);
        let end = offset + bytes;
        let at = placed.partition_point(|p| p.offset <= offset);
        placed.insert(at, Placed { offset, end, first: s.first, last: s.last });
        offsets[i] = offset;
        arena_bytes = arena_bytes.max(end);
    }
    (offsets, arena_bytes)
}

/// What a storage takes in the arena. That it can be counted is known before places are given.
fn area(s: &Storage) -> u64 {
    s.area().unwrap_or(u64::MAX)
}
