//! An exponential with the same bits on every machine, which compilers vectorise.

/// Computes e^x: 2^n times a polynomial in the remainder, with an error of at most 2 units in the last place.
///
/// Uses Arm's optimised routine of degree five, as ggml's vector code does.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const TO_INTEGER: f32 = 12_582_912.0; // 1.5 · 2²³: what is added to it loses its fraction
    let shifted = x.mul_add(f32::from_bits(0x3FB8_AA3B), TO_INTEGER); // log2(e)
    let n = shifted - TO_INTEGER;
    let ln2 = [f32::from_bits(0x3F31_7200), f32::from_bits(0x35BF_BE8E)]; // its first bits, and the rest
    let rest = (-n).mul_add(ln2[1], (-n).mul_add(ln2[0], x));
    let tail = polynomial(rest);
    let exponent = shifted.to_bits() << 23;
    let power = f32::from_bits(exponent.wrapping_add(1.0f32.to_bits()));
    let usual = tail.mul_add(power, power);
    // If 2^n is not a normal number, it is the product of two factors.
    let below = if n <= 0.0 { 0x8200_0000 } else { 0 };
    let outer = f32::from_bits(0x7F00_0000u32.wrapping_add(below));
    let inner = f32::from_bits(exponent.wrapping_sub(below));
    let extreme = if n.abs() > 192.0 { outer * outer } else { inner.mul_add(tail, inner) * outer };
    if n.abs() > 126.0 { extreme } else { usual }
}

/// Computes e^x − 1 for small x.
#[inline(always)]
fn polynomial(x: f32) -> f32 {
    let square = x * x;
    let high = f32::from_bits(0x3C07_2010).mul_add(x, f32::from_bits(0x3D2B_9F17));
    let low = f32::from_bits(0x3E2A_AF33).mul_add(x, f32::from_bits(0x3EFF_FEDB));
    high.mul_add(square, low).mul_add(square, f32::from_bits(0x3F7F_FFF6) * x)
}
