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

/// Computes `cvtps2dq`: the nearest integer, ties to even; the smallest integer for values outside of 32 bits.
pub(super) fn to_int32(value: f32) -> i32 {
    let rounded = value.round_ties_even();
    if rounded.abs() < 2_147_483_648.0 { rounded as i32 } else { i32::MIN }
}

/// Computes `packs`: clamps to −128 to 127.
pub(super) fn to_int8(value: i32) -> i8 {
    value.clamp(i8::MIN.into(), i8::MAX.into()) as i8
}
