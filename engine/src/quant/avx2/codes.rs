//! Codes and scales of blocks of 256, unpacked into registers.

use std::arch::x86_64::*;
use std::array::from_fn;

use zerocopy::transmute;

use super::registers::*;
use crate::quant::block::part;
use crate::quant::tq1_0;

/// Codes of 256 values, 32 in each register.
pub(in crate::quant) type Codes = [__m256i; 8];

/// Computes [`crate::quant::q2_k::two_bits`] with the same bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn two_bits(bytes: &[u8; 64]) -> Codes {
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

/// AVX2 version of [`crate::quant::q4_k::nibbles`], bit-identical to it.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn nibble_rows(bytes: &[u8; 128]) -> Codes {
    from_fn(|row| {
        let bytes = load(part(bytes, row / 2));
        let shifted = if row % 2 == 0 { bytes } else { _mm256_srli_epi16::<4>(bytes) };
        _mm256_and_si256(shifted, _mm256_set1_epi8(0x0F))
    })
}

/// Unpacks the codes of Q6_K, 0 to 63.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn six_bits(low: &[u8; 128], high: &[u8; 64]) -> Codes {
    let high = two_bits(high);
    from_fn(|row| {
        let low = load(part(low, row / 4 * 2 + row % 2));
        let low = if row % 4 < 2 { low } else { _mm256_srli_epi16::<4>(low) };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(0x0F));
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high[row]))
    })
}

/// Returns `VALUE` for each set bit. Bit r of byte c belongs to value 32r + c.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn high_bits<const VALUE: i8>(bits: &[u8; 32]) -> Codes {
    let bits = load(bits);
    from_fn(|row| {
        let bit = _mm256_set1_epi8((1u8 << row).cast_signed());
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
        _mm256_and_si256(set, _mm256_set1_epi8(VALUE))
    })
}

/// Computes [`crate::quant::q4_k::unpack`] with the same bits, for each 16 codes: scales and minima.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn scales_and_mins(bytes: &[u8; 12]) -> (__m128i, __m128i) {
    let [a, b, c]: [u32; 3] = {
        let words: [[u8; 4]; 3] = transmute!(*bytes);
        words.map(u32::from_le_bytes)
    };
    let upper = |word: u32| (word >> 2) & 0x3030_3030;
    let scales = join(a & 0x3F3F_3F3F, c & 0x0F0F_0F0F | upper(a));
    let mins = join(b & 0x3F3F_3F3F, (c >> 4) & 0x0F0F_0F0F | upper(b));
    (twice(scales), twice(mins))
}

/// Joins two words to one.
#[inline]
fn join(low: u32, high: u32) -> i64 {
    (u64::from(low) | u64::from(high) << 32).cast_signed()
}

/// Computes [`crate::quant::q4_k::twice`] with the same bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn twice(groups: i64) -> __m128i {
    let groups = _mm_cvtsi64_si128(groups);
    _mm_unpacklo_epi8(groups, groups)
}

/// Unpacks the 16 scales of Q3_K.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn q3_k_scales(bytes: &[u8; 12]) -> __m128i {
    let [a, b, c]: [u32; 3] = {
        let words: [[u8; 4]; 3] = transmute!(*bytes);
        words.map(u32::from_le_bytes)
    };
    let upper = |shift: u32| ((c >> shift) & 0x0303_0303) << 4;
    let low = join(a & 0x0F0F_0F0F | upper(0), b & 0x0F0F_0F0F | upper(2));
    let high = join((a >> 4) & 0x0F0F_0F0F | upper(4), (b >> 4) & 0x0F0F_0F0F | upper(6));
    _mm_sub_epi8(_mm_set_epi64x(high, low), _mm_set1_epi8(32))
}

/// Unpacks the scales of IQ4_XS, repeated for each 16 codes. The two upper bits of a scale are moved into place by
/// multiplying 16-bit numbers by powers of two.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn iq4_xs_scales(low: [u8; 4], high: u16) -> __m128i {
    let low = _mm_cvtsi32_si128(i32::from_le_bytes(low));
    let low = _mm_unpacklo_epi8(low, _mm_srli_epi16::<4>(low));
    let low = _mm_cvtepu8_epi16(_mm_and_si128(low, _mm_set1_epi8(0x0F)));
    let powers = _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1);
    let high = _mm_mullo_epi16(_mm_set1_epi16(high.cast_signed()), powers);
    let high = _mm_slli_epi16::<4>(_mm_srli_epi16::<14>(high));
    let scales = _mm_sub_epi16(_mm_or_si128(low, high), _mm_set1_epi16(32));
    let scales = _mm_packs_epi16(scales, scales);
    _mm_unpacklo_epi8(scales, scales)
}

/// Unpacks the codes of TQ1_0, 0 to 2. Each byte is multiplied by powers of 3; the digit is then 3 · byte / 256.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn tq1_0_codes(block: &tq1_0::BlockTq1_0) -> Codes {
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

/// Returns the digit of each byte, for even and odd bytes separately, since there is no multiplication of bytes.
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
