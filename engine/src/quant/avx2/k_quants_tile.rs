//! Tiles of two rows of 256-value blocks with four rows of activations. The bits equal those of the dot products
//! for several tokens in [`super::k_quants`], but every block is unpacked only once.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::codes::*;
use super::registers::*;
use crate::quant::block::{QuantBlock, StoredF16, blocks, part};
use crate::quant::{q2_k, q4_k, q5_k, q6_k, q8_k};

/// An unpacked block of weights.
pub(in crate::quant) struct UnpackedBlock {
    /// Factor of the integer sums of the block.
    pub(in crate::quant) scale: StoredF16,
    /// Codes, all non-negative.
    pub(in crate::quant) codes: Codes,
    /// Scale of each 16 codes.
    pub(in crate::quant) scales: __m128i,
    /// Factor of the sums of minima.
    pub(in crate::quant) min_scale: StoredF16,
    /// Minimum of each 16 codes. For types without minima: the factor of the codes' offset.
    pub(in crate::quant) mins: __m128i,
}

/// For types without minima, the codes' offset as a power of two: Q6_K's offset is 32.
pub(in crate::quant) const OFFSET: u32 = 5;

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn unpack_q2_k(w: &q2_k::BlockQ2K) -> UnpackedBlock {
    let (groups, nibble) = (load_half(&w.groups), _mm_set1_epi8(0x0F));
    let scales = _mm_and_si128(groups, nibble);
    let mins = _mm_and_si128(_mm_srli_epi16::<4>(groups), nibble);
    UnpackedBlock { scale: w.scale, codes: two_bits(&w.codes), scales, min_scale: w.min_scale, mins }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn unpack_q4_k(w: &q4_k::BlockQ4K) -> UnpackedBlock {
    let (scales, mins) = scales_and_mins(&w.groups);
    UnpackedBlock { scale: w.scale, codes: nibble_rows(&w.nibbles), scales, min_scale: w.min_scale, mins }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn unpack_q5_k(w: &q5_k::BlockQ5K) -> UnpackedBlock {
    let (scales, mins) = scales_and_mins(&w.groups);
    let (low, high) = (nibble_rows(&w.nibbles), high_bits::<16>(&w.high));
    let codes = from_fn(|row| _mm256_or_si256(low[row], high[row]));
    UnpackedBlock { scale: w.scale, codes, scales, min_scale: w.min_scale, mins }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn unpack_q6_k(w: &q6_k::BlockQ6K) -> UnpackedBlock {
    let scales = load_half(&w.scales.map(i8::cast_unsigned));
    UnpackedBlock {
        scale: w.scale,
        codes: six_bits(&w.low, &w.high),
        scales,
        min_scale: w.scale,
        mins: scales,
    }
}

/// Defines the tiles of a type, given whether it has minima and how it is unpacked.
macro_rules! tiles {
    ($($tile:ident: $block:ty, $has_mins:literal, $unpack:ident;)*) => {
        $(
            #[target_feature(enable = "avx2,fma,f16c")]
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

/// Computes eight dot products with the bits of [`crate::quant::k_quants::batch_dot`], or of its variant with minima.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<B: QuantBlock, const HAS_MINS: bool>(
    weights: [&[u8]; 2],
    activations: [&[u8]; 4],
    unpack: impl Fn(&B) -> UnpackedBlock,
) -> [[f32; 4]; 2] {
    let rows = weights.map(blocks::<B>);
    let tokens = activations.map(blocks::<q8_k::BlockQ8K>);
    let mut lanes = [_mm_setzero_ps(); 2];
    for block in 0..rows[0].len().min(rows[1].len()) {
        let a = tokens.map(|token| &token[block]);
        let a_scales = _mm_setr_ps(a[0].scale(), a[1].scale(), a[2].scale(), a[3].scale());
        for row in 0..2 {
            lanes[row] = add_block::<B, HAS_MINS>(lanes[row], &rows[row][block], a, a_scales, &unpack);
        }
    }
    [as_array(lanes[0]), as_array(lanes[1])]
}

/// Adds one block to the sums. The block is unpacked inside this function, so that it need not be written to
/// memory.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_block<B, const HAS_MINS: bool>(
    lanes: __m128,
    w: &B,
    a: [&q8_k::BlockQ8K; 4],
    a_scales: __m128,
    unpack: impl Fn(&B) -> UnpackedBlock,
) -> __m128 {
    let w = unpack(w);
    let (scales, minima) = (scales_of_rows(w.scales), _mm256_cvtepi8_epi16(w.mins));
    let [p, q, r, s] = a.map(|a| &a.codes);
    let codes = in_tokens(
        products(&w.codes, &scales, p),
        products(&w.codes, &scales, q),
        products(&w.codes, &scales, r),
        products(&w.codes, &scales, s),
    );
    let [p, q, r, s] = a.map(|a| &a.sums);
    let mins = in_tokens(
        _mm256_madd_epi16(minima, load_sums(p)),
        _mm256_madd_epi16(minima, load_sums(q)),
        _mm256_madd_epi16(minima, load_sums(r)),
        _mm256_madd_epi16(minima, load_sums(s)),
    );
    let scale = _mm_set1_ps(widen(w.scale));
    let of_block = if HAS_MINS {
        let codes = _mm_mul_ps(scale, _mm_cvtepi32_ps(codes));
        _mm_fmadd_ps(_mm_set1_ps(-widen(w.min_scale)), _mm_cvtepi32_ps(mins), codes)
    } else {
        let codes = _mm_sub_epi32(codes, _mm_slli_epi32::<{ OFFSET as i32 }>(mins));
        _mm_mul_ps(scale, _mm_cvtepi32_ps(codes))
    };
    _mm_fmadd_ps(of_block, a_scales, lanes)
}

/// Returns the scale of each 32 codes, for each sum of two products.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn scales_of_rows(scales: __m128i) -> Codes {
    let wide = _mm256_cvtepi8_epi16(scales);
    let (low, high) =
        (_mm256_permute2x128_si256::<0x00>(wide, wide), _mm256_permute2x128_si256::<0x11>(wide, wide));
    from_fn(|row| _mm256_shuffle_epi8(if row < 4 { low } else { high }, neighbours(row % 4)))
}

/// Multiplies codes, scales and activations, and adds all rows.
#[inline]
#[target_feature(enable = "avx2")]
fn products(codes: &Codes, scales: &Codes, activations: &[i8; 256]) -> __m256i {
    let mut sums = _mm256_setzero_si256();
    for row in 0..8 {
        let products = _mm256_maddubs_epi16(codes[row], load_signed(part(activations, row)));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(products, scales[row]));
    }
    sums
}

/// Sums the lanes of each of four registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_tokens(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m128i {
    let four = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four))
}
