//! AVX2 version of [`crate::quant::ternary`].

use std::arch::x86_64::*;

use zerocopy::transmute;

use super::registers::*;
use crate::quant::ternary::{BLOCK, BLOCK_BYTES, EXACT, WRAPPING};

#[target_feature(enable = "avx2")]
pub(super) fn wrapping_sum(weights: &[u8], activations: &[i8]) -> i32 {
    sum::<WRAPPING>(weights, activations)
}

#[target_feature(enable = "avx2")]
pub(super) fn exact_sum(weights: &[u8], activations: &[i8]) -> i32 {
    sum::<EXACT>(weights, activations)
}

/// Adds in 16 bits over `BLOCKS` blocks, then in 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn sum<const BLOCKS: usize>(weights: &[u8], activations: &[i8]) -> i32 {
    let (weights, _) = weights.as_chunks::<BLOCK_BYTES>();
    let (activations, _) = activations.as_chunks::<BLOCK>();
    let mut wide = _mm256_setzero_si256();
    for (weights, activations) in weights.chunks(BLOCKS).zip(activations.chunks(BLOCKS)) {
        let mut narrow = _mm256_setzero_si256();
        for (codes, activations) in weights.iter().zip(activations) {
            narrow = _mm256_add_epi16(narrow, block(codes, activations));
        }
        wide = _mm256_add_epi32(wide, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
    }
    let lanes: [i32; 8] = transmute!(wide);
    lanes.iter().sum()
}

/// Returns the sixteen sums of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn block(codes: &[u8; BLOCK_BYTES], activations: &[i8; BLOCK]) -> __m256i {
    let (codes, mask): (__m256i, _) = (transmute!(*codes), _mm256_set1_epi8(3));
    let (quarters, _) = activations.as_chunks::<BLOCK_BYTES>();
    let first = multiply(_mm256_and_si256(_mm256_srli_epi16::<6>(codes), mask), &quarters[0]);
    let second = multiply(_mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask), &quarters[1]);
    let third = multiply(_mm256_and_si256(_mm256_srli_epi16::<2>(codes), mask), &quarters[2]);
    let fourth = multiply(_mm256_and_si256(codes, mask), &quarters[3]);
    _mm256_add_epi16(_mm256_add_epi16(first, second), _mm256_add_epi16(third, fourth))
}

#[inline]
#[target_feature(enable = "avx2")]
fn multiply(codes: __m256i, activations: &[i8; 32]) -> __m256i {
    _mm256_maddubs_epi16(codes, load_signed(activations))
}

/// Computes [`crate::quant::ternary::plain_codes`] with the same bits, for codes of whole blocks.
#[target_feature(enable = "avx2")]
pub(super) fn codes(row: &[f32], scale: f32, codes: &mut [i8]) {
    for (values, codes) in row.chunks(8).zip(codes.chunks_mut(8)) {
        let mut register = [0.0; 8];
        register[..values.len()].copy_from_slice(values);
        codes[..values.len()].copy_from_slice(&eight(&register, scale)[..values.len()]);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn eight(values: &[f32; 8], scale: f32) -> [i8; 8] {
    let scaled = _mm256_mul_ps(transmute!(*values), _mm256_set1_ps(scale));
    let integers: [i32; 8] = transmute!(_mm256_cvtps_epi32(scaled));
    integers.map(|integer| integer.clamp(-128, 127) as i8)
}
