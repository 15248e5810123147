//! Ternary rows: what plain and fast code compute, and where sums of 16 bits wrap.

use proptest::prelude::*;
use xcheck_engine::quant::ternary::{self, BLOCK, BLOCK_BYTES};
use xcheck_engine::weight::{DType, Matrix, StoredTensor};

const TYPES: [DType; 2] = [DType::I2_S, DType::TL];
/// Blocks of the longest rows: enough for sums of 16 bits to be widened twice.
const BLOCKS: usize = 70;

/// Rows of codes 0, 1 and 2.
fn row() -> impl Strategy<Value = Vec<i8>> {
    prop_oneof![
        prop::collection::vec(-1i8..=1, BLOCKS * BLOCK),
        Just(vec![1; BLOCKS * BLOCK]),
        Just(vec![-1; BLOCKS * BLOCK]),
    ]
}

fn activations() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        4 => prop::collection::vec(-10.0f32..10.0, BLOCKS * BLOCK),
        1 => Just(vec![1.0; BLOCKS * BLOCK]),
        1 => prop::collection::vec(any::<u32>().prop_map(f32::from_bits), BLOCKS * BLOCK),
    ]
}

fn encoded(weights: &[i8]) -> Vec<u8> {
    let mut out = vec![0; weights.len().div_ceil(BLOCK) * BLOCK_BYTES];
    ternary::encode_row(weights.iter().copied(), &mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plain_and_simd_ternary_sums_are_the_same(weights in row(), values in activations(), blocks in 1..=BLOCKS) {
        let row = encoded(&weights[..blocks * BLOCK]);
        for dtype in TYPES {
            let token = ternary::quantise(dtype, &values[..blocks * BLOCK]);
            let Some(fast) = ternary::fast_sum(dtype) else { continue };
            prop_assert_eq!(ternary::plain_sum(dtype)(&row, &token.codes), fast(&row, &token.codes), "{}", dtype);
        }
    }

    #[test]
    fn plain_and_simd_code_round_activations_to_the_same_int8_codes(values in activations(), len in 1..=BLOCK * BLOCKS) {
        let Some(fast) = ternary::fast_codes() else { return Ok(()) };
        let scale = ternary::quantise(DType::I2_S, &values[..len]).scale;
        let mut out = [(); 2].map(|()| vec![0; len.next_multiple_of(BLOCK)]);
        ternary::plain_codes(&values[..len], scale, &mut out[0]);
        fast(&values[..len], scale, &mut out[1]);
        prop_assert_eq!(&out[0], &out[1]);
    }

    #[test]
    fn rows_decode_to_what_was_encoded(weights in row(), len in 1..=BLOCKS * BLOCK) {
        let mut out = vec![0.0; len];
        ternary::decode_row(&encoded(&weights[..len]), &mut out);
        prop_assert!(weights.iter().zip(&out).all(|(&weight, &value)| f32::from(weight) == value));
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn machines_with_avx2_have_simd_code_for_i2_s_and_tl2() {
    let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    assert!(TYPES.iter().all(|&dtype| ternary::fast_sum(dtype).is_some() == found));
    assert_eq!(ternary::fast_codes().is_some(), found);
    if !found {
        crate::skip::skip("no AVX2 and FMA: fast ternary sums are not compared with the plain ones");
    }
}

fn product(dtype: DType, weights: &[i8], scale: f32, activations: &[f32]) -> f32 {
    let mut data = encoded(weights);
    data.extend(scale.to_le_bytes());
    data.resize(data.len() + 28, 0);
    let stored = StoredTensor { dtype, shape: vec![1, weights.len()], data: data.into() };
    let matrix = Matrix::from_stored(&stored).expect("it is whole");
    let mut out = [0.0];
    ternary::fill(&matrix, 0..1, &[ternary::quantise(dtype, activations)], &mut out);
    out[0]
}

/// Weights of +1 and equal activations, 2176 of each: bitnet.cpp on x86 gives -6080.5.
#[test]
fn sums_of_i2_s_wrap_where_those_of_bitnet_cpp_do() {
    let (weights, ones) = (vec![1; 2176], vec![1.0; 2176]);
    assert_eq!(product(DType::I2_S, &weights, 1.0, &ones), -6_080.504);
    assert_eq!(product(DType::TL, &weights, 1.0, &ones), 2176.0);
    assert_eq!(product(DType::I2_S, &weights[..2048], 1.0, &ones[..2048]), 2048.0);
}

#[test]
fn the_largest_activation_counts_as_1e_5_at_least_but_not_for_tables() {
    let values = [1e-6f32, -5e-7, 0.0, 0.0];
    assert_eq!(ternary::quantise(DType::I2_S, &values).codes[..4], [13, -6, 0, 0]);
    assert_eq!(ternary::quantise(DType::TL, &values).codes[..4], [127, -64, 0, 0]);
    assert_eq!(product(DType::TL, &[1; 4], 1.0, &[0.0; 4]), 0.0);
}

#[test]
fn halves_are_rounded_to_even() {
    let codes = ternary::quantise(DType::I2_S, &[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]).codes;
    assert_eq!(codes[..6], [127, 0, 2, 2, 0, -2]);
}

#[test]
fn the_fourth_code_is_found() {
    let mut rows = encoded(&[1; 256]);
    assert_eq!(ternary::first_bad_code(&rows), None);
    rows[37] |= 0b00_00_11_00;
    assert_eq!(ternary::first_bad_code(&rows), Some(37));
}
