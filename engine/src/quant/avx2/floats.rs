//! AVX2 version of [`crate::quant::floats`]: F32, F16 and BF16.

use std::arch::x86_64::*;

use zerocopy::transmute;

use super::registers::*;
use crate::quant::floats::{StoredBf16, StoredF16, StoredF32, f32_leftovers, f64_leftovers, leftovers};

#[target_feature(enable = "avx2,fma")]
pub(super) fn dot_f32(weights: &[u8], activations: &[u8]) -> f32 {
    let lanes = sums(weights, activations, |eight| singles(eight));
    f32_leftovers(in_neighbours(lanes), leftovers::<StoredF32>(weights, activations))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_f16(weights: &[u8], activations: &[u8]) -> f32 {
    let lanes = sums(weights, activations, |eight| halves(eight));
    f64_leftovers(in_neighbours(lanes), leftovers::<StoredF16>(weights, activations))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn dot_bf16(weights: &[u8], activations: &[u8]) -> f32 {
    let lanes = sums(weights, activations, |eight| brains(eight));
    f64_leftovers(sum(lanes), leftovers::<StoredBf16>(weights, activations))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn batch_dot_f32(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot(weights, activations, |eight| singles(eight), |eight| singles(eight))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn batch_dot_f16(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot(weights, activations, |eight| halves(eight), |eight| halves(eight))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn batch_dot_f16_f32(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot(weights, activations, |eight| halves(eight), |eight| singles(eight))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn batch_dot_bf16(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot(weights, activations, |eight| brains(eight), |eight| brains(eight))
}

#[inline]
#[target_feature(enable = "avx2")]
fn singles(eight: &[u8; 32]) -> __m256 {
    transmute!(*eight)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn halves(eight: &[u8; 16]) -> __m256 {
    _mm256_cvtph_ps(load_half(eight))
}

#[inline]
#[target_feature(enable = "avx2")]
fn brains(eight: &[u8; 16]) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_half(eight))))
}

/// Computes [`crate::quant::floats::batch_dot`] with the same bits, for whole registers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn batch_dot<const W: usize, const A: usize>(
    weights: &[u8],
    activations: &[u8],
    weight: impl Fn(&[u8; W]) -> __m256,
    activation: impl Fn(&[u8; A]) -> __m256,
) -> f32 {
    let mut lanes = _mm256_setzero_ps();
    let (weights, _) = weights.as_chunks::<W>();
    let (activations, _) = activations.as_chunks::<A>();
    for (w, a) in weights.iter().zip(activations) {
        lanes = _mm256_fmadd_ps(weight(w), activation(a), lanes);
    }
    sum(lanes)
}

/// Sums products of whole steps of 32 elements in four registers, and adds the registers. `widen` reads eight
/// elements of `N` bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sums<const N: usize>(weights: &[u8], activations: &[u8], widen: impl Fn(&[u8; N]) -> __m256) -> __m256 {
    let mut registers = [_mm256_setzero_ps(); 4];
    let (weights, _) = weights.as_chunks::<N>();
    let (activations, _) = activations.as_chunks::<N>();
    let (weights, _) = weights.as_chunks::<4>();
    let (activations, _) = activations.as_chunks::<4>();
    for (w, a) in weights.iter().zip(activations) {
        for index in 0..4 {
            registers[index] = _mm256_fmadd_ps(widen(&w[index]), widen(&a[index]), registers[index]);
        }
    }
    let [a, b, c, d] = registers;
    _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d))
}

/// Adds all lanes, in neighbouring pairs first.
#[inline]
#[target_feature(enable = "avx2")]
fn in_neighbours(lanes: __m256) -> f32 {
    let four = halves_added(lanes);
    let pairs = _mm_add_ps(four, _mm_movehdup_ps(four));
    _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)))
}
