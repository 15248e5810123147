//! Search for the scale of a row of integer weights, from the decoded weights.

use crate::exact::Float;
use crate::quant::nearest_whole;

/// Range of the largest weight's code. A scale that gives a smaller code can be halved, since a factor of two changes
/// no rounding.
const LARGEST: std::ops::RangeInclusive<usize> = 64..=128;

/// Maximum number of scales; more fit only if there are too few weights to decide.
const MOST: usize = 4;

/// Returns every scale `s` of type `scale` for which each weight of the row equals an 8-bit integer times `s`, rounded to type
/// `weights`. Empty if there is no such scale, or too many fit.
pub fn scales_of_row(row: &[f64], weights: Float, scale: Float) -> Vec<f64> {
    let largest = row.iter().fold(0.0f64, |most, w| most.max(w.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return Vec::new();
    }
    search(row, largest, weights, scale, |code| weights != Float::F32 || may_be(row, largest, code, scale))
}

/// Tries each code of the largest weight that `may_be` accepts.
fn search(row: &[f64], largest: f64, weights: Float, scale: Float, may_be: impl Fn(f64) -> bool) -> Vec<f64> {
    let (low, high) = weights.cell(largest);
    let mut scales: Vec<f64> = Vec::new();
    for code in LARGEST.map(|code| code as f64).filter(|&code| may_be(code)) {
        for near in [low, largest, high] {
            let candidate = scale.round(near / code);
            let is_new = candidate > 0.0 && !scales.contains(&candidate);
            if is_new && row.iter().all(|&w| is_multiple(w, candidate, weights)) {
                scales.push(candidate);
            }
        }
    }
    if scales.len() > MOST { Vec::new() } else { scales }
}

/// Returns false if one of the row's first weights, all `f32`, is not an integer times the scale with which the largest has
/// this code. Most rows are of floats, and one weight rules out most codes.
fn may_be(row: &[f64], largest: f64, code: f64, scale: Float) -> bool {
    // Both weights are rounded, by half a unit in the last place each.
    const SLACK: f64 = 128.0 * 3.0 * (f32::EPSILON as f64) / 2.0;
    let is_near = |w: &f64| {
        let multiple = w / largest * code;
        w.abs() < f64::from(f32::MIN_POSITIVE) || (multiple - nearest_whole(multiple)).abs() <= SLACK
    };
    // With a scale that is rounded by more, such as a subnormal number, the largest weight can have another code.
    let exact = largest / code;
    let has_code = (scale.round(exact) - exact).abs() * code < exact / 2.0;
    !has_code || row.iter().take(8).all(is_near)
}

/// Returns true if a weight is an 8-bit integer times a scale, rounded.
fn is_multiple(weight: f64, scale: f64, weights: Float) -> bool {
    let rounded = |x: f64| if weights == Float::F32 { f64::from(x as f32) } else { weights.round(x) };
    // Rounding may have moved the product past the midpoint between two codes.
    let code = nearest_whole(weight / scale);
    code.abs() <= 128.0
        && [code - 1.0, code, code + 1.0].into_iter().any(|code| rounded(code * scale) == weight)
}

#[cfg(test)]
mod tests {
    use super::{scales_of_row, search};
    use crate::exact::Float;

    /// Pseudorandom numbers (splitmix64).
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a positive normal or subnormal number with a random exponent in a range, as `f32`.
    fn scale_of(state: &mut u64, exponents: std::ops::Range<i32>) -> f64 {
        let exponent = exponents.start + (random(state) % (exponents.len() as u64)) as i32;
        let fraction = 1.0 + (random(state) % (1 << 23)) as f64 / f64::from(1 << 23);
        f64::from((fraction * 2f64.powi(exponent)) as f32)
    }

    #[test]
    fn no_scale_that_the_whole_search_finds_is_ruled_out() {
        // Usual scales, scales near the smallest normal and subnormal numbers of f32 and f16, and near the largest.
        let ranges = [-20..4, -149..-120, -26..-10, 110..121];
        let (mut state, mut found) = (7, [0; 3]);
        for case in 0..6000 {
            let (index, scale_type) = [(0, Float::F32), (1, Float::Bf16), (2, Float::F16)][case % 3];
            let scale = scale_type.round(scale_of(&mut state, ranges[case / 3 % 4].clone()));
            let most = [128, 64, 63, 127][case / 12 % 4];
            let code = |state: &mut u64| (random(state) % (2 * most + 1)) as f64 - most as f64;
            let len = 1 + random(&mut state) as usize % 24;
            let mut row: Vec<f64> = (0..len).map(|_| f64::from((code(&mut state) * scale) as f32)).collect();
            if case % 5 == 0 {
                row[0] = f64::from(f32::from_bits((row[0] as f32).to_bits() ^ 1));
            }
            let largest = row.iter().fold(0.0f64, |most, w| most.max(w.abs()));
            if largest == 0.0 || !largest.is_finite() {
                continue;
            }
            let whole = search(&row, largest, Float::F32, scale_type, |_| true);
            assert_eq!(
                scales_of_row(&row, Float::F32, scale_type),
                whole,
                "{scale_type:?} {scale:e}: {row:?}"
            );
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
        for bad in [f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(scales_of_row(&[1.0, bad], Float::F32, Float::F32), [0.0; 0]);
        }
        assert_eq!(scales_of_row(&[f64::NAN, 1.0], Float::F32, Float::F32), [0.0; 0]);
    }
}
