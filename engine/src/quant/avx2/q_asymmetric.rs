//! AVX2 version of [`crate::quant::q_asymmetric`]: blocks of 32 unsigned codes with a scale and a minimum.

use std::arch::x86_64::*;

use super::registers::*;
use crate::quant::block::{QuantBlock, StoredF16, blocks};
use crate::quant::{q4_1, q5_1, q8_1};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_1(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |block: &q4_1::BlockQ4_1| (block.scale, block.min, nibbles(&block.nibbles)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_1(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |block: &q5_1::BlockQ5_1| (block.scale, block.min, q5_1_codes(block)))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q5_1_codes(block: &q5_1::BlockQ5_1) -> __m256i {
    let high = _mm256_and_si256(spread_bits(block.high), _mm256_set1_epi8(0x10));
    _mm256_or_si256(nibbles(&block.nibbles), high)
}

/// Computes [`crate::quant::q_asymmetric::dot`] with the same bits. `read` returns a block's scale, minimum and
/// codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<B: QuantBlock>(
    weights: &[u8],
    activations: &[u8],
    read: impl Fn(&B) -> (StoredF16, StoredF16, __m256i),
) -> f32 {
    let (mut lanes, mut mins) = (_mm256_setzero_ps(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_1::BlockQ8_1>(activations)) {
        let (scale, min, codes) = read(w);
        let (scale, min) = products([scale, min], [a.scale, a.sum]);
        mins += min;
        let sums = add_neighbours(_mm256_maddubs_epi16(codes, load_signed(&a.codes)));
        lanes = add_scaled(lanes, scale, sums);
    }
    sum(lanes) + mins
}
