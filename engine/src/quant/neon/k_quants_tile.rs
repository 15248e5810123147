//! Tiles of two rows of 256-value blocks with four rows of activations. The bits equal those of the dot products
//! for several tokens in [`super::k_quants`], but every block is unpacked only once.

use super::codes;
use super::k_quants::{offset, pair_sums, row_sums};
use super::registers::*;
use crate::quant::block::blocks;
use crate::quant::k_quants::{KQuantBlock, KQuantBlockWithMins};
use crate::quant::{iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k, q8_k};

/// Defines the tiles of a type, given its block, the loop, and how a row of 32 codes is unpacked.
macro_rules! tiles {
    ($($name:ident $loop:ident: $block:ty, $codes:expr;)*) => {
        $(
            #[target_feature(enable = "neon,dotprod")]
            pub(super) fn $name(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
                let activations = activations.map(blocks);
                weights.map(|weights| $loop::<$block>(blocks(weights), activations, $codes))
            }
        )*
    };
}

tiles! {
    q2_k dots_with_mins: q2_k::BlockQ2K, |w, row| codes::two_bits(&w.codes, row);
    q3_k dots: q3_k::BlockQ3K, |w, row| codes::q3_k(w, row);
    q4_k dots_with_mins: q4_k::BlockQ4K, |w, row| codes::nibbles(&w.nibbles, row);
    q5_k dots_with_mins: q5_k::BlockQ5K, |w, row| codes::q5_k(w, row);
    q6_k dots: q6_k::BlockQ6K, |w, row| codes::q6_k(w, row);
    iq4_xs dots: iq4_xs::BlockIq4Xs, |w, row| codes::iq4_xs(w, row);
}

/// Rows of activations of four tokens.
type TokenRows<'a> = [&'a [q8_k::BlockQ8K]; 4];

/// Computes four dot products with the bits of [`crate::quant::k_quants::batch_dot`].
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dots<B: KQuantBlock>(weights: &[B], tokens: TokenRows, codes: impl Fn(&B, usize) -> Bytes) -> [f32; 4] {
    let mut out = [0.0f32; 4];
    for (index, w) in weights.iter().enumerate() {
        let a = tokens.map(|token| &token[index]);
        for (out, (a, sum)) in out.iter_mut().zip(a.into_iter().zip(sums(w, a, &codes))) {
            *out = (w.scale() * sum).mul_add(a.scale(), *out);
        }
    }
    out
}

/// Computes four dot products with the bits of [`crate::quant::k_quants::batch_dot_with_mins`].
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dots_with_mins<B: KQuantBlockWithMins>(
    weights: &[B],
    tokens: TokenRows,
    codes: impl Fn(&B, usize) -> Bytes,
) -> [f32; 4] {
    let mut out = [0.0f32; 4];
    for (index, w) in weights.iter().enumerate() {
        let (a, mins) = (tokens.map(|token| &token[index]), w.mins());
        for (out, (a, sum)) in out.iter_mut().zip(a.into_iter().zip(sums(w, a, &codes))) {
            let mins = sum_integers(pair_sums(mins, a)) as f32;
            *out = (-w.min_scale()).mul_add(mins, w.scale() * sum).mul_add(a.scale(), *out);
        }
    }
    out
}

/// Returns the integer sums of a weight block with the blocks of four tokens.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sums<B: KQuantBlock>(w: &B, a: [&q8_k::BlockQ8K; 4], codes: impl Fn(&B, usize) -> Bytes) -> [f32; 4] {
    let scales = w.scales().map(i32::from);
    let add = |sums: [Int32Lanes; 4], row: usize| {
        let codes = codes(w, row);
        let scales = [scales[2 * row], scales[2 * row + 1]];
        let [p, q, r, s] = sums;
        [
            row_sums(p, codes, a[0], row, scales),
            row_sums(q, codes, a[1], row, scales),
            row_sums(r, codes, a[2], row, scales),
            row_sums(s, codes, a[3], row, scales),
        ]
    };
    let none = a.map(|a| offset(w, a));
    let half = add(add(add(add(none, 0), 1), 2), 3);
    add(add(add(add(half, 4), 5), 6), 7).map(|sums| sum_integers(sums) as f32)
}
