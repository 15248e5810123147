//! Maxima and rounding as x86 instructions compute them, including NaN and infinity.

/// Returns the largest absolute value of 32 values, in the registers' order of comparison, which matters for NaN.
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

/// Computes `maxps`: the second operand if either is NaN.
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns the nearest whole number, ties to even, as `f64::round_ties_even` does. On x86-64 without SSE4.1, that is a call
/// of libm for each value.
#[inline]
pub(crate) fn nearest_whole(value: f64) -> f64 {
    // 2⁵²: larger numbers have no fraction, and a sum from here to 2⁵³ is rounded to a whole number.
    const WHOLE: f64 = 4_503_599_627_370_496.0;
    let size = value.abs();
    if size < WHOLE { ((size + WHOLE) - WHOLE).copysign(value) } else { value }
}

/// Computes `cvtps2dq`: the nearest integer, ties to even; the smallest integer for values outside of 32 bits.
pub(super) fn to_int32(value: f32) -> i32 {
    let rounded = nearest_whole(value.into()) as f32;
    if rounded.abs() < 2_147_483_648.0 { rounded as i32 } else { i32::MIN }
}

/// Computes `packs`: clamps to −128 to 127.
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
