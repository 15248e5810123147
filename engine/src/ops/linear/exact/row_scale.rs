//! Search for the scale of a row of integer weights, from the decoded weights.

use crate::exact::Float;
use crate::quant::nearest_whole;

/// Range of the largest weight's code. A scale that gives a smaller code can be halved, because a factor of two
/// changes no rounding.
const LARGEST: std::ops::RangeInclusive<usize> = 64..=128;

/// Maximum number of scales. If more scales fit, the row has too few weights to decide.
const MOST: usize = 4;

/// Returns every scale `s` of type `scale` for which each weight of the row equals an 8-bit integer times `s`, rounded to type
/// `weights`. Empty if there is no such scale, or too many fit.
pub fn scales_of_row(row: &[f64], weights: Float, scale: Float) -> Vec<f64> {
    let largest = row.iter().fold(0.0f64, |most, w| most.max(w.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return Vec::new();
    }
    let (low, high) = weights.cell(largest);
    let mut scales: Vec<f64> = Vec::new();
    for code in LARGEST
        .map(|code| code as f64)
        .filter(|&code| weights != Float::F32 || may_be(row, largest, code, scale))
    {
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

/// Returns false if one of the row's first weights, all `f32`, is not an integer times the scale for which the
/// largest weight has this code. Most rows are not quantised, and one weight rules out most codes.
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
