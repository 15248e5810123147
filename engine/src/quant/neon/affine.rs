//! Blocks of 32 unsigned codes with a scale and a minimum: twins of [`crate::quant::affine`].

use super::registers::*;
use crate::quant::affine::Affine;
use crate::quant::stored::blocks;
use crate::quant::{q4_1, q5_1, q8_1};

#[target_feature(enable = "neon,dotprod")]
pub(super) fn q4_1(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &q4_1::Block| nibbles(&w.nibbles))
}

#[target_feature(enable = "neon,dotprod")]
pub(super) fn q5_1(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &q5_1::Block| below(spread_bits(w.high, 0x10), &w.nibbles))
}

/// Twin of [`crate::quant::affine::dot`].
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<B: Affine>(weights: &[u8], activations: &[u8], codes: impl Fn(&B) -> Bytes) -> f32 {
    let (mut lanes, mut mins) = (Lanes::zeros(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_1::Block>(activations)) {
        mins = w.min().mul_add(a.sum(), mins);
        lanes.add_scaled(w.scale() * a.scale(), dot4(codes(w), registers(a.codes)));
    }
    lanes.sum() + mins
}
