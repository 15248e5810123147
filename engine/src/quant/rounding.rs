//! Maxima and rounding as x86 instructions compute them, including NaN and infinity.

/// Returns the largest absolute value of 32 values. Compares them in the same order as the AVX2 code, which matters
/// for NaN.
pub(super) fn largest(values: &[f32; 32]) -> f32 {
    let (registers, _) = values.as_chunks::<8>();
    let mut lanes = registers[0].map(f32::abs);
    for register in &registers[1..] {
        lanes = std::array::from_fn(|lane| max(lanes[lane], register[lane].abs()));
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let [a, b, c, d] = [max(e, a), max(f, b), max(g, c), max(h, d)];
    max(max(a, c), max(b, d))
}

/// Computes the maximum like the instruction `maxps`, which returns the second operand if either is NaN.
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns the nearest whole number, ties to even, like `f64::round_ties_even`, which calls libm for each value on
/// x86-64 without SSE4.1.
#[inline]
pub(crate) fn nearest_whole(value: f64) -> f64 {
    // 2⁵²: larger numbers have no fraction, and a sum from here to 2⁵³ is rounded to a whole number.
    const WHOLE: f64 = 4_503_599_627_370_496.0;
    let size = value.abs();
    if size < WHOLE { ((size + WHOLE) - WHOLE).copysign(value) } else { value }
}

/// Converts like the instruction `cvtps2dq`: to the nearest integer, ties to even; values outside of 32 bits give
/// the smallest integer.
pub(super) fn to_int32(value: f32) -> i32 {
    let rounded = nearest_whole(value.into()) as f32;
    if rounded.abs() < 2_147_483_648.0 { rounded as i32 } else { i32::MIN }
}

/// Clamps to −128 to 127, like the `packs` instructions.
pub(super) fn to_int8(value: i32) -> i8 {
    value.clamp(i8::MIN.into(), i8::MAX.into()) as i8
}

#[cfg(test)]
mod tests {
    use super::nearest_whole;

    #[test]
    fn whole_numbers_are_those_of_the_standard_library() {
        let halves = (-20..=20).map(|half| f64::from(half) / 2.0);
        let large = [0.49999999999999994, 4503599627370495.5, 4503599627370496.0, 1e300, f64::INFINITY];
        let negative = large.map(|value| -value);
        for value in halves.chain(large).chain(negative).chain([-0.0, 5e-324]) {
            assert_eq!(nearest_whole(value).to_bits(), value.round_ties_even().to_bits(), "{value}");
        }
        assert!(nearest_whole(f64::NAN).is_nan());
    }
}
