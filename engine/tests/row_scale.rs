//! The scale of a row of integer weights is found in what it decodes to.

use xcheck_engine::exact::Float;
use xcheck_engine::ops::linear::exact::scales_of_row;

use crate::separation::dice::Dice;

#[test]
fn the_int8_scale_of_a_row_of_codes_is_found_and_other_rows_have_none() {
    let scale = Float::Bf16.round(0.0123);
    let row = |scale: f64| {
        (0..96).map(|at| Float::Bf16.round(f64::from((at * 37 % 255) - 127) * scale)).collect::<Vec<_>>()
    };
    assert!(scales_of_row(&row(scale), Float::Bf16, Float::Bf16).contains(&scale));
    let waves: Vec<f64> = (0..96).map(|at| Float::Bf16.round(f64::from(at).sin() * 0.7)).collect();
    assert_eq!(scales_of_row(&waves, Float::Bf16, Float::Bf16), [0.0; 0]);
    assert_eq!(scales_of_row(&[0.0; 96], Float::Bf16, Float::Bf16), [0.0; 0]);
}

/// Returns a positive number with a random exponent in a range, as `f32`.
fn scale_of(dice: &mut Dice, exponents: std::ops::Range<i32>) -> f64 {
    let exponent = exponents.start + (dice.bits() % (exponents.len() as u64)) as i32;
    let fraction = 1.0 + (dice.bits() % (1 << 23)) as f64 / f64::from(1 << 23);
    f64::from((fraction * 2f64.powi(exponent)) as f32)
}

/// The search in a row of `f32`, without shortcuts.
fn whole_search(row: &[f64], scale: Float) -> Vec<f64> {
    let largest = row.iter().fold(0.0f64, |most, w| most.max(w.abs()));
    let is_multiple = |w: f64, scale: f64| {
        let code = (w / scale).round_ties_even();
        let is = |code: f64| f64::from((code * scale) as f32) == w;
        code.abs() <= 128.0 && [code - 1.0, code, code + 1.0].into_iter().any(is)
    };
    let mut scales: Vec<f64> = Vec::new();
    for candidate in (64..=128).map(|code| scale.round(largest / f64::from(code))) {
        let is_new = candidate > 0.0 && !scales.contains(&candidate);
        if is_new && row.iter().all(|&w| is_multiple(w, candidate)) {
            scales.push(candidate);
        }
    }
    if scales.len() > 4 { Vec::new() } else { scales }
}

#[test]
fn no_scale_that_the_whole_search_finds_is_ruled_out() {
    // Usual scales, scales near the smallest normal and subnormal numbers of f32 and f16, and near the largest.
    let ranges = [-20..4, -149..-120, -26..-10, 110..121];
    let (mut dice, mut found) = (Dice::new(7), [0; 3]);
    for case in 0..6000 {
        let (index, float) = [(0, Float::F32), (1, Float::Bf16), (2, Float::F16)][case % 3];
        let scale = float.round(scale_of(&mut dice, ranges[case / 3 % 4].clone()));
        let most = [128, 64, 63, 127][case / 12 % 4];
        let code = |dice: &mut Dice| (dice.bits() % (2 * most + 1)) as f64 - most as f64;
        let len = 1 + dice.bits() as usize % 24;
        let mut row: Vec<f64> = (0..len).map(|_| f64::from((code(&mut dice) * scale) as f32)).collect();
        if case % 5 == 0 {
            row[0] = f64::from(f32::from_bits((row[0] as f32).to_bits() ^ 1));
        }
        if row.iter().all(|&w| w == 0.0) || row.iter().any(|w| !w.is_finite()) {
            continue;
        }
        let whole = whole_search(&row, float);
        assert_eq!(scales_of_row(&row, Float::F32, float), whole, "{float:?} {scale:e}: {row:?}");
        found[index] += usize::from(!whole.is_empty());
    }
    assert!(found.iter().all(|&found| found > 300), "{found:?}");
}

#[test]
fn a_subnormal_scale_of_f16_is_found_for_a_small_largest_code() {
    let scale = 3.0 * 2f64.powi(-24);
    let row = [63.0, -62.0, 1.0, 40.0].map(|code| code * scale);
    assert!(scales_of_row(&row, Float::F32, Float::F16).contains(&scale));
}

#[test]
fn rows_with_numbers_that_are_not_finite_have_no_scale() {
    for bad in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        assert_eq!(scales_of_row(&[1.0, bad], Float::F32, Float::F32), [0.0; 0]);
    }
}
