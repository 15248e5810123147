//! AVX2 version of [`crate::quant::k_quants`]: blocks of 256 codes in groups of 16.

use std::arch::x86_64::*;
use std::array::from_fn;

use zerocopy::transmute;

use super::codes::*;
use super::k_quants_tile::scales_of_rows;
use super::registers::*;
use crate::quant::block::{QuantBlock, blocks, part};
use crate::quant::grid_block::{GridBlock, ShiftedGridBlock};
use crate::quant::k_quants::KQuantBlock;
use crate::quant::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
use crate::quant::{iq4_nl, iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k, q8_k, tq1_0, tq2_0};

/// Sums of the product of a weight block with an activation block.
pub(super) struct BlockSums {
    /// Scale of the weights.
    scale: f32,
    /// Integer sums, with the codes' offset subtracted.
    sums: __m256i,
}

/// Sums of the product of a weight block with minima.
pub(super) struct BlockSumsWithMins {
    codes: BlockSums,
    /// Scale of the minima.
    min_scale: f32,
    /// Integer sums of the minima.
    mins: __m256i,
}

/// Defines the dot products of a type, for fewer than eight tokens and for eight or more.
macro_rules! dots {
    ($($row:ident $row_loop:ident, $batch:ident $batch_loop:ident: $block:ty, $sums:ident;)*) => {
        $(
            #[target_feature(enable = "avx2,fma,f16c")]
            pub(super) fn $row(weights: &[u8], activations: &[u8]) -> f32 {
                $row_loop(weights, activations, |w: &$block, a| $sums(w, a))
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            pub(super) fn $batch(weights: &[u8], activations: &[u8]) -> f32 {
                $batch_loop(weights, activations, |w: &$block, a| $sums(w, a))
            }
        )*
    };
}

dots! {
    q2_k dot_with_mins, q2_k_batch batch_dot_with_mins: q2_k::BlockQ2K, q2_k_sums;
    q3_k dot, q3_k_batch batch_dot: q3_k::BlockQ3K, q3_k_sums;
    q4_k dot_with_mins_in_four, q4_k_batch batch_dot_with_mins: q4_k::BlockQ4K, q4_k_sums;
    q5_k dot_with_mins_in_one, q5_k_batch batch_dot_with_mins: q5_k::BlockQ5K, q5_k_sums;
    q6_k dot, q6_k_batch batch_dot: q6_k::BlockQ6K, q6_k_sums;
    iq4_xs dot, iq4_xs_batch batch_dot: iq4_xs::BlockIq4Xs, iq4_xs_sums;
    iq2_xxs dot, iq2_xxs_batch batch_dot: iq2_xxs::BlockIq2Xxs, grid_sums;
    iq2_xs dot, iq2_xs_batch batch_dot: iq2_xs::BlockIq2Xs, grid_sums;
    iq2_s dot, iq2_s_batch batch_dot: iq2_s::BlockIq2S, grid_sums;
    iq3_xxs dot, iq3_xxs_batch batch_dot: iq3_xxs::BlockIq3Xxs, grid_sums;
    iq3_s dot, iq3_s_batch batch_dot: iq3_s::BlockIq3S, grid_sums;
    iq1_s dot_with_shifts_in_one, iq1_s_batch batch_dot_of_shifted: iq1_s::BlockIq1S, entry_and_shift_sums;
    iq1_m dot_with_shifts_in_eight, iq1_m_batch batch_dot_of_shifted: iq1_m::BlockIq1M, entry_and_shift_sums;
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tq1_0(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &tq1_0::BlockTq1_0, a| ternary(widen(w.scale), tq1_0_codes(w), a))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tq2_0(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &tq2_0::BlockTq2_0, a| ternary(widen(w.scale), two_bits(&w.codes), a))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q2_k_sums(w: &q2_k::BlockQ2K, a: &q8_k::BlockQ8K) -> BlockSumsWithMins {
    let (groups, nibble) = (load_half(&w.groups), _mm_set1_epi8(0x0F));
    let scales = _mm_and_si128(groups, nibble);
    let mins = _mm_and_si128(_mm_srli_epi16::<4>(groups), nibble);
    let sums = weighted(unsigned(two_bits(&w.codes), a), scales);
    let codes = BlockSums { scale: widen(w.scale), sums };
    BlockSumsWithMins { codes, min_scale: widen(w.min_scale), mins: pair_sums(mins, a) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q3_k_sums(w: &q3_k::BlockQ3K, a: &q8_k::BlockQ8K) -> BlockSums {
    let (low, high) = (two_bits(&w.codes), high_bits::<4>(&w.high));
    let code = |row: usize| _mm256_sub_epi8(_mm256_or_si256(low[row], high[row]), _mm256_set1_epi8(4));
    BlockSums { scale: widen(w.scale), sums: weighted(signed(from_fn(code), a), q3_k_scales(&w.scales)) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q4_k_sums(w: &q4_k::BlockQ4K, a: &q8_k::BlockQ8K) -> BlockSumsWithMins {
    let (scales, mins) = scales_and_mins(&w.groups);
    let sums = weighted(unsigned(nibble_rows(&w.nibbles), a), scales);
    let codes = BlockSums { scale: widen(w.scale), sums };
    BlockSumsWithMins { codes, min_scale: widen(w.min_scale), mins: pair_sums(mins, a) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q5_k_sums(w: &q5_k::BlockQ5K, a: &q8_k::BlockQ8K) -> BlockSumsWithMins {
    let (scales, mins) = scales_and_mins(&w.groups);
    let (low, high) = (nibble_rows(&w.nibbles), high_bits::<16>(&w.high));
    let code = |row: usize| _mm256_or_si256(low[row], high[row]);
    let codes = BlockSums { scale: widen(w.scale), sums: weighted(unsigned(from_fn(code), a), scales) };
    BlockSumsWithMins { codes, min_scale: widen(w.min_scale), mins: pair_sums(mins, a) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q6_k_sums(w: &q6_k::BlockQ6K, a: &q8_k::BlockQ8K) -> BlockSums {
    let scales: __m128i = transmute!(w.scales);
    let offset = _mm256_slli_epi32::<5>(pair_sums(scales, a));
    let sums = weighted(unsigned(six_bits(&w.low, &w.high), a), scales);
    BlockSums { scale: widen(w.scale), sums: _mm256_sub_epi32(sums, offset) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn iq4_xs_sums(w: &iq4_xs::BlockIq4Xs, a: &q8_k::BlockQ8K) -> BlockSums {
    let codes = from_fn(|row| look_up(&iq4_nl::VALUES, nibbles(&w.nibbles[row])));
    let scales = iq4_xs_scales(w.scales_low, w.scales_high.bits());
    BlockSums { scale: widen(w.scale), sums: weighted(signed(codes, a), scales) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn grid_sums<B: GridBlock>(w: &B, a: &q8_k::BlockQ8K) -> BlockSums {
    let codes = from_fn(|row| load_signed(&w.row(row)));
    let sums = weighted(signed(codes, a), transmute!(w.group_scales()));
    BlockSums { scale: widen(w.block_scale()), sums }
}

/// Returns two sums of products with the activations of a block: of the grid entries, and of the shifts, as integers.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn entry_and_shift_sums<B: ShiftedGridBlock>(w: &B, a: &q8_k::BlockQ8K) -> (BlockSums, __m256i) {
    let scales: __m128i = transmute!(w.group_scales());
    let entries = from_fn(|row| load_signed(&w.entries(row)));
    let shifts = from_fn(|row| load_signed(&w.shift_row(row)));
    let sums = BlockSums { scale: widen(w.block_scale()), sums: weighted(signed(entries, a), scales) };
    (sums, weighted(signed(shifts, a), scales))
}

/// Multiplies ternary codes by activations. Codes are stored as 0 to 2, and 1 is subtracted from each. There are no
/// group scales.
#[inline]
#[target_feature(enable = "avx2")]
fn ternary(scale: f32, codes: Codes, activations: &q8_k::BlockQ8K) -> BlockSums {
    let products = unsigned(codes, activations);
    let sum = products.into_iter().fold(_mm256_setzero_si256(), |sum, next| _mm256_add_epi16(sum, next));
    BlockSums { scale, sums: add_neighbours(_mm256_sub_epi16(sum, sums_of_16(activations))) }
}

/// Computes [`crate::quant::k_quants::dot`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<B: KQuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> BlockSums,
) -> f32 {
    let mut lanes = _mm256_setzero_ps();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let block = sums(w, a);
        lanes = add_scaled(lanes, block.scale * a.scale(), block.sums);
    }
    sum(lanes) * B::FACTOR
}

/// Computes [`crate::quant::k_quants::dot_with_mins`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_with_mins<B: QuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> BlockSumsWithMins,
) -> f32 {
    let mut lanes = _mm256_setzero_ps();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let block = sums(w, a);
        lanes = add_scaled(lanes, -a.scale() * block.min_scale, block.mins);
        lanes = add_scaled(lanes, block.codes.scale * a.scale(), block.codes.sums);
    }
    sum(lanes)
}

/// Computes [`crate::quant::k_quants::dot_with_mins_in_four`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_with_mins_in_four<B: QuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> BlockSumsWithMins,
) -> f32 {
    let (mut lanes, mut min_lanes) = (_mm256_setzero_ps(), _mm_setzero_ps());
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let block = sums(w, a);
        let (low, high) = (_mm256_castsi256_si128(block.mins), _mm256_extracti128_si256::<1>(block.mins));
        let mins = _mm_cvtepi32_ps(_mm_hadd_epi32(low, high));
        min_lanes = _mm_fmadd_ps(_mm_set1_ps(-a.scale() * block.min_scale), mins, min_lanes);
        lanes = add_scaled(lanes, block.codes.scale * a.scale(), block.codes.sums);
    }
    sum(lanes) + sum4(min_lanes)
}

/// Computes [`crate::quant::k_quants::dot_with_mins_in_one`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_with_mins_in_one<B: QuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> BlockSumsWithMins,
) -> f32 {
    let (mut lanes, mut mins) = (_mm256_setzero_ps(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let block = sums(w, a);
        mins = (-a.scale() * block.min_scale).mul_add(sum_integers(block.mins) as f32, mins);
        lanes = add_scaled(lanes, block.codes.scale * a.scale(), block.codes.sums);
    }
    sum(lanes) + mins
}

/// Computes [`crate::quant::k_quants::batch_dot`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn batch_dot<B: KQuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> BlockSums,
) -> f32 {
    let mut sum = 0.0f32;
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let block = sums(w, a);
        sum = (block.scale * B::FACTOR * sum_integers(block.sums) as f32).mul_add(a.scale(), sum);
    }
    sum
}

/// Computes [`crate::quant::k_quants::batch_dot_with_mins`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn batch_dot_with_mins<B: QuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> BlockSumsWithMins,
) -> f32 {
    let mut sum = 0.0f32;
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let block = sums(w, a);
        let codes = block.codes.scale * sum_integers(block.codes.sums) as f32;
        sum = (-block.min_scale).mul_add(sum_integers(block.mins) as f32, codes).mul_add(a.scale(), sum);
    }
    sum
}

/// Computes [`crate::quant::grid_block::dot_with_shifts_in_one`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_with_shifts_in_one<B: KQuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> (BlockSums, __m256i),
) -> f32 {
    let (mut lanes, mut shifts) = (_mm256_setzero_ps(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let (block, of_shifts) = sums(w, a);
        let scale = a.scale() * block.scale;
        lanes = add_scaled(lanes, scale, block.sums);
        shifts = scale.mul_add(sum_integers(of_shifts) as f32, shifts);
    }
    B::FACTOR.mul_add(shifts, sum(lanes))
}

/// Computes [`crate::quant::grid_block::dot_with_shifts_in_eight`] with the same bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_with_shifts_in_eight<B: KQuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> (BlockSums, __m256i),
) -> f32 {
    let (mut lanes, mut shifts) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let (block, of_shifts) = sums(w, a);
        let scale = a.scale() * block.scale;
        lanes = add_scaled(lanes, scale, block.sums);
        shifts = add_scaled(shifts, scale, of_shifts);
    }
    B::FACTOR.mul_add(sum(shifts), sum(lanes))
}

/// Computes [`crate::quant::k_quants::batch_dot`] of a shifted grid with the same bits. The sum of a block is an
/// integer: eight times the entries' sum plus the shifts' sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn batch_dot_of_shifted<B: KQuantBlock>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::BlockQ8K) -> (BlockSums, __m256i),
) -> f32 {
    batch_dot(weights, activations, |w: &B, a| {
        let (block, shifts) = sums(w, a);
        BlockSums { sums: _mm256_add_epi32(_mm256_slli_epi32::<3>(block.sums), shifts), ..block }
    })
}

/// Multiplies unsigned codes, and adds neighbouring products in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn unsigned(codes: Codes, activations: &q8_k::BlockQ8K) -> Codes {
    from_fn(|row| _mm256_maddubs_epi16(codes[row], load_signed(part(&activations.codes, row))))
}

/// Multiplies signed codes, and adds neighbouring products in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn signed(codes: Codes, activations: &q8_k::BlockQ8K) -> Codes {
    from_fn(|row| multiply_signed(codes[row], load_signed(part(&activations.codes, row))))
}

/// Multiplies products by the scale of each 16 codes, and adds all rows.
#[inline]
#[target_feature(enable = "avx2")]
fn weighted(products: Codes, scales: __m128i) -> __m256i {
    let scales = scales_of_rows(scales);
    let mut sums = _mm256_setzero_si256();
    for (products, scales) in products.into_iter().zip(scales) {
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(products, scales));
    }
    sums
}

/// Multiplies each group's factor by the sum of its activations, and adds two groups in each lane.
#[inline]
#[target_feature(enable = "avx2")]
fn pair_sums(factors: __m128i, activations: &q8_k::BlockQ8K) -> __m256i {
    _mm256_madd_epi16(_mm256_cvtepi8_epi16(factors), sums_of_16(activations))
}

#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_16(activations: &q8_k::BlockQ8K) -> __m256i {
    load_sums(&activations.sums)
}
