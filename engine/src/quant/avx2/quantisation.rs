//! Quantises activations to Q8_0 and Q8_1, with the same bits as [`crate::quant::q8_0::quantise`] and
//! [`crate::quant::q8_1::quantise`].

use std::arch::x86_64::*;

use zerocopy::transmute;

use super::registers::*;
use crate::quant::block::{StoredF16, blocks_mut};
use crate::quant::{q8_0, q8_1};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0(row: &[f32], out: &mut [u8]) {
    let (values, _) = row.as_chunks::<32>();
    for (block, values) in blocks_mut::<q8_0::BlockQ8_0>(out).iter_mut().zip(values) {
        let (scale, integers) = integers(values);
        *block = q8_0::BlockQ8_0 { scale: narrow(scale), codes: codes(integers) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_1(row: &[f32], out: &mut [u8]) {
    let (values, _) = row.as_chunks::<32>();
    for (block, values) in blocks_mut::<q8_1::BlockQ8_1>(out).iter_mut().zip(values) {
        let (scale, integers) = integers(values);
        let [a, b, c, d] = integers;
        let sum = sum_integers(_mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d)));
        let sum = narrow(scale * sum as f32);
        *block = q8_1::BlockQ8_1 { scale: narrow(scale), sum, codes: codes(integers) };
    }
}

/// Returns the scale, and the codes before clamping to 8 bits, with the same bits as
/// [`crate::quant::q8_0::integers`].
#[inline]
#[target_feature(enable = "avx2")]
fn integers(values: &[f32; 32]) -> (f32, [__m256i; 4]) {
    let registers: [__m256; 4] = transmute!(*values);
    let max = largest(registers);
    let inverse = _mm256_set1_ps(if max == 0.0 { 0.0 } else { 127.0 / max });
    (max / 127.0, registers.map(|values| _mm256_cvtps_epi32(_mm256_mul_ps(values, inverse))))
}

/// Computes [`crate::quant::rounding::largest`] with the same bits.
#[inline]
#[target_feature(enable = "avx2")]
fn largest(registers: [__m256; 4]) -> f32 {
    let [a, b, c, d] = registers.map(|values| _mm256_andnot_ps(_mm256_set1_ps(-0.0), values));
    let lanes = _mm256_max_ps(_mm256_max_ps(_mm256_max_ps(a, b), c), d);
    let four = _mm_max_ps(_mm256_extractf128_ps::<1>(lanes), _mm256_castps256_ps128(lanes));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// Clamps codes to 8 bits and restores their order, which the packing instruction changes.
#[inline]
#[target_feature(enable = "avx2")]
fn codes([a, b, c, d]: [__m256i; 4]) -> [i8; 32] {
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    transmute!(_mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)))
}

/// Rounds to the nearest `f16`, ties to even.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(value: f32) -> StoredF16 {
    let bits = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(value));
    StoredF16::from_bits(_mm_extract_epi16::<0>(bits) as u16)
}
