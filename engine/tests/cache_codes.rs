//! Blocks of IQ4_NL in a KV cache: builds that add in another order may store the neighbouring `f16` scale, and no other.

use half::f16;
use xcheck_engine::exact::{Profile, ResultPair, judge};
use xcheck_engine::numerics::{LlamaCppFlash, Numerics};
use xcheck_engine::quant::{cache_codes, quantise_row};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;
use xcheck_engine::weight::DType;

const BLOCK: usize = 32;

/// Values of a block, of any seed.
fn block(seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..BLOCK).map(|_| next() + next() + next()).collect()
}

fn stored(row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 18];
    quantise_row(DType::IQ4_NL, row, &mut bytes);
    bytes
}

/// The scale of a block with these codes, by fused multiplications: least squares as ggml computes them.
fn fused(row: &[f32], codes: &[i8]) -> f16 {
    let (mut products, mut squares) = (0.0f32, 0.0f32);
    for (&value, &code) in row.iter().zip(codes) {
        let (weight, code) = (value * value, f32::from(code));
        products = (weight * code).mul_add(value, products);
        squares = (weight * code).mul_add(code, squares);
    }
    f16::from_f32(products / squares)
}

/// Judges a block that an engine has stored with a scale.
fn is_explained(row: &[f32], codes: &[i8], scale: f16) -> bool {
    let numerics = LlamaCppFlash::of(DType::IQ4_NL).expect("a cache of blocks");
    let profile = Profile::of(&numerics);
    let x = Tensor::new(&[1, 1, BLOCK], row.to_vec());
    let traced = TracedNumerics::new(&numerics, profile).rounding_by(profile).to_cache(x);
    let made: Vec<f64> = codes.iter().map(|&code| scale.to_f64() * f64::from(code)).collect();
    let nowhere = vec![f64::NAN; made.len()];
    let sides = [&View::of(traced.shape(), &made), &View::of(traced.shape(), &nowhere)];
    let compared =
        ResultPair { traced: &traced, sides, stored: None, is_double: false, sees: &|_| 0..usize::MAX };
    judge(&compared, true).expect("one operation").dump.is_explained()
}

#[test]
fn a_scale_of_another_order_of_sums_is_explained_and_a_wrong_one_is_not() {
    let (mut others, mut same) = (0, 0);
    for row in (0..60_000).map(block) {
        let bytes = stored(&row);
        let codes = cache_codes(DType::IQ4_NL, &bytes).expect("codes");
        let (own, fused) = (f16::from_le_bytes([bytes[0], bytes[1]]), fused(&row, &codes));
        if own == fused && same >= 20 {
            continue;
        }
        if own == fused {
            same += 1
        } else {
            others += 1
        }
        assert!(is_explained(&row, &codes, own), "{own} {row:?}");
        assert!(is_explained(&row, &codes, fused), "{own} {fused} {row:?}");
        let step = |by: i16| f16::from_bits((own.to_bits() as i16 + by) as u16);
        for by in [-2, 2] {
            assert!(!is_explained(&row, &codes, step(by)), "{own} {by} {row:?}");
        }
    }
    assert!(others >= 3 && same == 20, "{others} blocks have two scales");
}

#[test]
fn a_scale_far_from_a_tie_has_no_slack() {
    let row = block(7);
    let bytes = stored(&row);
    let codes = cache_codes(DType::IQ4_NL, &bytes).expect("codes");
    let own = f16::from_le_bytes([bytes[0], bytes[1]]);
    assert!(is_explained(&row, &codes, own));
    for bits in [own.to_bits() - 1, own.to_bits() + 1] {
        assert!(!is_explained(&row, &codes, f16::from_bits(bits)), "{own} {row:?}");
    }
}
