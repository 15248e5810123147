//! NEON version of [`crate::quant::floats`]: F32, F16 and BF16.

use std::arch::aarch64::*;

use zerocopy::transmute;

use super::half::widen_eight;
use super::registers::*;
use crate::quant::floats::{StoredBf16, StoredF16, StoredF32, f32_leftovers, f64_leftovers, leftovers};

#[target_feature(enable = "neon")]
pub(super) fn dot_f32(weights: &[u8], activations: &[u8]) -> f32 {
    let lanes = sums(weights, activations, |eight| singles(eight));
    f32_leftovers(in_neighbours(lanes), leftovers::<StoredF32>(weights, activations))
}

#[target_feature(enable = "neon")]
pub(super) fn dot_f16(weights: &[u8], activations: &[u8]) -> f32 {
    let lanes = sums(weights, activations, |eight| halves(eight));
    f64_leftovers(in_neighbours(lanes), leftovers::<StoredF16>(weights, activations))
}

#[target_feature(enable = "neon")]
pub(super) fn dot_bf16(weights: &[u8], activations: &[u8]) -> f32 {
    let lanes = sums(weights, activations, |eight| brains(eight));
    f64_leftovers(lanes.sum(), leftovers::<StoredBf16>(weights, activations))
}

#[target_feature(enable = "neon")]
pub(super) fn batch_dot_f32(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot(weights, activations, |eight| singles(eight), |eight| singles(eight))
}

#[target_feature(enable = "neon")]
pub(super) fn batch_dot_f16(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot(weights, activations, |eight| halves(eight), |eight| halves(eight))
}

#[target_feature(enable = "neon")]
pub(super) fn batch_dot_f16_f32(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot(weights, activations, |eight| halves(eight), |eight| singles(eight))
}

#[target_feature(enable = "neon")]
pub(super) fn batch_dot_bf16(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot(weights, activations, |eight| brains(eight), |eight| brains(eight))
}

#[inline]
#[target_feature(enable = "neon")]
fn singles(eight: &[u8; 32]) -> [float32x4_t; 2] {
    transmute!(*eight)
}

#[inline]
#[target_feature(enable = "neon")]
fn halves(eight: &[u8; 16]) -> [float32x4_t; 2] {
    widen_eight(load(eight))
}

#[inline]
#[target_feature(enable = "neon")]
fn brains(eight: &[u8; 16]) -> [float32x4_t; 2] {
    let halves = vreinterpretq_u16_u8(load(eight));
    let zeros = vdupq_n_u16(0);
    [vzip1q_u16(zeros, halves), vzip2q_u16(zeros, halves)].map(|bits| vreinterpretq_f32_u16(bits))
}

/// Computes [`crate::quant::floats::batch_dot`] with the same bits, for whole registers.
#[inline]
#[target_feature(enable = "neon")]
fn batch_dot<const W: usize, const A: usize>(
    weights: &[u8],
    activations: &[u8],
    weight: impl Fn(&[u8; W]) -> [float32x4_t; 2],
    activation: impl Fn(&[u8; A]) -> [float32x4_t; 2],
) -> f32 {
    let mut lanes = NeonLanes::zeros();
    let (weights, _) = weights.as_chunks::<W>();
    let (activations, _) = activations.as_chunks::<A>();
    for (w, a) in weights.iter().zip(activations) {
        lanes.add_products(weight(w), activation(a));
    }
    lanes.sum()
}

/// Sums products of whole steps of 32 elements in four registers, and adds the registers. `widen` reads eight
/// elements of `N` bytes.
#[inline]
#[target_feature(enable = "neon")]
fn sums<const N: usize>(
    weights: &[u8],
    activations: &[u8],
    widen: impl Fn(&[u8; N]) -> [float32x4_t; 2],
) -> NeonLanes {
    let mut registers = [NeonLanes::zeros(); 4];
    let (weights, _) = weights.as_chunks::<N>();
    let (activations, _) = activations.as_chunks::<N>();
    let (weights, _) = weights.as_chunks::<4>();
    let (activations, _) = activations.as_chunks::<4>();
    for (w, a) in weights.iter().zip(activations) {
        for index in 0..4 {
            registers[index].add_products(widen(&w[index]), widen(&a[index]));
        }
    }
    let [a, b, c, d] = registers;
    a.plus(c).plus(b.plus(d))
}

/// Adds all lanes, in neighbouring pairs first.
#[inline]
#[target_feature(enable = "neon")]
fn in_neighbours(lanes: NeonLanes) -> f32 {
    let four = lanes.halves_added();
    vpadds_f32(vpadd_f32(vget_low_f32(four), vget_high_f32(four)))
}
