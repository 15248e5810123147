//! The products of llama2.c: fast code gives the bits of the plain one, whatever the rows hold.

use proptest::prelude::*;
use xcheck_engine::quant::llama2c::{self, Groups, QuantisedRow};

use super::vectors::same;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Ordinary numbers, and such that do not add up in any order.
fn value() -> impl Strategy<Value = f32> {
    prop_oneof![8 => -10.0f32..10.0, 1 => prop::sample::select(vec![0.0, -0.0, 1e30, -1e30, 1e-40, f32::INFINITY, f32::NAN])]
}

fn assert_same(plain: &[f32], fast: &[f32]) -> Result<(), TestCaseError> {
    for (index, (plain, fast)) in plain.iter().zip(fast).enumerate() {
        prop_assert!(same(*plain, *fast), "product {index}: plain {plain:e}, fast {fast:e}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plain_and_simd_sums_agree_bit_for_bit(
        rows in 1..20usize,
        columns in 1..70usize,
        tokens in 1..7usize,
        weights in prop::collection::vec(value(), 20 * 70),
        activations in prop::collection::vec(value(), 7 * 70),
    ) {
        let weights = bytes(&weights[..rows * columns]);
        let activations: Vec<&[f32]> = activations.chunks(columns).take(tokens).collect();
        let mut out = [(); 2].map(|()| vec![0.0; rows * tokens]);
        llama2c::plain_products(&weights, &activations, &mut out[0]);
        llama2c::products()(&weights, &activations, &mut out[1]);
        assert_same(&out[0], &out[1])?;
    }

    #[test]
    fn plain_and_simd_groups_agree_bit_for_bit(
        rows in 1..5usize,
        groups in 1..4usize,
        group in 1..70usize,
        tokens in 1..4usize,
        codes in prop::collection::vec(any::<u8>(), 5 * 4 * 70),
        scales in prop::collection::vec(value(), 5 * 4),
        activations in prop::collection::vec(value(), 4 * 4 * 70),
    ) {
        let columns = groups * group;
        let (codes, scales) = (&codes[..rows * columns], bytes(&scales[..rows * groups]));
        let weights = Groups { codes, scales: &scales };
        let rounded = activations.chunks(columns).take(tokens).map(|row| QuantisedRow::of(row, group));
        let activations: Vec<QuantisedRow> = rounded.collect();
        let mut out = [(); 2].map(|()| vec![0.0; rows * tokens]);
        llama2c::plain_group_products(weights, &activations, &mut out[0]);
        llama2c::group_products()(weights, &activations, &mut out[1]);
        assert_same(&out[0], &out[1])?;
    }
}

/// Where there is no fast code on this machine, the tests above compare nothing.
#[test]
#[cfg(target_arch = "x86_64")]
fn machines_with_avx2_have_simd_code_for_llama2c_groups() {
    let found = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    assert_eq!(llama2c::fast_products().is_some(), found);
    assert_eq!(llama2c::fast_group_products().is_some(), found);
    if !found {
        crate::skip::skip(
            "no AVX2, FMA and F16C: fast llama2.c products are not compared with the plain ones",
        );
    }
}

#[test]
fn sums_run_from_the_first_column_to_the_last() {
    let big = 16_777_216.0; // 2^24: one more is lost
    let weights = bytes(&[big, 1.0, 1.0, -big]);
    let mut out = [f32::NAN];
    llama2c::plain_products(&weights, &[&[1.0; 4]], &mut out);
    assert_eq!(out, [0.0]);
    llama2c::plain_products(&bytes(&[1.0, 1.0, big, -big]), &[&[1.0; 4]], &mut out);
    assert_eq!(out, [2.0]);
}

#[test]
fn int8_activations_are_rounded_half_away_from_zero_and_groups_of_zeros_stay_zero() {
    let QuantisedRow { codes, scales } = QuantisedRow::of(&[127.0, 2.5, -2.5, 0.4, 0.0, 0.0, -0.0, 0.0], 4);
    assert_eq!(codes, [127, 3, -3, 0, 0, 0, 0, 0]);
    assert_eq!(scales, [1.0, 0.0]);
    // The scale of a denormal maximum is rounded to nothing, and the quotient is infinite.
    assert_eq!(QuantisedRow::of(&[1e-45, 0.0], 2).codes, [0, 0]);
    assert_eq!(QuantisedRow::of(&[f32::NAN, 1.0], 2).codes, [0, 127]);
}

#[test]
fn an_int8_code_times_the_scale_of_its_group_is_its_value() {
    let mut out = [0.0; 4];
    llama2c::decode(&[1, 0xFF, 2, 0x80], &bytes(&[0.5, 3.0]), 2, &mut out);
    assert_eq!(out, [0.5, -0.5, 6.0, -384.0]);
}
