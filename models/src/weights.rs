//! Random weights: reproducible on every machine, so without transcendental functions, and such that
//! activations keep their scale and a wrong weight shows.

use planc_ir::{EvalError, Tensor, TensorType};

/// How a parameter is filled: uniformly around a centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Init {
    centre: f64,
    half_width: f64,
}

impl Init {
    /// A matrix that contracts `fan_in` values, with variance 1 / `fan_in`.
    pub(crate) fn matrix(fan_in: u64) -> Self {
        Self { centre: 0.0, half_width: (3.0 / fan_in as f64).sqrt() }
    }

    /// An embedding.
    pub(crate) const fn embedding() -> Self {
        Self { centre: 0.0, half_width: 0.5 }
    }

    /// A bias.
    pub(crate) const fn bias() -> Self {
        Self { centre: 0.0, half_width: 0.1 }
    }

    /// A normalization's scale.
    pub(crate) const fn scale() -> Self {
        Self { centre: 1.0, half_width: 0.25 }
    }
}

/// The bytes of a parameter. They depend on its name, so that changing one part of a model leaves
/// the weights of the others as they were.
pub(crate) fn random_bytes(
    seed: u64,
    name: &str,
    ty: &TensorType,
    init: Init,
) -> Result<Vec<u8>, EvalError> {
    let mut random = SplitMix64(seed ^ fnv1a(name));
    let element = |_| init.centre + init.half_width * random.symmetric();
    Ok(Tensor::from_f64(ty.clone(), element)?.to_bytes())
}

/// Steele, Lea and Flood's generator.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    fn symmetric(&mut self) -> f64 {
        const STEPS: f64 = (1u64 << 52) as f64;
        (self.next() >> 11) as f64 / STEPS - 1.0
    }
}

/// Fowler, Noll and Vo's hash.
fn fnv1a(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}
