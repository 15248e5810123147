//! AVX2 version of [`crate::quant::wide_block`] and [`crate::quant::nvfp4`]: blocks of 64 and 128 codes.

use std::arch::x86_64::*;

use super::registers::*;
use crate::quant::wide_block::{WideBlock, pairs};
use crate::quant::{nvfp4, q1_0, q2_0, q8_0};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q1_0(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = _mm256_setzero_ps();
    for (w, a) in pairs::<4, q1_0::BlockQ1_0>(weights, activations) {
        let mut of_block = _mm256_setzero_ps();
        for (bits, a) in w.bits.into_iter().zip(a) {
            let codes = _mm256_or_si256(
                _mm256_xor_si256(spread_bits(bits), _mm256_set1_epi8(-1)),
                _mm256_set1_epi8(1),
            );
            of_block = add_scaled(of_block, widen(a.scale), sums_of_four(codes, a));
        }
        lanes = _mm256_fmadd_ps(_mm256_set1_ps(widen(w.scale)), of_block, lanes);
    }
    sum(lanes)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q2_0(weights: &[u8], activations: &[u8]) -> f32 {
    pairs::<2, q2_0::BlockQ2_0>(weights, activations).fold(0.0, |sum, (w, a)| {
        let of_block = a.iter().enumerate().fold(0.0f32, |sum, (part, a)| {
            let products = exact_products(load_signed(&w.codes(part)), load_signed(&a.codes));
            widen(a.scale).mul_add(sum_integers(products) as f32, sum)
        });
        w.scale().mul_add(of_block, sum)
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nvfp4(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = _mm256_setzero_ps();
    for (w, a) in pairs::<2, nvfp4::BlockNvfp4>(weights, activations) {
        let scales = w.scales();
        for (part, a) in a.iter().enumerate() {
            let of_halves =
                [scales[2 * part], scales[2 * part + 1]].map(|scale| _mm_set1_ps(scale * widen(a.scale)));
            let sums = _mm256_cvtepi32_ps(sums_of_four(load_signed(&w.codes(part)), a));
            lanes = _mm256_fmadd_ps(_mm256_set_m128(of_halves[1], of_halves[0]), sums, lanes);
        }
    }
    sum(lanes)
}

/// Returns sums of products. They are exact even for an activation of −128.
#[inline]
#[target_feature(enable = "avx2")]
fn exact_products(codes: __m256i, activations: __m256i) -> __m256i {
    let low = |bytes| _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes));
    let high = |bytes| _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(bytes));
    _mm256_add_epi32(
        _mm256_madd_epi16(low(codes), low(activations)),
        _mm256_madd_epi16(high(codes), high(activations)),
    )
}

/// Returns sums of products, four products per lane.
#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_four(codes: __m256i, activations: &q8_0::BlockQ8_0) -> __m256i {
    add_neighbours(multiply_signed(codes, load_signed(&activations.codes)))
}
