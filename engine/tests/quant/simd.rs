//! Fast dot products give the same bits as the plain ones, whatever the rows hold.

use proptest::prelude::*;
use xcheck_engine::quant::{self, DECODABLE, DotOrder};
use xcheck_engine::weight::DType;

use super::vectors::same;

/// Elements of the longest rows: eight of the largest blocks.
const LEN: usize = 8 * 256;

const ORDERS: [DotOrder; 2] = [DotOrder::Row, DotOrder::Batch];

/// Ordinary numbers, any numbers, and numbers that are not.
fn activation() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -10.0f32..10.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => prop::sample::select(vec![0.0, -0.0, f32::NAN, f32::INFINITY, 1e-40, f32::MAX, 127.0, 63.5]),
    ]
}

/// Rows of them, or of ordinary numbers but for a few NaN, which in 8 bits may be −128 beside a scale that is a number.
fn activations(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let ordinary = prop_oneof![40 => -10.0f32..10.0, 1 => Just(f32::NAN)];
    prop_oneof![prop::collection::vec(activation(), len), prop::collection::vec(ordinary, len)]
}

/// Bytes of weights: all values, or mostly extreme ones.
fn weights() -> impl Strategy<Value = Vec<u8>> {
    let extreme = prop::sample::select(vec![0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0]);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 4 * LEN),
        prop::collection::vec(prop_oneof![extreme, any::<u8>()], 4 * LEN),
    ]
}

/// Short rows, too: of long ones nearly all hold what makes the whole sum NaN.
fn blocks() -> impl Strategy<Value = usize> {
    prop_oneof![1..=2usize, 1..=LEN / 32]
}

fn quantised(dtype: DType, row: &[f32]) -> Vec<u8> {
    let mut out = vec![0; dtype.bytes_for(row.len()).expect("whole blocks")];
    quant::quantise_row(dtype, row, &mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plain_and_simd_quantised_dot_products_agree_bit_for_bit(
        weights in weights(),
        activations in activations(LEN),
        len in 1..=LEN,
    ) {
        for (&dtype, order) in DECODABLE.iter().flat_map(|dtype| ORDERS.map(|order| (dtype, order))) {
            let Some(fast) = quant::fast_dot(dtype, order) else { continue };
            let activation = quant::activation_type(dtype);
            let step = if order == DotOrder::Batch { 8 } else { 1 }.max(dtype.block_len());
            let len = (len / step * step).max(step);
            let weights = &weights[..dtype.bytes_for(len).expect("whole blocks")];
            let activations = quantised(activation, &activations[..len]);
            let (plain, fast) = (quant::plain_dot(dtype, order)(weights, &activations), fast(weights, &activations));
            prop_assert!(same(plain, fast), "{dtype}, {order:?}, {len} elements: plain {plain:e}, fast {fast:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plain_and_simd_products_of_f16_with_f32_agree_bit_for_bit(
        weights in weights(),
        activations in activations(LEN),
        eights in 1..=LEN / 8,
    ) {
        if let Some(fast) = quant::fast_mixed_dot() {
            let activations = quantised(DType::F32, &activations[..8 * eights]);
            let weights = &weights[..16 * eights];
            let (plain, fast) = (quant::plain_mixed_dot()(weights, &activations), fast(weights, &activations));
            prop_assert!(same(plain, fast), "{eights} times eight: plain {plain:e}, fast {fast:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn quantised_tiles_give_what_single_dot_products_give(
        weights in [weights(), weights()],
        activations in activations(4 * LEN),
        blocks in blocks(),
    ) {
        for (&dtype, order) in DECODABLE.iter().flat_map(|dtype| ORDERS.map(|order| (dtype, order))) {
            let (dot, block) = (quant::plain_dot(dtype, order), dtype.block_len().max(32));
            let len = (32 * blocks).next_multiple_of(block);
            let bytes = dtype.bytes_for(len).expect("whole blocks");
            let weights = weights.each_ref().map(|row| &row[..bytes]);
            let rows: [Vec<u8>; 4] = std::array::from_fn(|token| {
                quantised(quant::activation_type(dtype), &activations[token * LEN..][..len])
            });
            for (index, tile) in quant::tiles(dtype, order).enumerate() {
                let tiled = tile(weights, rows.each_ref().map(Vec::as_slice));
                for (row, token) in (0..2).flat_map(|row| (0..4).map(move |token| (row, token))) {
                    let (plain, fast) = (dot(weights[row], &rows[token]), tiled[row][token]);
                    prop_assert!(
                        same(plain, fast),
                        "{dtype}, tile {index}, row {row}, token {token}: plain {plain:e}, fast {fast:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn plain_and_simd_code_quantise_to_the_same_bytes(row in prop::collection::vec(activation(), LEN)) {
        for dtype in [DType::Q8_0, DType::Q8_1] {
            let Some(fast) = quant::fast_quantise(dtype) else { continue };
            let mut out = [(); 2].map(|()| vec![0; dtype.bytes_for(LEN).expect("whole blocks")]);
            quant::plain_quantise(dtype)(&row, &mut out[0]);
            fast(&row, &mut out[1]);
            prop_assert!(out[0] == out[1], "{dtype}");
        }
    }
}

/// Where there is no fast code on this machine, the test above compares nothing.
#[test]
#[cfg(target_arch = "x86_64")]
fn machines_with_avx2_or_avx512_have_simd_code_for_every_quantised_type() {
    let found = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    for (&dtype, order) in DECODABLE.iter().flat_map(|dtype| ORDERS.map(|order| (dtype, order))) {
        assert_eq!(quant::fast_dot(dtype, order).is_some(), found, "{dtype}, {order:?}");
    }
    let wide = found && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni");
    for (dtype, order) in
        [(DType::Q8_0, DotOrder::Row), (DType::Q4_K, DotOrder::Batch), (DType::Q6_K, DotOrder::Batch)]
    {
        assert_eq!(quant::tiles(dtype, order).count(), usize::from(found) + usize::from(wide), "{dtype}");
    }
    assert_eq!(quant::fast_quantise(DType::Q8_0).is_some(), found);
    assert_eq!(quant::fast_mixed_dot().is_some(), found);
    if !found {
        crate::skip::skip(
            "no AVX2, FMA and F16C: fast quantised products are not compared with the plain ones",
        );
    } else if !wide {
        crate::skip::skip("no AVX-512 BW and VNNI: their tiles of quantised products are not compared");
    }
}

/// The same where the architecture is another.
#[test]
#[cfg(target_arch = "aarch64")]
fn machines_with_neon_dot_products_have_simd_code_for_every_quantised_type() {
    let found = std::arch::is_aarch64_feature_detected!("dotprod");
    for (&dtype, order) in DECODABLE.iter().flat_map(|dtype| ORDERS.map(|order| (dtype, order))) {
        assert_eq!(quant::fast_dot(dtype, order).is_some(), found, "{dtype}, {order:?}");
    }
    assert_eq!(quant::fast_mixed_dot().is_some(), found);
    for (dtype, order) in
        [(DType::Q8_0, DotOrder::Row), (DType::Q4_K, DotOrder::Batch), (DType::Q6_K, DotOrder::Batch)]
    {
        assert_eq!(quant::tiles(dtype, order).count(), usize::from(found), "{dtype}");
    }
    if !found {
        crate::skip::skip(
            "no dot products of bytes: fast quantised products are not compared with the plain ones",
        );
    }
}
