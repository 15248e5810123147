//! AVX-512 tiles of 256-value blocks: eight dot products with the bits of [`crate::quant::k_quants::batch_dot`], or of
//! its variant with minima.

use std::arch::x86_64::*;
use std::array::from_fn;

use zerocopy::transmute;

use crate::quant::avx2::codes::Codes;
use crate::quant::avx2::k_quants_tile::*;
use crate::quant::avx2::registers::*;
use crate::quant::block::{QuantBlock, blocks, part};
use crate::quant::{q2_k, q4_k, q5_k, q6_k, q8_k};

/// Defines a tile function for each block type, from a flag for minima and the function that unpacks a block.
macro_rules! tiles {
    ($($tile:ident: $block:ty, $has_mins:literal, $unpack:ident;)*) => {
        $(
            #[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
            pub(super) fn $tile(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
                tile::<$block, $has_mins>(weights, activations, |w| $unpack(w))
            }
        )*
    };
}

tiles! {
    q2_k: q2_k::BlockQ2K, true, unpack_q2_k;
    q4_k: q4_k::BlockQ4K, true, unpack_q4_k;
    q5_k: q5_k::BlockQ5K, true, unpack_q5_k;
    q6_k: q6_k::BlockQ6K, false, unpack_q6_k;
}

/// Two blocks in rows of 32 values. Each register has a row of the first block in its lower half, and of the second
/// block in its upper half.
type BlockPair = [__m512i; 8];

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
fn tile<B: QuantBlock, const HAS_MINS: bool>(
    weights: [&[u8]; 2],
    activations: [&[u8]; 4],
    unpack: impl Fn(&B) -> UnpackedBlock,
) -> [[f32; 4]; 2] {
    let [first, second] = weights.map(blocks::<B>);
    let tokens = activations.map(blocks::<q8_k::BlockQ8K>);
    let mut lanes = _mm256_setzero_ps();
    for block in 0..first.len().min(second.len()) {
        let a = tokens.map(|token| &token[block]);
        lanes = add_block::<B, HAS_MINS>(lanes, [&first[block], &second[block]], a, &unpack);
    }
    transmute!(lanes)
}

/// Adds the products of one block of two rows with four tokens. The lanes hold four tokens for the first row, then four
/// tokens for the second row. The block is unpacked inside this function, so that its values stay in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
fn add_block<B, const HAS_MINS: bool>(
    lanes: __m256,
    [first, second]: [&B; 2],
    a: [&q8_k::BlockQ8K; 4],
    unpack: impl Fn(&B) -> UnpackedBlock,
) -> __m256 {
    let (first, second) = (unpack(first), unpack(second));
    let codes = side_by_side(&first.codes, &second.codes);
    let scales = side_by_side(&scales_of_rows(first.scales), &scales_of_rows(second.scales));
    let minima: __m512i = transmute!([_mm256_cvtepi8_epi16(first.mins), _mm256_cvtepi8_epi16(second.mins)]);
    let sums = in_tokens(
        products(&codes, &scales, a[0]),
        products(&codes, &scales, a[1]),
        products(&codes, &scales, a[2]),
        products(&codes, &scales, a[3]),
    );
    let mins =
        in_tokens(of_sums(minima, a[0]), of_sums(minima, a[1]), of_sums(minima, a[2]), of_sums(minima, a[3]));
    let scale = in_both(widen(first.scale), widen(second.scale));
    let of_block = if HAS_MINS {
        let codes = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sums));
        let min_scale = in_both(-widen(first.min_scale), -widen(second.min_scale));
        _mm256_fmadd_ps(min_scale, _mm256_cvtepi32_ps(mins), codes)
    } else {
        let sums = _mm256_sub_epi32(sums, _mm256_slli_epi32::<{ OFFSET as i32 }>(mins));
        _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sums))
    };
    let a_scales = _mm_setr_ps(a[0].scale(), a[1].scale(), a[2].scale(), a[3].scale());
    _mm256_fmadd_ps(of_block, _mm256_set_m128(a_scales, a_scales), lanes)
}

#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn side_by_side(first: &Codes, second: &Codes) -> BlockPair {
    from_fn(|row| transmute!([first[row], second[row]]))
}

#[inline]
#[target_feature(enable = "avx2")]
fn in_both(first: f32, second: f32) -> __m256 {
    _mm256_set_m128(_mm_set1_ps(second), _mm_set1_ps(first))
}

/// Multiplies codes, scales and activations, and adds all rows of 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn products(codes: &BlockPair, scales: &BlockPair, a: &q8_k::BlockQ8K) -> __m512i {
    let mut sums = _mm512_setzero_si512();
    for row in 0..8 {
        let a = _mm512_broadcast_i64x4(load_signed(part(&a.codes, row)));
        let products = _mm512_maddubs_epi16(codes[row], a);
        sums = _mm512_add_epi32(sums, _mm512_madd_epi16(products, scales[row]));
    }
    sums
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn of_sums(minima: __m512i, a: &q8_k::BlockQ8K) -> __m512i {
    _mm512_madd_epi16(minima, _mm512_broadcast_i64x4(load_sums(&a.sums)))
}

/// Sums the lanes of each 256-bit half of four registers. Returns the four sums of the lower halves, then the four
/// sums of the upper halves.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn in_tokens(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> __m256i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    let four = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let [first, second, third, fourth]: [__m128i; 4] = transmute!(four);
    _mm256_set_m128i(_mm_add_epi32(third, fourth), _mm_add_epi32(first, second))
}
