//! AVX2 version of [`crate::quant::q_symmetric`]: blocks of 32 signed codes with one scale.

use std::arch::x86_64::*;

use super::registers::*;
use crate::quant::block::{QuantBlock, StoredF16, blocks};
use crate::quant::q_symmetric::SymmetricBlock;
use crate::quant::q_symmetric_dot::add_whole;
use crate::quant::{iq4_nl, mxfp4, q4_0, q5_0, q8_0};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |block: &q4_0::BlockQ4_0, a| (product(block.scale, a), q4_0_codes(block)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_0(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |block: &q5_0::BlockQ5_0, a| (product(block.scale, a), q5_0_codes(block)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |block: &q8_0::BlockQ8_0, a| {
        (product(block.scale, a), load_signed(&block.codes))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_nl(weights: &[u8], activations: &[u8]) -> f32 {
    dot_in_pairs(weights, activations, |block: &iq4_nl::BlockIq4Nl, a| {
        (product(block.scale, a), iq4_nl_codes(block))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_nl_batch(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |block: &iq4_nl::BlockIq4Nl, a| (product(block.scale, a), iq4_nl_codes(block)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn mxfp4(weights: &[u8], activations: &[u8]) -> f32 {
    dot_in_pairs(weights, activations, |block: &mxfp4::BlockMxfp4, a| {
        (block.scale() * widen(a), look_up(&mxfp4::VALUES, nibbles(&block.nibbles)))
    })
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn q4_0_codes(block: &q4_0::BlockQ4_0) -> __m256i {
    _mm256_sub_epi8(nibbles(&block.nibbles), _mm256_set1_epi8(8))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn q5_0_codes(block: &q5_0::BlockQ5_0) -> __m256i {
    // If the fifth bit is not set, 16 is subtracted by setting the upper four bits of a signed byte.
    let low = _mm256_andnot_si256(spread_bits(block.high), _mm256_set1_epi8(!0x0F));
    _mm256_or_si256(nibbles(&block.nibbles), low)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn iq4_nl_codes(block: &iq4_nl::BlockIq4Nl) -> __m256i {
    look_up(&iq4_nl::VALUES, nibbles(&block.nibbles))
}

/// Computes [`crate::quant::q_symmetric_dot::dot`] with the same bits. `read` returns the product of both scales,
/// and the codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<B: QuantBlock>(
    weights: &[u8],
    activations: &[u8],
    read: impl Fn(&B, StoredF16) -> (f32, __m256i),
) -> f32 {
    let mut lanes = _mm256_setzero_ps();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_0::BlockQ8_0>(activations)) {
        lanes = add(lanes, read(w, a.scale), a);
    }
    sum(lanes)
}

/// Computes [`crate::quant::q_symmetric_dot::dot_in_pairs`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_in_pairs<B: SymmetricBlock>(
    weights: &[u8],
    activations: &[u8],
    read: impl Fn(&B, StoredF16) -> (f32, __m256i),
) -> f32 {
    let (weights, last) = blocks::<B>(weights).as_chunks::<2>();
    let (activations, last_activations) = blocks::<q8_0::BlockQ8_0>(activations).as_chunks::<2>();
    let (mut even, mut odd) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    for ([w0, w1], [a0, a1]) in weights.iter().zip(activations) {
        even = add(even, read(w0, a0.scale), a0);
        odd = add(odd, read(w1, a1.scale), a1);
    }
    let sum = sum(_mm256_add_ps(even, odd));
    last.iter().zip(last_activations).fold(sum, |sum, (w, a)| add_whole(sum, w, a))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(lanes: __m256, (scale, codes): (f32, __m256i), activations: &q8_0::BlockQ8_0) -> __m256 {
    let sums = add_neighbours(multiply_signed(codes, load_signed(&activations.codes)));
    add_scaled(lanes, scale, sums)
}
