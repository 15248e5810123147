//! NEON version of blocks of 64 and 128 codes: the portable code, compiled for these instructions.

use crate::quant::{nvfp4, q1_0, q2_0, wide_block};

#[target_feature(enable = "neon,dotprod")]
pub(super) fn q1_0(weights: &[u8], activations: &[u8]) -> f32 {
    wide_block::dot_in_lanes::<4, q1_0::BlockQ1_0>(weights, activations)
}

#[target_feature(enable = "neon,dotprod")]
pub(super) fn q2_0(weights: &[u8], activations: &[u8]) -> f32 {
    wide_block::dot_in_one::<2, q2_0::BlockQ2_0>(weights, activations)
}

#[target_feature(enable = "neon,dotprod")]
pub(super) fn nvfp4(weights: &[u8], activations: &[u8]) -> f32 {
    nvfp4::dot(weights, activations)
}
