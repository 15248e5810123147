//! NEON version of [`crate::quant::k_quants`]: blocks of 256 codes in groups of 16.

use std::arch::aarch64::*;

use zerocopy::transmute;

use super::codes;
use super::registers::*;
use crate::quant::block::{blocks, part};
use crate::quant::grid_block::{GridBlock, ShiftedGridBlock};
use crate::quant::k_quants::{KQuantBlock, KQuantBlockWithMins};
use crate::quant::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
use crate::quant::{iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k, q8_k, tq1_0, tq2_0};

/// Defines the dot products of a type, given its block, the loop, and how a row of 32 codes is unpacked.
macro_rules! dots {
    ($($name:ident $loop:ident: $block:ty, $codes:expr;)*) => {
        $(
            #[target_feature(enable = "neon,dotprod")]
            pub(super) fn $name(weights: &[u8], activations: &[u8]) -> f32 {
                $loop::<$block>(weights, activations, $codes)
            }
        )*
    };
}

dots! {
    q2_k dot_with_mins: q2_k::BlockQ2K, |w, row| codes::two_bits(&w.codes, row);
    q2_k_batch batch_dot_with_mins: q2_k::BlockQ2K, |w, row| codes::two_bits(&w.codes, row);
    q3_k dot: q3_k::BlockQ3K, |w, row| codes::q3_k(w, row);
    q3_k_batch batch_dot: q3_k::BlockQ3K, |w, row| codes::q3_k(w, row);
    q4_k dot_with_mins_in_four: q4_k::BlockQ4K, |w, row| codes::nibbles(&w.nibbles, row);
    q4_k_batch batch_dot_with_mins: q4_k::BlockQ4K, |w, row| codes::nibbles(&w.nibbles, row);
    q5_k dot_with_mins_in_one: q5_k::BlockQ5K, |w, row| codes::q5_k(w, row);
    q5_k_batch batch_dot_with_mins: q5_k::BlockQ5K, |w, row| codes::q5_k(w, row);
    q6_k dot: q6_k::BlockQ6K, |w, row| codes::q6_k(w, row);
    q6_k_batch batch_dot: q6_k::BlockQ6K, |w, row| codes::q6_k(w, row);
    iq4_xs dot: iq4_xs::BlockIq4Xs, |w, row| codes::iq4_xs(w, row);
    iq4_xs_batch batch_dot: iq4_xs::BlockIq4Xs, |w, row| codes::iq4_xs(w, row);
    iq2_xxs dot: iq2_xxs::BlockIq2Xxs, |w, row| registers(w.row(row));
    iq2_xxs_batch batch_dot: iq2_xxs::BlockIq2Xxs, |w, row| registers(w.row(row));
    iq2_xs dot: iq2_xs::BlockIq2Xs, |w, row| registers(w.row(row));
    iq2_xs_batch batch_dot: iq2_xs::BlockIq2Xs, |w, row| registers(w.row(row));
    iq2_s dot: iq2_s::BlockIq2S, |w, row| registers(w.row(row));
    iq2_s_batch batch_dot: iq2_s::BlockIq2S, |w, row| registers(w.row(row));
    iq3_xxs dot: iq3_xxs::BlockIq3Xxs, |w, row| registers(w.row(row));
    iq3_xxs_batch batch_dot: iq3_xxs::BlockIq3Xxs, |w, row| registers(w.row(row));
    iq3_s dot: iq3_s::BlockIq3S, |w, row| registers(w.row(row));
    iq3_s_batch batch_dot: iq3_s::BlockIq3S, |w, row| registers(w.row(row));
    iq1_s dot_with_shifts_in_one: iq1_s::BlockIq1S, |w, row| registers(w.entries(row));
    iq1_s_batch batch_dot: iq1_s::BlockIq1S, |w, row| registers(w.row(row));
    iq1_m dot_with_shifts_in_eight: iq1_m::BlockIq1M, |w, row| registers(w.entries(row));
    iq1_m_batch batch_dot: iq1_m::BlockIq1M, |w, row| registers(w.row(row));
    tq1_0 dot: tq1_0::BlockTq1_0, |w, row| registers(w.row(row));
    tq2_0 dot: tq2_0::BlockTq2_0, |w, row| codes::two_bits(&w.codes, row);
}

/// Computes [`crate::quant::k_quants::dot`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<B: KQuantBlock>(weights: &[u8], activations: &[u8], codes: impl Fn(&B, usize) -> Bytes) -> f32 {
    let mut lanes = NeonLanes::zeros();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        lanes.add_scaled(w.scale() * a.scale(), sums(w, a, &codes));
    }
    lanes.sum() * B::FACTOR
}

/// Computes [`crate::quant::k_quants::dot_with_mins`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_with_mins<B: KQuantBlockWithMins>(
    weights: &[u8],
    activations: &[u8],
    codes: impl Fn(&B, usize) -> Bytes,
) -> f32 {
    let mut lanes = NeonLanes::zeros();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        lanes.add_scaled(-a.scale() * w.min_scale(), pair_sums(w.mins(), a));
        lanes.add_scaled(w.scale() * a.scale(), sums(w, a, &codes));
    }
    lanes.sum()
}

/// Computes [`crate::quant::k_quants::dot_with_mins_in_four`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_with_mins_in_four<B: KQuantBlockWithMins>(
    weights: &[u8],
    activations: &[u8],
    codes: impl Fn(&B, usize) -> Bytes,
) -> f32 {
    let (mut lanes, mut min_lanes) = (NeonLanes::zeros(), vdupq_n_f32(0.0));
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let [low, high] = pair_sums(w.mins(), a);
        let mins = vcvtq_f32_s32(vpaddq_s32(low, high));
        min_lanes = vfmaq_n_f32(min_lanes, mins, -a.scale() * w.min_scale());
        lanes.add_scaled(w.scale() * a.scale(), sums(w, a, &codes));
    }
    lanes.sum() + sum4(min_lanes)
}

/// Computes [`crate::quant::k_quants::dot_with_mins_in_one`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_with_mins_in_one<B: KQuantBlockWithMins>(
    weights: &[u8],
    activations: &[u8],
    codes: impl Fn(&B, usize) -> Bytes,
) -> f32 {
    let (mut lanes, mut mins) = (NeonLanes::zeros(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let sum = sum_integers(pair_sums(w.mins(), a));
        mins = (-a.scale() * w.min_scale()).mul_add(sum as f32, mins);
        lanes.add_scaled(w.scale() * a.scale(), sums(w, a, &codes));
    }
    lanes.sum() + mins
}

/// Computes [`crate::quant::k_quants::batch_dot`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn batch_dot<B: KQuantBlock>(weights: &[u8], activations: &[u8], codes: impl Fn(&B, usize) -> Bytes) -> f32 {
    let mut sum = 0.0f32;
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let of_block = sum_integers(sums(w, a, &codes)) as f32;
        sum = (w.scale() * B::FACTOR * of_block).mul_add(a.scale(), sum);
    }
    sum
}

/// Computes [`crate::quant::k_quants::batch_dot_with_mins`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn batch_dot_with_mins<B: KQuantBlockWithMins>(
    weights: &[u8],
    activations: &[u8],
    codes: impl Fn(&B, usize) -> Bytes,
) -> f32 {
    let mut sum = 0.0f32;
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let mins = sum_integers(pair_sums(w.mins(), a)) as f32;
        let of_block = sum_integers(sums(w, a, &codes)) as f32;
        sum = (-w.min_scale()).mul_add(mins, w.scale() * of_block).mul_add(a.scale(), sum);
    }
    sum
}

/// Computes [`crate::quant::grid_block::dot_with_shifts_in_one`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_with_shifts_in_one<B: ShiftedGridBlock>(
    weights: &[u8],
    activations: &[u8],
    entries: impl Fn(&B, usize) -> Bytes,
) -> f32 {
    let (mut lanes, mut shifts) = (NeonLanes::zeros(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let scale = a.scale() * w.scale();
        lanes.add_scaled(scale, sums(w, a, &entries));
        let of_shifts = sum_integers(sums(w, a, |w, row| registers(w.shift_row(row))));
        shifts = scale.mul_add(of_shifts as f32, shifts);
    }
    <B as GridBlock>::FACTOR.mul_add(shifts, lanes.sum())
}

/// Computes [`crate::quant::grid_block::dot_with_shifts_in_eight`] with the same bits.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_with_shifts_in_eight<B: ShiftedGridBlock>(
    weights: &[u8],
    activations: &[u8],
    entries: impl Fn(&B, usize) -> Bytes,
) -> f32 {
    let (mut lanes, mut shifts) = (NeonLanes::zeros(), NeonLanes::zeros());
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let scale = a.scale() * w.scale();
        lanes.add_scaled(scale, sums(w, a, &entries));
        shifts.add_scaled(scale, sums(w, a, |w, row| registers(w.shift_row(row))));
    }
    <B as GridBlock>::FACTOR.mul_add(shifts.sum(), lanes.sum())
}

/// Returns the sums of codes times activations times group scales, with the offset subtracted. Lane l contains
/// values 4l to 4l + 3 of each 32.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sums<B: KQuantBlock>(w: &B, a: &q8_k::BlockQ8K, codes: impl Fn(&B, usize) -> Bytes) -> Int32Lanes {
    let scales = w.scales().map(i32::from);
    let add = |sums: Int32Lanes, row: usize| {
        row_sums(sums, codes(w, row), a, row, [scales[2 * row], scales[2 * row + 1]])
    };
    // Unrolled, so that the row number is a constant in each call.
    let half = add(add(add(add(offset(w, a), 0), 1), 2), 3);
    add(add(add(add(half, 4), 5), 6), 7)
}

/// Returns the total offset of all codes, to be added to the sums.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn offset<B: KQuantBlock>(w: &B, a: &q8_k::BlockQ8K) -> Int32Lanes {
    match B::OFFSET {
        0 => [vdupq_n_s32(0); 2],
        offset => pair_sums(w.scales(), a).map(|sums| vmulq_n_s32(sums, -i32::from(offset))),
    }
}

/// Adds the products of 32 codes with activations, times the scale of each 16 codes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn row_sums(
    sums: Int32Lanes,
    codes: Bytes,
    a: &q8_k::BlockQ8K,
    row: usize,
    scales: [i32; 2],
) -> Int32Lanes {
    let [low, high] = dot4(codes, registers(*part(&a.codes, row)));
    [vmlaq_n_s32(sums[0], low, scales[0]), vmlaq_n_s32(sums[1], high, scales[1])]
}

/// Multiplies each group's factor by the sum of its activations, and adds two groups in each lane.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn pair_sums(factors: [i8; 16], a: &q8_k::BlockQ8K) -> Int32Lanes {
    let factors: int8x16_t = transmute!(factors);
    let sums: [int16x8_t; 2] = transmute!(a.sums);
    [pairs(vmovl_s8(vget_low_s8(factors)), sums[0]), pairs(vmovl_high_s8(factors), sums[1])]
}

/// Multiplies 16-bit numbers, and adds neighbouring products.
#[inline]
#[target_feature(enable = "neon")]
fn pairs(a: int16x8_t, b: int16x8_t) -> int32x4_t {
    vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b))
}
