//! Dot products with AVX-512, and with AVX2 and FMA, with the same bits as [`super::portable`].
//!
//! Registers are loaded from arrays of their size, so only the selection of the functions is unsafe.

use std::arch::x86_64::*;
use std::array::from_fn;

use zerocopy::transmute;

use super::{Kernel, LANES, LaneColumns, PanelSums, SIDE, filled_up};

/// Half a register of AVX-512.
const HALF: usize = LANES / 2;

/// Returns the kernels of this machine, the fastest first.
#[expect(unsafe_code)]
pub(super) fn kernels() -> impl Iterator<Item = Kernel> {
    // SAFETY: the kernel is returned only on machines with its instructions.
    let wide = Kernel {
        name: "avx512",
        block: |a, b| unsafe { block_in_512(a, b) },
        tiles: |weights, len, activations, sums| unsafe { tiles_in_512(weights, len, activations, sums) },
    };
    // SAFETY: as above.
    let narrow = Kernel {
        name: "avx2",
        block: |a, b| unsafe { block_in_256(a, b) },
        tiles: |weights, len, activations, sums| unsafe { tiles_in_256(weights, len, activations, sums) },
    };
    let has_wide = is_x86_feature_detected!("avx512f");
    let has_narrow = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    [(has_wide && has_narrow, wide), (has_narrow, narrow)]
        .into_iter()
        .filter_map(|(has, kernel)| has.then_some(kernel))
}

#[target_feature(enable = "avx512f,avx2,fma")]
fn block_in_512(a: &[f32], b: &[f32]) -> f32 {
    let (a_steps, a_rest) = a.as_chunks::<LANES>();
    let (b_steps, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = _mm512_setzero_ps();
    for (a, b) in a_steps.iter().zip(b_steps) {
        lanes = _mm512_fmadd_ps(transmute!(*a), transmute!(*b), lanes);
    }
    if !a_rest.is_empty() {
        lanes = _mm512_fmadd_ps(transmute!(filled_up(a_rest)), transmute!(filled_up(b_rest)), lanes);
    }
    let [low, high]: [__m256; 2] = transmute!(lanes);
    sum(low, high)
}

#[target_feature(enable = "avx2,fma")]
fn block_in_256(a: &[f32], b: &[f32]) -> f32 {
    let (a_steps, a_rest) = a.as_chunks::<LANES>();
    let (b_steps, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [_mm256_setzero_ps(); 2];
    for (a, b) in a_steps.iter().zip(b_steps) {
        lanes = added(lanes, a, b);
    }
    if !a_rest.is_empty() {
        lanes = added(lanes, &filled_up(a_rest), &filled_up(b_rest));
    }
    sum(lanes[0], lanes[1])
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn added(lanes: [__m256; 2], a: &[f32; LANES], b: &[f32; LANES]) -> [__m256; 2] {
    let (a, b): ([__m256; 2], [__m256; 2]) = (transmute!(*a), transmute!(*b));
    from_fn(|half| _mm256_fmadd_ps(a[half], b[half], lanes[half]))
}

/// Adds the lanes by halves.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(low: __m256, high: __m256) -> f32 {
    let four = four(low, high);
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[target_feature(enable = "avx512f,avx2,fma")]
fn tiles_in_512(weights: &[LaneColumns], len: usize, activations: &[LaneColumns], sums: &mut PanelSums) {
    for (group, weights) in weights.chunks(len).enumerate() {
        let tile = tile_in_512(weights, activations);
        (0..SIDE).for_each(|token| sums[token][group] = tile[token]);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
fn tile_in_512(weights: &[LaneColumns], activations: &[LaneColumns]) -> [[f32; SIDE]; SIDE] {
    let mut sums = [[_mm512_setzero_ps(); SIDE]; SIDE];
    for (LaneColumns(w), LaneColumns(x)) in weights.iter().zip(activations) {
        for token in 0..SIDE {
            let x = transmute!(x[token]);
            for row in 0..SIDE {
                sums[row][token] = _mm512_fmadd_ps(transmute!(w[row]), x, sums[row][token]);
            }
        }
    }
    let [a, b, c, d] = sums;
    let (a, b, c, d) = (quarters(a), quarters(b), quarters(c), quarters(d));
    // Each quarter of a register has four lanes of one token: added by halves, one sum for each row.
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
    transmute!(_mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd)))
}

/// Adds the lanes of four registers until each fills a quarter of one register.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters([a, b, c, d]: [__m512; 4]) -> __m512 {
    let (ab, cd) = (halves(a, b), halves(c, d));
    let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
    _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd))
}

/// Adds the halves of each of two registers, and returns both results in one register.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(a: __m512, b: __m512) -> __m512 {
    let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
    _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
}

#[target_feature(enable = "avx2,fma")]
fn tiles_in_256(weights: &[LaneColumns], len: usize, activations: &[LaneColumns], sums: &mut PanelSums) {
    for (group, weights) in weights.chunks(len).enumerate() {
        let tile = tile_in_256(weights, activations);
        (0..SIDE).for_each(|token| sums[token][group] = tile[token]);
    }
}

/// Multiplies two tokens at a time, and half of their lanes at a time, since the registers cannot hold more sums.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tile_in_256(weights: &[LaneColumns], activations: &[LaneColumns]) -> [[f32; SIDE]; SIDE] {
    let ([a, b], [c, d]) = (two::<0>(weights, activations), two::<2>(weights, activations));
    [a, b, c, d]
}

/// Returns the sums of four rows with two tokens.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn two<const FIRST: usize>(weights: &[LaneColumns], activations: &[LaneColumns]) -> [[f32; SIDE]; 2] {
    let [a, b] = half_a_tile::<0, FIRST>(weights, activations);
    let [c, d] = half_a_tile::<1, FIRST>(weights, activations);
    [in_rows(a, c), in_rows(b, d)]
}

/// Loads the values into the lower or the upper half of the lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn half_a_tile<const UPPER: usize, const FIRST: usize>(
    weights: &[LaneColumns],
    activations: &[LaneColumns],
) -> [[__m256; SIDE]; 2] {
    let mut sums = [[_mm256_setzero_ps(); SIDE]; 2];
    for (LaneColumns(w), LaneColumns(x)) in weights.iter().zip(activations) {
        for token in 0..2 {
            let x = half::<UPPER>(&x[FIRST + token]);
            for row in 0..SIDE {
                sums[token][row] = _mm256_fmadd_ps(half::<UPPER>(&w[row]), x, sums[token][row]);
            }
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx2")]
fn half<const UPPER: usize>(lanes: &[f32; LANES]) -> __m256 {
    transmute!(lanes.as_chunks::<HALF>().0[UPPER])
}

/// Returns the sum of the lanes of each of four rows; `low` and `high` are the halves of the lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn in_rows(low: [__m256; SIDE], high: [__m256; SIDE]) -> [f32; SIDE] {
    let (a, b) = (four(low[0], high[0]), four(low[1], high[1]));
    let (c, d) = (four(low[2], high[2]), four(low[3], high[3]));
    let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    transmute!(_mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)))
}

/// Adds sixteen lanes by halves until four are left.
#[inline]
#[target_feature(enable = "avx2")]
fn four(low: __m256, high: __m256) -> __m128 {
    let eight = _mm256_add_ps(low, high);
    _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
}
