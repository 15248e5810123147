//! What a value is rounded to, between all numbers of a type.

use half::{bf16, f16};
use xcheck_engine::exact::Float;

/// A type, its numbers from zero on by their patterns, and how many are finite.
struct Type {
    float: Float,
    finite: u32,
    number: fn(u32) -> f64,
}

const TYPES: [Type; 8] = [
    Type { float: Float::F32, finite: 0x7F80_0000, number: |at| f32::from_bits(at).into() },
    Type { float: Float::Tf32, finite: 0x7F80_0000 >> 13, number: tf32 },
    Type { float: Float::Tf32Away, finite: 0x7F80_0000 >> 13, number: tf32 },
    Type { float: Float::Tf32Cut, finite: 0x7F80_0000 >> 13, number: tf32 },
    Type { float: Float::F16, finite: 0x7C00, number: |at| f16::from_bits(at as u16).into() },
    Type { float: Float::Bf16, finite: 0x7F80, number: |at| bf16::from_bits(at as u16).into() },
    Type { float: Float::E4m3, finite: 0x7F, number: |at| eighth(at, 3, 7) },
    Type { float: Float::E5m2, finite: 0x7C, number: |at| eighth(at, 2, 15) },
];

fn tf32(at: u32) -> f64 {
    f32::from_bits(at << 13).into()
}

/// A number of eight bits, of which so many are a fraction's.
fn eighth(at: u32, bits: u32, bias: i32) -> f64 {
    let (exponent, fraction) = ((at >> bits) as i32, f64::from(at % (1 << bits)) / f64::from(1 << bits));
    let leading = if exponent > 0 { 1.0 } else { 0.0 };
    (leading + fraction) * 2f64.powi(exponent.max(1) - bias)
}

impl Type {
    /// The number that follows the one with this pattern: of the largest, the one that would be if there were more.
    fn next(&self, at: u32) -> f64 {
        let number = |at| (self.number)(at);
        if at + 1 < self.finite { number(at + 1) } else { 2.0 * number(at) - number(at - 1) }
    }

    /// What numbers from the one with this pattern up to the next are rounded to, and both with the other sign.
    fn holds(&self, at: u32) {
        let (low, high) = ((self.number)(at), self.next(at));
        let above = if at + 1 < self.finite { high } else { f64::INFINITY };
        let between = (low + high) / 2.0;
        let (up_to, tie, from) = match self.float {
            Float::Tf32Cut => (low, low, low),
            Float::Tf32Away => (low, above, above),
            _ => (low, if at.is_multiple_of(2) { low } else { above }, above),
        };
        let expected = [
            (low, low),
            (low.next_up(), low),
            (between.next_down(), up_to),
            (between, tie),
            (between.next_up(), from),
            (high.next_down(), from),
            (high, above),
        ];
        for (value, rounded) in expected {
            for sign in [1.0, -1.0] {
                let (value, rounded) = (sign * value, sign * rounded);
                let found = self.float.round(value);
                assert_eq!(found.to_bits(), rounded.to_bits(), "{:?}: {value:e} is {found:e}", self.float);
            }
        }
    }
}

#[test]
fn values_are_rounded_to_the_nearest_number_or_as_the_name_says() {
    for of in &TYPES {
        // Of `f32`, some in every octave.
        let step = if of.float == Float::F32 { 104_729 } else { 1 };
        (0..of.finite).step_by(step).for_each(|at| of.holds(at));
        of.holds(of.finite - 1);
    }
}

#[test]
fn what_no_type_holds_is_infinite_and_what_is_no_number_stays_none() {
    for Type { float, .. } in TYPES {
        for value in [1e39, f64::MAX, f64::INFINITY] {
            assert_eq!(float.round(value), f64::INFINITY, "{float:?}");
            assert_eq!(float.round(-value), f64::NEG_INFINITY, "{float:?}");
        }
        assert!(float.round(f64::NAN).is_nan() && float.round(-f64::NAN).is_nan(), "{float:?}");
        for value in [f64::MIN_POSITIVE, f64::from_bits(1)] {
            assert_eq!(float.round(-value).to_bits(), (-0.0f64).to_bits(), "{float:?}");
        }
    }
}
