//! Two rows of weights with four of activations: what the dot products in [`super::signed`] give, with every block
//! read once.

use std::arch::x86_64::*;

use super::registers::*;
use super::signed::{iq4_nl_codes, q4_0_codes, q5_0_codes};
use crate::quant::stored::{Half, Stored, blocks};
use crate::quant::{iq4_nl, q4_0, q5_0, q8_0};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile(weights, activations, |block: &q4_0::Block| (block.scale, q4_0_codes(block)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_0(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile(weights, activations, |block: &q5_0::Block| (block.scale, q5_0_codes(block)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile(weights, activations, |block: &q8_0::Block| (block.scale, load_signed(&block.codes)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_nl_batch(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
    tile(weights, activations, |block: &iq4_nl::Block| (block.scale, iq4_nl_codes(block)))
}

/// Eight times [`crate::quant::signed::dot`]; `read` gives the scale and the codes of a block of weights.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<B: Stored>(
    weights: [&[u8]; 2],
    activations: [&[u8]; 4],
    read: impl Fn(&B) -> (Half, __m256i),
) -> [[f32; 4]; 2] {
    let mut lanes = [[_mm256_setzero_ps(); 4]; 2];
    let [w0, w1] = weights.map(blocks::<B>);
    let [a, b, c, d] = activations.map(blocks::<q8_0::Block>);
    for (((((w0, w1), a), b), c), d) in w0.iter().zip(w1).zip(a).zip(b).zip(c).zip(d) {
        let four = [a, b, c, d];
        let scales = widen_four(four.map(|block| block.scale));
        for (lanes, weights) in lanes.iter_mut().zip([w0, w1]) {
            let (scale, codes) = read(weights);
            *lanes = add(*lanes, _mm256_mul_ps(widen_to_all(scale), scales), codes, four);
        }
    }
    lanes.map(|lanes| lanes.map(|lanes| sum(lanes)))
}

/// A block of weights with four of activations; `scales` has the product of the scales with each of them, twice.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add(lanes: [__m256; 4], scales: __m256, codes: __m256i, activations: [&q8_0::Block; 4]) -> [__m256; 4] {
    let [a, b, c, d] = activations.map(|block| {
        let products = multiply_signed(codes, load_signed(&block.codes));
        _mm256_cvtepi32_ps(add_neighbours(products))
    });
    [
        _mm256_fmadd_ps(_mm256_shuffle_ps::<0b00_00_00_00>(scales, scales), a, lanes[0]),
        _mm256_fmadd_ps(_mm256_shuffle_ps::<0b01_01_01_01>(scales, scales), b, lanes[1]),
        _mm256_fmadd_ps(_mm256_shuffle_ps::<0b10_10_10_10>(scales, scales), c, lanes[2]),
        _mm256_fmadd_ps(_mm256_shuffle_ps::<0b11_11_11_11>(scales, scales), d, lanes[3]),
    ]
}
