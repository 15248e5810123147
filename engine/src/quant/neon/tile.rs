//! Tiles of two rows of weights with four rows of activations. The bits equal those of the dot products in
//! [`super::q_symmetric`], but every block is read only once.

use std::arch::aarch64::*;

use super::q_symmetric::{iq4_nl_codes, q4_0_codes, q5_0_codes};
use super::registers::*;
use crate::quant::block::blocks;
use crate::quant::q_symmetric::SymmetricBlock;
use crate::quant::{iq4_nl, q_symmetric_dot, q4_0, q5_0, q8_0};

macro_rules! tiles {
    ($($name:ident: $block:ty, $codes:expr;)*) => {
        $(
            #[target_feature(enable = "neon,dotprod")]
            pub(super) fn $name(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
                let mut least = vdupq_n_s8(0);
                let tile = tile::<$block>(weights, activations, &mut least, $codes);
                if vminvq_s8(least) > i8::MIN { tile } else { defined::<$block>(weights, activations) }
            }
        )*
    };
}

tiles! {
    q4_0: q4_0::BlockQ4_0, |w| q4_0_codes(w);
    q5_0: q5_0::BlockQ5_0, |w| q5_0_codes(w);
    q8_0: q8_0::BlockQ8_0, |w| registers(w.codes);
    iq4_nl_batch: iq4_nl::BlockIq4Nl, |w| iq4_nl_codes(w);
}

/// Computes the tile with the portable code, for activations that contain −128 ([`super::q_symmetric`]).
fn defined<B: SymmetricBlock>(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    weights.map(|weights| activations.map(|activations| q_symmetric_dot::dot::<B>(weights, activations)))
}

/// Computes eight dot products with the bits of [`q_symmetric_dot::dot`].
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn tile<B: SymmetricBlock>(
    weights: [&[u8]; 2],
    activations: [&[u8]; 4],
    least: &mut int8x16_t,
    codes: impl Fn(&B) -> Bytes,
) -> [[f32; 4]; 2] {
    let mut lanes = [[NeonLanes::zeros(); 2]; 4];
    let [first, second] = weights.map(blocks::<B>);
    let [a, b, c, d] = activations.map(blocks::<q8_0::BlockQ8_0>);
    for (((((first, second), a), b), c), d) in first.iter().zip(second).zip(a).zip(b).zip(c).zip(d) {
        let rows = [(first.scale(), codes(first)), (second.scale(), codes(second))];
        lanes[0] = add(lanes[0], rows, a, least);
        lanes[1] = add(lanes[1], rows, b, least);
        lanes[2] = add(lanes[2], rows, c, least);
        lanes[3] = add(lanes[3], rows, d, least);
    }
    [0, 1].map(|row| lanes.map(|lanes| lanes[row].sum()))
}

/// Adds the products of one block of one token, given the scale and the codes of each row of weights.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add(
    lanes: [NeonLanes; 2],
    rows: [(f32, Bytes); 2],
    a: &q8_0::BlockQ8_0,
    least: &mut int8x16_t,
) -> [NeonLanes; 2] {
    let ([low, high], scale) = (registers(a.codes), a.scale());
    *least = vminq_s8(*least, vminq_s8(low, high));
    let [first, second] = rows.map(|(row_scale, codes)| (row_scale * scale, dot4(codes, [low, high])));
    [lanes[0].plus_scaled(first.0, first.1), lanes[1].plus_scaled(second.0, second.1)]
}
