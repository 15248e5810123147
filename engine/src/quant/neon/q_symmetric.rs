//! NEON version of [`crate::quant::q_symmetric_dot`]: blocks of 32 signed codes with one scale.
//!
//! An activation of −128 encodes NaN or infinity. For such an activation, x86 instructions multiply differently
//! from NEON's. Rows that contain one therefore use the portable code.

use std::arch::aarch64::*;

use super::registers::*;
use crate::quant::block::blocks;
use crate::quant::q_symmetric::SymmetricBlock;
use crate::quant::q_symmetric_dot::{self, add_whole};
use crate::quant::{iq4_nl, mxfp4, q4_0, q5_0, q8_0};

/// Defines the dot products of a type, given the loop, the portable version, and how a block's codes are unpacked.
macro_rules! dots {
    ($($name:ident $loop:ident: $block:ty, $codes:expr;)*) => {
        $(
            #[target_feature(enable = "neon,dotprod")]
            pub(super) fn $name(weights: &[u8], activations: &[u8]) -> f32 {
                let mut least = vdupq_n_s8(0);
                let sum = $loop::<$block>(weights, activations, &mut least, $codes);
                if vminvq_s8(least) > i8::MIN { sum } else { signed_dot::$loop::<$block>(weights, activations) }
            }
        )*
    };
}

dots! {
    q4_0 dot: q4_0::BlockQ4_0, |w| q4_0_codes(w);
    q5_0 dot: q5_0::BlockQ5_0, |w| q5_0_codes(w);
    q8_0 dot: q8_0::BlockQ8_0, |w| registers(w.codes);
    iq4_nl dot_in_pairs: iq4_nl::BlockIq4Nl, |w| iq4_nl_codes(w);
    iq4_nl_batch dot: iq4_nl::BlockIq4Nl, |w| iq4_nl_codes(w);
    mxfp4 dot_in_pairs: mxfp4::BlockMxfp4, |w| look_up(&mxfp4::VALUES, &w.nibbles);
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_0_codes(block: &q4_0::BlockQ4_0) -> Bytes {
    nibbles(&block.nibbles).map(|codes| vsubq_s8(codes, vdupq_n_s8(8)))
}

/// Unpacks Q5_0. If the fifth bit is not set, 16 is subtracted by setting the upper four bits of a signed byte.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_0_codes(block: &q5_0::BlockQ5_0) -> Bytes {
    below(spread_bits(block.high, 0xF0).map(|set| veorq_u8(set, vdupq_n_u8(0xF0))), &block.nibbles)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq4_nl_codes(block: &iq4_nl::BlockIq4Nl) -> Bytes {
    look_up(&iq4_nl::VALUES, &block.nibbles)
}

/// Computes [`q_symmetric_dot::dot`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<B: SymmetricBlock>(
    weights: &[u8],
    activations: &[u8],
    least: &mut int8x16_t,
    codes: impl Fn(&B) -> Bytes,
) -> f32 {
    let mut lanes = NeonLanes::zeros();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks(activations)) {
        add(&mut lanes, w, codes(w), a, least);
    }
    lanes.sum()
}

/// Computes [`q_symmetric_dot::dot_in_pairs`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_in_pairs<B: SymmetricBlock>(
    weights: &[u8],
    activations: &[u8],
    least: &mut int8x16_t,
    codes: impl Fn(&B) -> Bytes,
) -> f32 {
    let (weights, last) = blocks::<B>(weights).as_chunks::<2>();
    let (activations, last_activations) = blocks::<q8_0::BlockQ8_0>(activations).as_chunks::<2>();
    let (mut even, mut odd) = (NeonLanes::zeros(), NeonLanes::zeros());
    for ([w0, w1], [a0, a1]) in weights.iter().zip(activations) {
        add(&mut even, w0, codes(w0), a0, least);
        add(&mut odd, w1, codes(w1), a1, least);
    }
    let sum = even.plus(odd).sum();
    last.iter().zip(last_activations).fold(sum, |sum, (w, a)| add_whole(sum, w, a))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add(
    lanes: &mut NeonLanes,
    w: &impl SymmetricBlock,
    codes: Bytes,
    a: &q8_0::BlockQ8_0,
    least: &mut int8x16_t,
) {
    let [low, high] = registers(a.codes);
    *least = vminq_s8(*least, vminq_s8(low, high));
    lanes.add_scaled(w.scale() * a.scale(), dot4(codes, [low, high]));
}
