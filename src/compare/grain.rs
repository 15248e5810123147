//! How finely values can be told apart: the steps of the types in which they are computed and stored.

use crate::weight::DType;

/// The types on both sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grain {
    /// What the stage's results are rounded to. Two honest engines may round a value to neighbours in it.
    pub computed: DType,
    /// What the candidate's values were stored in, where that is coarser: each stands for all that round to it.
    pub candidate: Option<DType>,
    /// The same of the reference's values.
    pub reference: Option<DType>,
}

impl Grain {
    /// Values that both sides hold as they were computed, in `f32`.
    pub const F32: Self = Self { computed: DType::F32, candidate: None, reference: None };

    /// How far two values may be apart although what they were stored from is the same.
    pub fn slack(&self, candidate: f64, reference: f64) -> f64 {
        half_step(self.candidate, candidate) + half_step(self.reference, reference)
    }

    /// The distance from a value to its neighbour in the computed type.
    pub fn step(&self, value: f64) -> f64 {
        step(self.computed, value)
    }
}

/// The stored type, if it is coarser than the computed one.
pub fn coarser(stored: DType, computed: DType) -> Option<DType> {
    (fraction_bits(stored) < fraction_bits(computed)).then_some(stored)
}

/// The number nearest to `own` that rounds to `stored` in the type in which that was stored.
pub fn nearest_that_rounds_to(stored: f64, dtype: Option<DType>, own: f64) -> f64 {
    let half = half_step(dtype, stored);
    if own.is_nan() || !stored.is_finite() { stored } else { own.clamp(stored - half, stored + half) }
}

/// Half the spacing of a stored type at a value; 0 where none is coarser than what is computed.
pub fn half_step(dtype: Option<DType>, value: f64) -> f64 {
    dtype.map_or(0.0, |dtype| step(dtype, value) / 2.0)
}

/// The spacing of a floating type at a value, away from zero; 0 for a type without spacing.
fn step(dtype: DType, value: f64) -> f64 {
    let (Some(bits), true) = (fraction_bits(dtype), value.is_finite()) else { return 0.0 };
    let exponent = exponent(value).max(least_exponent(dtype)) - bits;
    // Below the least normal number of f64 lie only steps of its own.
    if exponent < -1022 { f64::from_bits(1) } else { f64::from_bits(((exponent + 1023) as u64) << 52) }
}

/// ⌊log₂ |value|⌋, read off the bits; less than any for zero and what is subnormal.
fn exponent(value: f64) -> i32 {
    ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// Bits of the fraction; `None` where values are no floating-point numbers.
fn fraction_bits(dtype: DType) -> Option<i32> {
    match dtype {
        DType::F64 => Some(52),
        DType::F32 => Some(23),
        DType::F16 => Some(10),
        DType::BF16 => Some(7),
        _ => None,
    }
}

/// The exponent below which values are subnormal, evenly spaced.
fn least_exponent(dtype: DType) -> i32 {
    match dtype {
        DType::F64 => -1022,
        DType::F16 => -14,
        _ => -126,
    }
}
