//! Register operations that several kernels share.

use std::arch::x86_64::*;

use zerocopy::transmute;

use crate::quant::block::StoredF16;

/// Loads a register of 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn load(bytes: &[u8; 32]) -> __m256i {
    transmute!(*bytes)
}

/// Loads a register of 32 signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn load_signed(bytes: &[i8; 32]) -> __m256i {
    transmute!(*bytes)
}

/// Loads a register of 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn load_half(bytes: &[u8; 16]) -> __m128i {
    transmute!(*bytes)
}

/// Returns the lower 4 bits of 16 bytes, then the upper 4 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn nibbles(bytes: &[u8; 16]) -> __m256i {
    let low = load_half(bytes);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
    _mm256_and_si256(both, _mm256_set1_epi8(0x0F))
}

/// Looks up the values of 32 indices of 4 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn look_up(table: &[i8; 16], indices: __m256i) -> __m256i {
    let table: __m128i = transmute!(*table);
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices)
}

/// Expands 32 bits to bytes with all bits set or clear.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn spread_bits(bits: [u8; 4]) -> __m256i {
    const BYTE_OF: [i64; 4] = [0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303];
    let [a, b, c, d] = BYTE_OF;
    let bytes = _mm256_set1_epi32(i32::from_le_bytes(bits));
    let bytes = _mm256_shuffle_epi8(bytes, _mm256_setr_epi64x(a, b, c, d));
    let bit = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
}

/// Multiplies signed bytes by signed bytes, and adds neighbouring products in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn multiply_signed(weights: __m256i, activations: __m256i) -> __m256i {
    let sizes = _mm256_sign_epi8(weights, weights);
    _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(activations, weights))
}

/// Adds neighbouring 16-bit numbers to 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn add_neighbours(sums: __m256i) -> __m256i {
    _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
}

/// Returns `lanes + scale · sums`, with one rounding for each lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::quant) fn add_scaled(lanes: __m256, scale: f32, sums: __m256i) -> __m256 {
    _mm256_fmadd_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(sums), lanes)
}

/// Adds all lanes: the upper half to the lower half, twice, then the last two lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn sum(lanes: __m256) -> f32 {
    sum4(halves_added(lanes))
}

/// Adds the upper half of a register to its lower half.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn halves_added(lanes: __m256) -> __m128 {
    _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes))
}

/// Adds the last four lanes, as [`sum`] does.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn sum4(lanes: __m128) -> f32 {
    let pairs = _mm_add_ps(lanes, _mm_movehl_ps(lanes, lanes));
    _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
}

/// Adds all lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn sum_integers(lanes: __m256i) -> i32 {
    let half = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let pairs = _mm_add_epi32(half, _mm_unpackhi_epi64(half, half));
    _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<1>(pairs)))
}

/// Returns the exact product of two `f16`. Both are widened in one register: if they were widened one by one, the
/// second conversion would wait for the sums of the previous block.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::quant) fn product(a: StoredF16, b: StoredF16) -> f32 {
    product_of_bits(a.bits(), b.bits())
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn product_of_bits(a: u16, b: u16) -> f32 {
    let both = u32::from(a) | u32::from(b) << 16;
    let widened = _mm_cvtph_ps(_mm_cvtsi32_si128(both.cast_signed()));
    _mm_cvtss_f32(_mm_mul_ss(widened, _mm_movehdup_ps(widened)))
}

/// Returns the exact products of two pairs of `f16`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::quant) fn products(a: [StoredF16; 2], b: [StoredF16; 2]) -> (f32, f32) {
    let both = [a, b].map(|[low, high]| u32::from(low.bits()) | u32::from(high.bits()) << 16);
    let both = u64::from(both[0]) | u64::from(both[1]) << 32;
    let widened = _mm_cvtph_ps(_mm_cvtsi64_si128(both.cast_signed()));
    let products = _mm_mul_ps(widened, _mm_movehl_ps(widened, widened));
    (_mm_cvtss_f32(products), _mm_cvtss_f32(_mm_movehdup_ps(products)))
}

/// Widens four `f16`, and repeats them in each half of the register.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::quant) fn widen_four(four: [StoredF16; 4]) -> __m256 {
    let [a, b, c, d] = four.map(|half| half.bits().cast_signed());
    let widened = _mm_cvtph_ps(_mm_setr_epi16(a, b, c, d, 0, 0, 0, 0));
    _mm256_set_m128(widened, widened)
}

/// Widens an `f16` to every lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::quant) fn widen_to_all(half: StoredF16) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(half.bits().cast_signed()))
}

/// Widens an `f16`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::quant) fn widen(half: StoredF16) -> f32 {
    const ONE: u16 = 0x3C00;
    product_of_bits(half.bits(), ONE)
}

/// Loads the sums of each 16 activations.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn load_sums(sums: &[[u8; 2]; 16]) -> __m256i {
    transmute!(*sums)
}

/// Returns the four lanes as an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn as_array(lanes: __m128) -> [f32; 4] {
    transmute!(lanes)
}

/// Copies 16-bit elements `2 · pair` and `2 · pair + 1`, each into one half of a register.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::quant) fn neighbours(pair: usize) -> __m256i {
    let element = |index: usize| _mm_set1_epi16(i16::from_le_bytes([2 * index as u8, 2 * index as u8 + 1]));
    _mm256_set_m128i(element(2 * pair + 1), element(2 * pair))
}
