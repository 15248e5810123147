//! AVX2 versions of the products in [`crate::quant::llama2c`], with the same bits: several rows at a time, each in its
//! own order.

use std::arch::x86_64::*;

use zerocopy::transmute;

use super::found;
use super::registers::load_half;
use crate::quant::llama2c::portable::{
    GroupProducts, Groups, Products, QuantisedRow, by_row, plain_products,
};

/// Number of weight rows that share a register, one per lane.
const ROWS: usize = 8;

/// Returns [`Products`], if this machine has the instructions.
#[expect(unsafe_code)]
pub(in crate::quant) fn products() -> Option<Products> {
    // SAFETY: `found` checks for the instructions.
    found().then_some(|weights, activations, out| unsafe { fill(weights, activations, out) })
}

/// Returns [`GroupProducts`], if this machine has the instructions.
#[expect(unsafe_code)]
pub(in crate::quant) fn group_products() -> Option<GroupProducts> {
    // SAFETY: `found` checks for the instructions.
    found().then_some(|weights, activations, out| unsafe { fill_groups(weights, activations, out) })
}

#[target_feature(enable = "avx2")]
fn fill(weights: &[u8], activations: &[&[f32]], out: &mut [f32]) {
    let (columns, tokens) = (activations[0].len(), activations.len());
    let eights = weights.chunks(4 * columns * ROWS).zip(out.chunks_mut(tokens * ROWS));
    for (rows, out) in eights {
        if out.len() < tokens * ROWS {
            return plain_products(rows, activations, out);
        }
        let (fours, rest) = activations.as_chunks::<4>();
        for (index, x) in fours.iter().enumerate() {
            scatter(sums(rows, *x), 4 * index, tokens, out);
        }
        for (index, &x) in rest.iter().enumerate() {
            scatter(sums(rows, [x]), 4 * fours.len() + index, tokens, out);
        }
    }
}

/// Writes lanes to the rows of their tokens. The first lane belongs to token `first`.
#[inline]
fn scatter<const N: usize>(sums: [[f32; ROWS]; N], first: usize, tokens: usize, out: &mut [f32]) {
    for (token, sums) in sums.iter().enumerate() {
        sums.iter().enumerate().for_each(|(row, sum)| out[row * tokens + first + token] = *sum);
    }
}

/// Computes the products of eight rows with `N` rows of activations, column by column.
#[inline]
#[target_feature(enable = "avx2")]
fn sums<const N: usize>(rows: &[u8], x: [&[f32]; N]) -> [[f32; ROWS]; N] {
    let width = rows.len() / ROWS;
    let rows: [&[u8]; ROWS] = std::array::from_fn(|row| &rows[row * width..][..width]);
    let (tiles, tails) = (rows.map(|row| row.as_chunks::<32>().0), rows.map(|row| row.as_chunks::<32>().1));
    let mut sums = [_mm256_setzero_ps(); N];
    let steps = x.map(|x| x.as_chunks::<ROWS>().0);
    for step in 0..width / 32 {
        let columns = transposed(std::array::from_fn(|row| transmute!(tiles[row][step])));
        for (sum, x) in sums.iter_mut().zip(&steps) {
            for (column, &x) in columns.iter().zip(&x[step]) {
                *sum = _mm256_add_ps(*sum, _mm256_mul_ps(*column, _mm256_set1_ps(x)));
            }
        }
    }
    let mut sums: [[f32; ROWS]; N] = sums.map(|sum| transmute!(sum));
    for (sums, x) in sums.iter_mut().zip(x) {
        for (sum, tail) in sums.iter_mut().zip(tails) {
            let rest = tail.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            *sum = rest.zip(&x[width / 32 * ROWS..]).fold(*sum, |sum, (w, x)| sum + w * x);
        }
    }
    sums
}

/// Transposes eight rows of eight values.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(rows: [__m256; 8]) -> [__m256; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    let [p, q, r, s] = pairs(a, b, c, d);
    let [t, u, v, w] = pairs(e, f, g, h);
    [
        _mm256_permute2f128_ps::<0x20>(p, t),
        _mm256_permute2f128_ps::<0x20>(q, u),
        _mm256_permute2f128_ps::<0x20>(r, v),
        _mm256_permute2f128_ps::<0x20>(s, w),
        _mm256_permute2f128_ps::<0x31>(p, t),
        _mm256_permute2f128_ps::<0x31>(q, u),
        _mm256_permute2f128_ps::<0x31>(r, v),
        _mm256_permute2f128_ps::<0x31>(s, w),
    ]
}

/// Transposes four rows of four values, separately in the lower and in the upper half.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(a: __m256, b: __m256, c: __m256, d: __m256) -> [__m256; 4] {
    let (low_ab, high_ab) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let (low_cd, high_cd) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    [
        _mm256_shuffle_ps::<0x44>(low_ab, low_cd),
        _mm256_shuffle_ps::<0xEE>(low_ab, low_cd),
        _mm256_shuffle_ps::<0x44>(high_ab, high_cd),
        _mm256_shuffle_ps::<0xEE>(high_ab, high_cd),
    ]
}

#[target_feature(enable = "avx2")]
fn fill_groups(weights: Groups, activations: &[QuantisedRow], out: &mut [f32]) {
    by_row(weights, activations, out, |w, x| dot(w, x));
}

/// Multiplies codes, 16 at a time, and adds them as integers, whose order does not matter.
#[inline]
#[target_feature(enable = "avx2")]
fn dot(weights: &[u8], x: &[i8]) -> i32 {
    let ((weights, weights_rest), (x, x_rest)) = (weights.as_chunks::<16>(), x.as_chunks::<16>());
    let mut sums = _mm256_setzero_si256();
    for (w, x) in weights.iter().zip(x) {
        let (w, x) = (_mm256_cvtepi8_epi16(load_half(w)), _mm256_cvtepi8_epi16(transmute!(*x)));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(w, x));
    }
    let sums: [i32; 8] = transmute!(sums);
    let rest = weights_rest.iter().zip(x_rest).map(|(&w, &x)| i32::from(w as i8) * i32::from(x));
    sums.into_iter().chain(rest).fold(0, i32::wrapping_add)
}
