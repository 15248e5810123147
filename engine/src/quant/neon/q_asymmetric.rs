//! NEON version of [`crate::quant::q_asymmetric`]: blocks of 32 unsigned codes with a scale and a minimum.

use super::registers::*;
use crate::quant::block::blocks;
use crate::quant::q_asymmetric::AsymmetricBlock;
use crate::quant::{q4_1, q5_1, q8_1};

#[target_feature(enable = "neon,dotprod")]
pub(super) fn q4_1(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &q4_1::BlockQ4_1| nibbles(&w.nibbles))
}

#[target_feature(enable = "neon,dotprod")]
pub(super) fn q5_1(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &q5_1::BlockQ5_1| below(spread_bits(w.high, 0x10), &w.nibbles))
}

/// Computes [`crate::quant::q_asymmetric::dot`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<B: AsymmetricBlock>(weights: &[u8], activations: &[u8], codes: impl Fn(&B) -> Bytes) -> f32 {
    let (mut lanes, mut mins) = (NeonLanes::zeros(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_1::BlockQ8_1>(activations)) {
        mins = w.min().mul_add(a.sum(), mins);
        lanes.add_scaled(w.scale() * a.scale(), dot4(codes(w), registers(a.codes)));
    }
    lanes.sum() + mins
}
