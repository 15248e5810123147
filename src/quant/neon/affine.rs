//! Blocks of 32 unsigned codes with a scale and a minimum: twins of [`crate::quant::affine`].

use zerocopy::transmute;

use super::registers::*;
use crate::quant::affine::Affine;
use crate::quant::stored::{Half, Stored, blocks};
use crate::quant::{q4_1, q5_1, q8_1};

#[target_feature(enable = "neon,dotprod")]
pub(super) fn q4_1(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &q4_1::Block| (w.scale, w.min, transmute!(w.codes())))
}

#[target_feature(enable = "neon,dotprod")]
pub(super) fn q5_1(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &q5_1::Block| {
        (w.scale, w.min, below(spread_bits(w.high, 0x10), &w.nibbles))
    })
}

/// Twin of [`crate::quant::affine::dot`]; `read` gives a block's scale, minimum and codes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<B: Stored>(weights: &[u8], activations: &[u8], read: impl Fn(&B) -> (Half, Half, Bytes)) -> f32 {
    let (mut lanes, mut mins) = (Lanes::zeros(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_1::Block>(activations)) {
        let (scale, min, weights) = read(w);
        mins = widen(min).mul_add(widen(a.sum), mins);
        lanes.add_scaled(widen(scale) * widen(a.scale), dot4(weights, registers(a.codes)));
    }
    lanes.sum() + mins
}
