//! Tiles of two rows of weights with four rows of activations. The bits equal those of the dot products in
//! [`super::q_symmetric`] and [`super::q_asymmetric`], but every block is read only once.

use std::arch::x86_64::*;

use zerocopy::transmute;

use super::q_asymmetric::q5_1_codes;
use super::q_symmetric::{iq4_nl_codes, q4_0_codes, q5_0_codes};
use super::registers::*;
use crate::quant::block::{QuantBlock, StoredF16, blocks};
use crate::quant::{iq4_nl, q4_0, q4_1, q5_0, q5_1, q8_0, q8_1};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile(weights, activations, |block: &q4_0::BlockQ4_0| (block.scale, q4_0_codes(block)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_0(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile(weights, activations, |block: &q5_0::BlockQ5_0| (block.scale, q5_0_codes(block)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile(weights, activations, |block: &q8_0::BlockQ8_0| (block.scale, load_signed(&block.codes)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_nl_batch(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile(weights, activations, |block: &iq4_nl::BlockIq4Nl| (block.scale, iq4_nl_codes(block)))
}

/// Computes eight dot products with the bits of [`crate::quant::q_symmetric_dot::dot`]. `read` returns a weight
/// block's scale and codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<B: QuantBlock>(
    weights: [&[u8]; 2],
    activations: [&[u8]; 4],
    read: impl Fn(&B) -> (StoredF16, __m256i),
) -> [[f32; 4]; 2] {
    let mut lanes = [[_mm256_setzero_ps(); 2]; 4];
    let [first, second] = weights.map(blocks::<B>);
    let [a, b, c, d] = activations.map(blocks::<q8_0::BlockQ8_0>);
    for (((((first, second), a), b), c), d) in first.iter().zip(second).zip(a).zip(b).zip(c).zip(d) {
        let four = widen_four([a.scale, b.scale, c.scale, d.scale]);
        let rows = [first, second].map(|block| {
            let (scale, codes) = read(block);
            (_mm256_mul_ps(widen_to_all(scale), four), codes)
        });
        // One token after the other: there are registers for the codes of two rows, but not of four.
        lanes[0] = add::<0b00_00_00_00>(lanes[0], &rows, a);
        lanes[1] = add::<0b01_01_01_01>(lanes[1], &rows, b);
        lanes[2] = add::<0b10_10_10_10>(lanes[2], &rows, c);
        lanes[3] = add::<0b11_11_11_11>(lanes[3], &rows, d);
    }
    [0, 1].map(|row| lanes.map(|lanes| sum(lanes[row])))
}

/// Adds the products of one block of one token to the sums of the tile's rows. `rows` has, for each row of weights, the
/// scales of all tokens' products and the codes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add<const TOKEN: i32>(
    lanes: [__m256; 2],
    rows: &[(__m256, __m256i); 2],
    activations: &q8_0::BlockQ8_0,
) -> [__m256; 2] {
    let activations = load_signed(&activations.codes);
    [0, 1].map(|row| {
        let (scales, codes) = rows[row];
        let sums = add_neighbours(multiply_signed(codes, activations));
        _mm256_fmadd_ps(_mm256_shuffle_ps::<TOKEN>(scales, scales), _mm256_cvtepi32_ps(sums), lanes[row])
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_1(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile_with_mins(weights, activations, |block: &q4_1::BlockQ4_1| {
        (block.scale, block.min, nibbles(&block.nibbles))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_1(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile_with_mins(weights, activations, |block: &q5_1::BlockQ5_1| {
        (block.scale, block.min, q5_1_codes(block))
    })
}

/// Computes eight dot products with the bits of [`crate::quant::q_asymmetric::dot`]. `read` returns a weight
/// block's scale, minimum and codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_with_mins<B: QuantBlock>(
    weights: [&[u8]; 2],
    activations: [&[u8]; 4],
    read: impl Fn(&B) -> (StoredF16, StoredF16, __m256i),
) -> [[f32; 4]; 2] {
    let (mut lanes, mut mins) = ([[_mm256_setzero_ps(); 2]; 4], [_mm256_setzero_ps(); 2]);
    let [first, second] = weights.map(blocks::<B>);
    let [a, b, c, d] = activations.map(blocks::<q8_1::BlockQ8_1>);
    for (((((first, second), a), b), c), d) in first.iter().zip(second).zip(a).zip(b).zip(c).zip(d) {
        let four = widen_four([a.scale, b.scale, c.scale, d.scale]);
        let sums = widen_four([a.sum, b.sum, c.sum, d.sum]);
        let read = [read(first), read(second)];
        let rows = read.map(|(scale, _, codes)| (_mm256_mul_ps(widen_to_all(scale), four), codes));
        for (mins, (_, min, _)) in mins.iter_mut().zip(read) {
            *mins = _mm256_add_ps(*mins, _mm256_mul_ps(widen_to_all(min), sums));
        }
        lanes[0] = add_unsigned::<0b00_00_00_00>(lanes[0], &rows, a);
        lanes[1] = add_unsigned::<0b01_01_01_01>(lanes[1], &rows, b);
        lanes[2] = add_unsigned::<0b10_10_10_10>(lanes[2], &rows, c);
        lanes[3] = add_unsigned::<0b11_11_11_11>(lanes[3], &rows, d);
    }
    let mins: [[f32; 8]; 2] = transmute!(mins);
    [0, 1].map(|row| [0, 1, 2, 3].map(|token| sum(lanes[token][row]) + mins[row][token]))
}

/// Adds the products of one block of one token, as [`add`] does, for unsigned codes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_unsigned<const TOKEN: i32>(
    lanes: [__m256; 2],
    rows: &[(__m256, __m256i); 2],
    activations: &q8_1::BlockQ8_1,
) -> [__m256; 2] {
    let activations = load_signed(&activations.codes);
    [0, 1].map(|row| {
        let (scales, codes) = rows[row];
        let sums = add_neighbours(_mm256_maddubs_epi16(codes, activations));
        _mm256_fmadd_ps(_mm256_shuffle_ps::<TOKEN>(scales, scales), _mm256_cvtepi32_ps(sums), lanes[row])
    })
}
