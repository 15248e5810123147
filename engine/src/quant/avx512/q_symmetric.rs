//! AVX-512 tiles of blocks of 32 signed codes with one scale: eight dot products with the bits of
//! [`crate::quant::q_symmetric_dot::dot`].

use std::arch::x86_64::*;

use zerocopy::transmute;

use crate::quant::avx2::q_symmetric::{iq4_nl_codes, q4_0_codes, q5_0_codes};
use crate::quant::avx2::registers::*;
use crate::quant::block::{QuantBlock, StoredF16, blocks};
use crate::quant::{iq4_nl, q4_0, q5_0, q8_0};

/// Defines the tiles of a type, from a function that reads a block's scale and codes.
macro_rules! tiles {
    ($($tile:ident: $block:ty, $codes:expr;)*) => {
        $(
            #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
            pub(super) fn $tile(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2] {
                tile(weights, activations, |block: &$block| (block.scale, $codes(block)))
            }
        )*
    };
}

tiles! {
    q4_0: q4_0::BlockQ4_0, |block| q4_0_codes(block);
    q5_0: q5_0::BlockQ5_0, |block| q5_0_codes(block);
    q8_0: q8_0::BlockQ8_0, |block: &q8_0::BlockQ8_0| load_signed(&block.codes);
    iq4_nl_batch: iq4_nl::BlockIq4Nl, |block| iq4_nl_codes(block);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn tile<B: QuantBlock>(
    weights: [&[u8]; 2],
    activations: [&[u8]; 4],
    read: impl Fn(&B) -> (StoredF16, __m256i),
) -> [[f32; 4]; 2] {
    let mut lanes = [_mm512_setzero_ps(); 4];
    let [first, second] = weights.map(blocks::<B>);
    let [a, b, c, d] = activations.map(blocks::<q8_0::BlockQ8_0>);
    for (((((first, second), a), b), c), d) in first.iter().zip(second).zip(a).zip(b).zip(c).zip(d) {
        let four = widen_four([a.scale, b.scale, c.scale, d.scale]);
        let ((first, low), (second, high)) = (read(first), read(second));
        let scales = [_mm256_mul_ps(widen_to_all(first), four), _mm256_mul_ps(widen_to_all(second), four)];
        let (scales, codes): (__m512, __m512i) = (transmute!(scales), transmute!([low, high]));
        lanes[0] = add::<0b00_00_00_00>(lanes[0], scales, codes, a);
        lanes[1] = add::<0b01_01_01_01>(lanes[1], scales, codes, b);
        lanes[2] = add::<0b10_10_10_10>(lanes[2], scales, codes, c);
        lanes[3] = add::<0b11_11_11_11>(lanes[3], scales, codes, d);
    }
    let [a, b, c, d] = [in_rows(lanes[0]), in_rows(lanes[1]), in_rows(lanes[2]), in_rows(lanes[3])];
    [0, 1].map(|row| [a[row], b[row], c[row], d[row]])
}

/// Adds the products of one block of one token. `scales` are the concatenated scales of all tokens' products.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2")]
fn add<const TOKEN: i32>(lanes: __m512, scales: __m512, codes: __m512i, a: &q8_0::BlockQ8_0) -> __m512 {
    let a = _mm512_broadcast_i64x4(load_signed(&a.codes));
    // The code's sign moves to the activation that it is multiplied with.
    let signed = _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), a);
    let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_abs_epi8(codes), signed);
    _mm512_fmadd_ps(_mm512_shuffle_ps::<TOKEN>(scales, scales), _mm512_cvtepi32_ps(sums), lanes)
}

/// Returns the sum of each half of a register.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn in_rows(lanes: __m512) -> [f32; 2] {
    let [low, high]: [__m256; 2] = transmute!(lanes);
    [sum(low), sum(high)]
}
