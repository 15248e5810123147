//! Precision of values: the step between neighbouring numbers of their computed and stored types.

use crate::weight::DType;

/// Types on both sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValuePrecision {
    /// Type that the operation's results are rounded to. Two correct engines may round a value to neighbouring
    /// numbers.
    pub computed: DType,
    /// Type that the candidate's values were stored in, if it is coarser than the computed type. Each stored value then
    /// represents all values that round to it.
    pub candidate: Option<DType>,
    /// Type that the reference's values were stored in, if it is coarser than the computed type.
    pub reference: Option<DType>,
    /// Decimal steps to which the candidate's and the reference's values were rounded; 0 if they were not.
    pub steps: [f64; 2],
}

impl ValuePrecision {
    /// Precision of values that both sides computed and stored in `f32`.
    pub const F32: Self = Self { computed: DType::F32, candidate: None, reference: None, steps: [0.0; 2] };

    /// Returns the largest possible distance between two stored values whose original values are equal. The stored
    /// values include their scales.
    #[inline]
    pub fn slack(&self, [candidate, reference]: [f64; 2], scales: [f64; 2]) -> f64 {
        let stored =
            half_step(self.candidate, candidate, scales[0]) + half_step(self.reference, reference, scales[1]);
        stored + (self.steps[0] + self.steps[1]) / 2.0
    }

    /// Returns the precision of each side's log-probabilities.
    pub fn slacks(&self) -> [LogprobPrecision; 2] {
        let of =
            |stored: Option<DType>, step| LogprobPrecision { dtype: stored.unwrap_or(self.computed), step };
        [of(self.candidate, self.steps[0]), of(self.reference, self.steps[1])]
    }

    /// Returns the distance from a value to its neighbour in the computed type.
    pub fn step(&self, value: f64) -> f64 {
        self.spacing().at(value)
    }

    /// Returns the spacing of the computed type.
    pub(super) fn spacing(&self) -> Spacing {
        Spacing::of(self.computed)
    }

    /// Returns true if both sides store values as they were computed.
    pub(super) fn is_plain(&self) -> bool {
        self.candidate.is_none() && self.reference.is_none() && self.steps == [0.0; 2]
    }

    /// Returns the spacing of the types in which candidate and reference were stored; `None` if neither is coarser than
    /// the computed type.
    pub(super) fn storage(&self) -> Option<[Spacing; 2]> {
        let of = |dtype: Option<DType>, step: f64| {
            let stored = dtype.map_or(Spacing { fraction: 0.0, least: 0.0 }, Spacing::of);
            Spacing { least: stored.least.max(step), ..stored }
        };
        (!self.is_plain()).then(|| [of(self.candidate, self.steps[0]), of(self.reference, self.steps[1])])
    }
}

/// Precision of log-probabilities.
#[derive(Clone, Copy, Debug)]
pub struct LogprobPrecision {
    dtype: DType,
    step: f64,
}

impl LogprobPrecision {
    /// Returns the largest amount by which a reported log-probability can be below the true one. It is the sum of half
    /// a step of its type, half a step of its printed decimals, and the `f32` rounding error of the subtracted
    /// log-sum-exp (at most 128).
    #[inline]
    pub fn at(self, log_probability: f64) -> f64 {
        const LARGEST: f64 = 128.0;
        half_step(Some(self.dtype), log_probability, 1.0)
            + self.step / 2.0
            + LARGEST * f64::from(f32::EPSILON) / 2.0
    }
}

/// Returns the stored type, if it is coarser than the computed type.
pub fn coarser(stored: DType, computed: DType) -> Option<DType> {
    (fraction_bits(stored) < fraction_bits(computed)).then_some(stored)
}

/// Returns the number nearest to `own` whose distance from `stored` is at most `half`. It is the most favourable
/// original of a rounded value.
pub fn nearest_within(half: f64, stored: f64, own: f64) -> f64 {
    if own.is_nan() || !stored.is_finite() { stored } else { own.clamp(stored - half, stored + half) }
}

/// Returns half the spacing of a stored type at a value that includes its scale; 0 if `dtype` is `None`.
#[inline]
pub fn half_step(dtype: Option<DType>, value: f64, scale: f64) -> f64 {
    dtype.map_or(0.0, |dtype| Spacing::of(dtype).at(value / scale) / 2.0 * scale)
}

/// Spacing of a type's numbers: a fraction of their power of two, and at least the subnormal spacing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spacing {
    fraction: f64,
    least: f64,
}

impl Spacing {
    /// Returns the spacing of a type; zero for a type that is not a floating type.
    #[inline]
    fn of(dtype: DType) -> Self {
        let Some(bits) = fraction_bits(dtype) else { return Self { fraction: 0.0, least: 0.0 } };
        Self { fraction: power_of_two(-bits), least: power_of_two(least_exponent(dtype) - bits) }
    }

    /// Returns the spacing at a value, away from zero; 0 for NaN and infinity.
    fn at(self, value: f64) -> f64 {
        if value.is_finite() { self.at_finite(value) } else { 0.0 }
    }

    /// Returns the spacing at a finite value.
    #[inline(always)]
    pub(super) fn at_finite(self, value: f64) -> f64 {
        const EXPONENT: u64 = 0x7ff << 52;
        let spacing = f64::from_bits(value.to_bits() & EXPONENT) * self.fraction;
        if spacing > self.least { spacing } else { self.least }
    }

    pub(super) fn halved(self) -> Self {
        Self { fraction: self.fraction / 2.0, least: self.least / 2.0 }
    }
}

/// Returns a power of 2, including subnormal ones.
#[inline]
fn power_of_two(exponent: i32) -> f64 {
    match exponent + 1023 {
        biased @ 1.. => f64::from_bits((biased as u64) << 52),
        below => f64::from_bits(1 << (51 + below)),
    }
}

/// Returns the number of fraction bits; `None` for types without floating-point numbers.
#[inline]
fn fraction_bits(dtype: DType) -> Option<i32> {
    match dtype {
        DType::F64 => Some(52),
        DType::F32 => Some(23),
        DType::F16 => Some(10),
        DType::BF16 => Some(7),
        DType::F8_E4M3 => Some(3),
        DType::F8_E5M2 => Some(2),
        _ => None,
    }
}

/// Returns the exponent below which values are subnormal and evenly spaced.
#[inline]
fn least_exponent(dtype: DType) -> i32 {
    match dtype {
        DType::F64 => -1022,
        DType::F16 | DType::F8_E5M2 => -14,
        DType::F8_E4M3 => -6,
        _ => -126,
    }
}
