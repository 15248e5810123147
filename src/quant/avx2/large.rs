//! Blocks of 256 codes in groups of 16: twins of [`crate::quant::large`].

use std::arch::x86_64::*;
use std::array::from_fn;

use zerocopy::transmute;

use super::registers::*;
use crate::quant::stored::{Half, Stored, blocks};
use crate::quant::{iq4_nl, iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k, q8_k, tq1_0, tq2_0};

/// Codes of 256 values, 32 to a register.
type Codes = [__m256i; 8];

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q2_k(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = _mm256_setzero_ps();
    for (w, a) in blocks::<q2_k::Block>(weights).iter().zip(blocks::<q8_k::Block>(activations)) {
        let (groups, nibble) = (load_half(&w.groups), _mm_set1_epi8(0x0F));
        let mins = _mm_and_si128(_mm_srli_epi16::<4>(groups), nibble);
        lanes = add_scaled(lanes, -a.scale() * widen(w.min_scale), pair_sums(mins, a));
        let sums = weighted(unsigned(two_bits(&w.codes), a), _mm_and_si128(groups, nibble));
        lanes = add_scaled(lanes, widen(w.scale) * a.scale(), sums);
    }
    sum(lanes)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q3_k(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &q3_k::Block, a| {
        let (low, high) = (two_bits(&w.codes), high_bits::<4>(&w.high));
        let codes = from_fn(|row| {
            let code = _mm256_or_si256(low[row], high[row]);
            _mm256_sub_epi8(code, _mm256_set1_epi8(4))
        });
        (w.scale, weighted(signed(codes, a), q3_k_scales(&w.scales)))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_k(weights: &[u8], activations: &[u8]) -> f32 {
    let (mut lanes, mut min_lanes) = (_mm256_setzero_ps(), _mm_setzero_ps());
    for (w, a) in blocks::<q4_k::Block>(weights).iter().zip(blocks::<q8_k::Block>(activations)) {
        let (scales, mins) = scales_and_mins(&w.groups);
        let sums = pair_sums(mins, a);
        let sums = _mm_hadd_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        let min_scale = _mm_set1_ps(-a.scale() * widen(w.min_scale));
        min_lanes = _mm_fmadd_ps(min_scale, _mm_cvtepi32_ps(sums), min_lanes);
        let sums = weighted(unsigned(nibble_rows(&w.nibbles), a), scales);
        lanes = add_scaled(lanes, widen(w.scale) * a.scale(), sums);
    }
    sum(lanes) + sum4(min_lanes)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_k(weights: &[u8], activations: &[u8]) -> f32 {
    let (mut lanes, mut min_sum) = (_mm256_setzero_ps(), 0.0f32);
    for (w, a) in blocks::<q5_k::Block>(weights).iter().zip(blocks::<q8_k::Block>(activations)) {
        let (scales, mins) = scales_and_mins(&w.groups);
        let sum = sum_integers(pair_sums(mins, a));
        min_sum = (-a.scale() * widen(w.min_scale)).mul_add(sum as f32, min_sum);
        let (low, high) = (nibble_rows(&w.nibbles), high_bits::<16>(&w.high));
        let codes = from_fn(|row| _mm256_or_si256(low[row], high[row]));
        lanes = add_scaled(lanes, widen(w.scale) * a.scale(), weighted(unsigned(codes, a), scales));
    }
    sum(lanes) + min_sum
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &q6_k::Block, a| {
        let high = two_bits(&w.high);
        let codes = from_fn(|row| {
            let low = load(part(&w.low, row / 4 * 2 + row % 2));
            let low = if row % 4 < 2 { low } else { _mm256_srli_epi16::<4>(low) };
            let low = _mm256_and_si256(low, _mm256_set1_epi8(0x0F));
            _mm256_or_si256(low, _mm256_slli_epi16::<4>(high[row]))
        });
        let scales: __m128i = transmute!(w.scales);
        let offset = _mm256_slli_epi32::<5>(pair_sums(scales, a));
        (w.scale, _mm256_sub_epi32(weighted(unsigned(codes, a), scales), offset))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_xs(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &iq4_xs::Block, a| {
        let codes = from_fn(|row| look_up(&iq4_nl::VALUES, nibbles(&w.nibbles[row])));
        let scales: [i8; 8] = w.group_scales();
        (w.scale, weighted(signed(codes, a), twice(i64::from_le_bytes(transmute!(scales)))))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tq1_0(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &tq1_0::Block, a| (w.scale, ternary(tq1_0_codes(w), a)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tq2_0(weights: &[u8], activations: &[u8]) -> f32 {
    dot(weights, activations, |w: &tq2_0::Block, a| (w.scale, ternary(two_bits(&w.codes), a)))
}

/// Twin of [`crate::quant::large::dot`]; `sums` gives a block's scale and its integer sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<B: Stored>(
    weights: &[u8],
    activations: &[u8],
    sums: impl Fn(&B, &q8_k::Block) -> (Half, __m256i),
) -> f32 {
    let mut lanes = _mm256_setzero_ps();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::Block>(activations)) {
        let (scale, sums) = sums(w, a);
        lanes = add_scaled(lanes, widen(scale) * a.scale(), sums);
    }
    sum(lanes)
}

/// Products of unsigned codes, neighbours added to 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn unsigned(codes: Codes, activations: &q8_k::Block) -> Codes {
    from_fn(|row| _mm256_maddubs_epi16(codes[row], load_signed(part(&activations.codes, row))))
}

/// Products of signed codes, neighbours added to 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn signed(codes: Codes, activations: &q8_k::Block) -> Codes {
    from_fn(|row| multiply_signed(codes[row], load_signed(part(&activations.codes, row))))
}

/// Products times the scale of each 16 codes, and all rows added.
#[inline]
#[target_feature(enable = "avx2")]
fn weighted(products: Codes, scales: __m128i) -> __m256i {
    let mut sums = _mm256_setzero_si256();
    for (row, &products) in products.iter().enumerate() {
        let first = 0x0101_0101_0101_0101 * (2 * row as i64);
        let two = _mm_shuffle_epi8(scales, _mm_set_epi64x(first + 0x0101_0101_0101_0101, first));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(products, _mm256_cvtepi8_epi16(two)));
    }
    sums
}

/// Codes of 0 to 2 with 1 subtracted, and no scales.
#[inline]
#[target_feature(enable = "avx2")]
fn ternary(codes: Codes, activations: &q8_k::Block) -> __m256i {
    let [a, b, c, d, e, f, g, h] = unsigned(codes, activations);
    let (low, high) = (_mm256_add_epi16(a, b), _mm256_add_epi16(c, d));
    let (low, high) =
        (_mm256_add_epi16(low, _mm256_add_epi16(e, f)), _mm256_add_epi16(high, _mm256_add_epi16(g, h)));
    add_neighbours(_mm256_sub_epi16(_mm256_add_epi16(low, high), sums_of_16(activations)))
}

/// Per-group factors times the sums of the activations, two groups to a lane.
#[inline]
#[target_feature(enable = "avx2")]
fn pair_sums(factors: __m128i, activations: &q8_k::Block) -> __m256i {
    _mm256_madd_epi16(_mm256_cvtepi8_epi16(factors), sums_of_16(activations))
}

#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_16(activations: &q8_k::Block) -> __m256i {
    transmute!(activations.sums)
}

/// Twin of [`q2_k::two_bits`].
#[inline]
#[target_feature(enable = "avx2")]
fn two_bits(bytes: &[u8; 64]) -> Codes {
    from_fn(|row| {
        let bytes = load(part(bytes, row / 4));
        let shifted = match row % 4 {
            0 => bytes,
            1 => _mm256_srli_epi16::<2>(bytes),
            2 => _mm256_srli_epi16::<4>(bytes),
            _ => _mm256_srli_epi16::<6>(bytes),
        };
        _mm256_and_si256(shifted, _mm256_set1_epi8(3))
    })
}

/// Twin of [`q4_k::nibbles`].
#[inline]
#[target_feature(enable = "avx2")]
fn nibble_rows(bytes: &[u8; 128]) -> Codes {
    from_fn(|row| {
        let bytes = load(part(bytes, row / 2));
        let shifted = if row % 2 == 0 { bytes } else { _mm256_srli_epi16::<4>(bytes) };
        _mm256_and_si256(shifted, _mm256_set1_epi8(0x0F))
    })
}

/// `VALUE` where bit r of byte c is set, for value 32r + c.
#[inline]
#[target_feature(enable = "avx2")]
fn high_bits<const VALUE: i8>(bits: &[u8; 32]) -> Codes {
    let bits = load(bits);
    from_fn(|row| {
        let bit = _mm256_set1_epi8((1u8 << row).cast_signed());
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
        _mm256_and_si256(set, _mm256_set1_epi8(VALUE))
    })
}

/// Twin of [`q4_k::unpack`], for each 16 codes: scales and minima.
#[inline]
#[target_feature(enable = "avx2")]
fn scales_and_mins(bytes: &[u8; 12]) -> (__m128i, __m128i) {
    let [a, b, c]: [u32; 3] = {
        let words: [[u8; 4]; 3] = transmute!(*bytes);
        words.map(u32::from_le_bytes)
    };
    let upper = |word: u32| (word >> 2) & 0x3030_3030;
    let scales = join(a & 0x3F3F_3F3F, c & 0x0F0F_0F0F | upper(a));
    let mins = join(b & 0x3F3F_3F3F, (c >> 4) & 0x0F0F_0F0F | upper(b));
    (twice(scales), twice(mins))
}

/// Two words as one.
#[inline]
fn join(low: u32, high: u32) -> i64 {
    (u64::from(low) | u64::from(high) << 32).cast_signed()
}

/// Twin of [`q4_k::twice`].
#[inline]
#[target_feature(enable = "avx2")]
fn twice(groups: i64) -> __m128i {
    let groups = _mm_cvtsi64_si128(groups);
    _mm_unpacklo_epi8(groups, groups)
}

/// The 16 scales of Q3_K.
#[inline]
#[target_feature(enable = "avx2")]
fn q3_k_scales(bytes: &[u8; 12]) -> __m128i {
    let [a, b, c]: [u32; 3] = {
        let words: [[u8; 4]; 3] = transmute!(*bytes);
        words.map(u32::from_le_bytes)
    };
    let upper = |shift: u32| ((c >> shift) & 0x0303_0303) << 4;
    let low = join(a & 0x0F0F_0F0F | upper(0), b & 0x0F0F_0F0F | upper(2));
    let high = join((a >> 4) & 0x0F0F_0F0F | upper(4), (b >> 4) & 0x0F0F_0F0F | upper(6));
    _mm_sub_epi8(_mm_set_epi64x(high, low), _mm_set1_epi8(32))
}

/// The codes of TQ1_0, 0 to 2: bytes are multiplied with powers of 3, and 3 · byte / 256 is the digit.
#[inline]
#[target_feature(enable = "avx2")]
fn tq1_0_codes(block: &tq1_0::Block) -> Codes {
    let (first, rest) = (load(part(&block.fives, 0)), load_half(part(&block.fives, 2)));
    let fours = _mm_set1_epi32(i32::from_le_bytes(block.fours));
    let powers =
        |low: i32, high: i32| _mm256_set_m128i(_mm_set1_epi16(high as i16), _mm_set1_epi16(low as i16));
    let both = _mm256_set_m128i(rest, rest);
    let last = _mm256_set_m128i(fours, rest);
    let by_fours = _mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27);
    let power = |power: i16| _mm256_set1_epi16(power);
    [
        digits(first, power(1)),
        digits(first, power(3)),
        digits(first, power(9)),
        digits(first, power(27)),
        digits(first, power(81)),
        digits(both, powers(1, 3)),
        digits(both, powers(9, 27)),
        digits(last, _mm256_set_m128i(by_fours, _mm_set1_epi16(81))),
    ]
}

/// The digit of each byte: even bytes and odd ones apart, since there is no product of bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn digits(bytes: __m256i, powers: __m256i) -> __m256i {
    let low = _mm256_set1_epi16(0x00FF);
    let digit = |bytes: __m256i| {
        let rest = _mm256_and_si256(_mm256_mullo_epi16(bytes, powers), low);
        _mm256_srli_epi16::<8>(_mm256_mullo_epi16(rest, _mm256_set1_epi16(3)))
    };
    let (even, odd) = (digit(_mm256_and_si256(bytes, low)), digit(_mm256_srli_epi16::<8>(bytes)));
    _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd))
}
