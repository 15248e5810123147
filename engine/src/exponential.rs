//! e^x in `f64`, written so that compilers vectorise it.

/// ln 2 as a sum of two numbers: its leading bits, and the remainder.
const LN_2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];

/// 1.5 · 2⁵²: adding it to a number rounds the number to an integer.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// 1/13!, 1/12! … 1/2!: later terms are less than 2⁻⁵⁷ of the sum if |x| ≤ ln 2 / 2.
const TERMS: [f64; 12] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
];

/// Computes e^x to within a few units in the last place: 2^n times a polynomial in the remainder of x. The argument is
/// clamped to -708 to 709, so the result is never 0 or infinite. NaN gives NaN.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    let x = if x < -708.0 { -708.0 } else { x };
    let x = if x > 709.0 { 709.0 } else { x };
    let shifted = x.mul_add(std::f64::consts::LOG2_E, TO_INTEGER);
    let n = shifted - TO_INTEGER;
    let rest = (-n).mul_add(LN_2[1], (-n).mul_add(LN_2[0], x));
    let tail = TERMS.iter().fold(0.0f64, |sum, &term| sum.mul_add(rest, term));
    let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
    (tail * rest).mul_add(rest, rest).mul_add(power, power)
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn is_the_library_s_to_a_few_units() {
        for step in -70_000..=70_000 {
            let x = f64::from(step) * 0.010_1;
            let (own, library) = (exp(x), x.exp());
            assert!((own / library - 1.0).abs() < 4.0 * f64::EPSILON, "{x}: {own} for {library}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f64::NAN).is_nan());
        assert!(exp(f64::NEG_INFINITY) < 1e-300 && exp(f64::INFINITY) > 1e300);
    }
}
