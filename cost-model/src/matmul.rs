//! Time of a matrix product on a device, from its extents.
//!
//! ```text
//! time      = fixed + ‖compute, memory‖
//! compute   = min over tiles (tm, tn) and splits s of k:
//!               ⌈batch · ⌈m/tm⌉ · ⌈n/tn⌉ · s / processors⌉ · 2 · tm · tn · (part(s) + ramp) / rate(tm, tn)
//! part(s)   = k if s = 1, else max(⌈k/s⌉, 256)
//! rate      = peak / processors · efficiency / (1 + half_edge · (1/tm + 1/tn) / 2)
//! memory    = (bytes + partial results of a split) / (bandwidth · bandwidth_efficiency)
//! ```
//!
//! The inner ceiling is *tile quantisation* (a 257th row costs a second tile), the outer one *wave
//! quantisation* (a 109th tile on 108 processors costs a second wave). ‖·‖ is a 3-norm: neither
//! resource is ever used perfectly while the other is nearly exhausted.
//!
//! Every term grows with m, n, k and bytes; so does their minimum over tiles.

use crate::profile::Profile;
use planc_ir::DType;

/// Parts that `k` may be split into, so that few tiles still fill the device.
const SPLITS: [u64; 4] = [1, 2, 4, 8];

/// A part of a split takes at least as long as this many steps of `k`.
const MIN_SPLIT_K: u64 = 256;

/// The constants of one element type on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulModel {
    processors: u64,
    ramp_k: f64,
    fixed_us: f64,
    bytes_per_us: f64,
    /// Of the accumulators that split products exchange.
    accumulator_bytes: f64,
    tiles: Vec<Tile>,
}

/// A tile that the library may choose.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile {
    m: u64,
    n: u64,
    /// Time of one step of `k` on one processor.
    step_us: f64,
}

impl MatmulModel {
    /// From a profile. Integers run at the f32 rate.
    pub fn new(profile: &Profile, dtype: DType) -> Option<Self> {
        let m = profile.matmul.get(&dtype).or_else(|| profile.matmul.get(&DType::F32))?;
        let processors = profile.processors.value;
        let rate = m.peak_flops_per_s.value * m.efficiency.value / processors / 1e6;
        let half_edge = m.half_edge.value;
        let tiles = profile.tiles.iter().map(|&[m, n]| {
            let (tm, tn) = (m as f64, n as f64);
            let slowdown = 1.0 + half_edge * (1.0 / tm + 1.0 / tn) / 2.0;
            Tile { m, n, step_us: 2.0 * tm * tn * slowdown / rate }
        });
        let bandwidth = profile.memory.bandwidth_bytes_per_s.value;
        Some(Self {
            processors: (processors as u64).max(1),
            ramp_k: m.ramp_k.value,
            fixed_us: m.fixed_us.value,
            bytes_per_us: bandwidth * m.bandwidth_efficiency.value / 1e6,
            accumulator_bytes: dtype.bytes().max(4) as f64,
            tiles: tiles.collect(),
        })
    }

    /// Time of `batch` products `[m, k] · [k, n]` that move `bytes`.
    pub fn us(&self, batch: u64, m: u64, n: u64, k: u64, bytes: f64) -> f64 {
        let best_us = SPLITS
            .into_iter()
            .map(|s| {
                let exchanged = if s == 1 {
                    0.0
                } else {
                    2.0 * s as f64 * batch as f64 * m as f64 * n as f64 * self.accumulator_bytes
                };
                norm(self.compute_us(batch, m, n, k, s), (bytes + exchanged) / self.bytes_per_us)
            })
            .fold(f64::INFINITY, f64::min);
        self.fixed_us + best_us
    }

    fn compute_us(&self, batch: u64, m: u64, n: u64, k: u64, split: u64) -> f64 {
        let part = if split == 1 { k } else { k.div_ceil(split).max(MIN_SPLIT_K) };
        let depth = part as f64 + self.ramp_k;
        let of_tile = |tile: &Tile| {
            let tiles = batch
                .saturating_mul(split)
                .saturating_mul(m.div_ceil(tile.m))
                .saturating_mul(n.div_ceil(tile.n));
            tiles.div_ceil(self.processors) as f64 * depth * tile.step_us
        };
        self.tiles.iter().map(of_tile).fold(f64::INFINITY, f64::min)
    }
}

/// The 3-norm of two times.
fn norm(a: f64, b: f64) -> f64 {
    (a * a * a + b * b * b).cbrt()
}
