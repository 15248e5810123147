//! Random numbers of perturbed runs.

use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::weight::DType;

/// Generator of approximately Gaussian numbers with mean 0 and sigma 1. Each is the sum of four uniform numbers,
/// which needs neither a logarithm nor a sine. Each result of a model is a sum of thousands of terms, so the exact
/// distribution of one number does not matter.
pub(super) struct Gaussian(ChaCha8Rng);

impl Gaussian {
    pub(super) fn new(seed: u64, operation: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(operation);
        Self(random)
    }

    #[inline]
    pub(super) fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Simulates a second rounding, which moves a value by less than half a step: to a neighbouring number, or not at
    /// all. One value in `one_in` (a power of two) moves.
    #[inline]
    pub(super) fn rounded_again(&mut self, dtype: DType, value: f32, one_in: u32) -> f32 {
        let bits = self.0.next_u32();
        if bits & (one_in - 1) == 0 { neighbour(dtype, value, bits & one_in == 0) } else { value }
    }

    #[inline]
    pub(super) fn next(&mut self) -> f64 {
        let bits = self.0.next_u64();
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        // A uniform number out of n has the mean (n - 1) / 2 and the variance (n² - 1) / 12.
        (sum as f64 - 2.0 * 65_535.0) * (3f64.sqrt() / 65_536.0)
    }
}

/// Returns the number next to a value in a 16-bit type; zero, NaN and infinity are returned unchanged.
pub(super) fn neighbour(dtype: DType, value: f32, is_above: bool) -> f32 {
    // For numbers of the same sign, the bit patterns are in the order of the numbers.
    let next = |bits: u16| if is_above == (value > 0.0) { bits + 1 } else { bits - 1 };
    match dtype {
        _ if value == 0.0 || !value.is_finite() => value,
        DType::BF16 => bf16::from_bits(next(bf16::from_f32(value).to_bits())).to_f32(),
        _ => f16::from_bits(next(f16::from_f32(value).to_bits())).to_f32(),
    }
}
