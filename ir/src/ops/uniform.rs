//! Pseudo-random numbers that a seed decides.
//!
//! - **ONNX**: what Dropout with a seed draws; see [`dropout`](super::dropout).
//! - **Semantics**: numbers from 0 to 1, 1 not among them, in row-major order: what ONNX's reference
//!   implementation draws, the 53-bit numbers of a Mersenne Twister (MT19937).
//! - **Split**: opaque. Each number follows from those before it.

use super::decode::DecoderEntry;
use super::{OpDef, Work, expect_inputs};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A tensor of random numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Uniform {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<u64>,
    /// What decides the numbers.
    pub seed: u32,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

/// The generator of Matsumoto and Nishimura (1998).
struct MersenneTwister {
    state: [u32; Self::N],
    next: usize,
}

impl MersenneTwister {
    const N: usize = 624;
    const M: usize = 397;

    fn new(seed: u32) -> Self {
        let mut state = [seed; Self::N];
        for i in 1..Self::N {
            let before = state[i - 1];
            let mixed = (before ^ (before >> 30)).wrapping_mul(1_812_433_253);
            state[i] = mixed.wrapping_add(i as u32);
        }
        Self { state, next: Self::N }
    }

    fn twist(&mut self) {
        for i in 0..Self::N {
            let joined = (self.state[i] & 0x8000_0000)
                | (self.state[(i + 1) % Self::N] & 0x7fff_ffff);
            let odd = if joined & 1 == 0 { 0 } else { 0x9908_b0df };
            self.state[i] = self.state[(i + Self::M) % Self::N] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }

    fn bits(&mut self) -> u32 {
        if self.next == Self::N {
            self.twist();
        }
        let mut x = self.state[self.next];
        self.next += 1;
        x ^= x >> 11;
        x ^= (x << 7) & 0x9d2c_5680;
        x ^= (x << 15) & 0xefc6_0000;
        x ^ (x >> 18)
    }

    fn number(&mut self) -> f64 {
        let (high, low) = (f64::from(self.bits() >> 5), f64::from(self.bits() >> 6));
        high.mul_add(2f64.powi(26), low) / 2f64.powi(53)
    }
}

impl OpDef for Uniform {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 0)?;
        if !self.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: self.dtype });
        }
        Ok(vec![TensorType::new(self.dtype, self.shape.clone())])
    }

    fn rule(&self, _: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        FactorRule::opaque(&[], &[outputs[0].rank()], "each number follows from those before it")
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 2.0)
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let mut generator = MersenneTwister::new(self.seed);
        let ty = TensorType::new(self.dtype, self.shape.clone());
        Ok(vec![Tensor::from_f64(ty, |_| generator.number())?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The default seed of the authors' implementation.
        let mut generator = MersenneTwister::new(5489);
        let first: Vec<u32> = (0..3).map(|_| generator.bits()).collect();
        assert_eq!(first, [3_499_211_612, 581_869_302, 3_890_346_734]);
        // The C++ standard's test value.
        let last = (3..10_000).map(|_| generator.bits()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
