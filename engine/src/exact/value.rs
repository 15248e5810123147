//! A number with its rounding error: standard deviation and radius.

use crate::exact::float::Float;
pub(crate) use crate::exact::float::U;

/// Standard deviation of one rounding error relative to the largest one: √(0.541 / 3), for mantissas that are
/// uniform on a logarithmic scale.
pub const K: f64 = 0.425;

/// Number of standard deviations that no error exceeds. A Gaussian exceeds it about once in 10¹⁵ draws.
pub const LAMBDA: f64 = 8.0;

/// Combines two independent errors: √(a² + b²), for numbers whose squares neither overflow nor underflow.
#[inline(always)]
pub(crate) fn both(a: f64, b: f64) -> f64 {
    (a * a + b * b).sqrt()
}

/// Returns the sum of the terms that are below the last bit of the sum, relative to the sum. Terms that small do
/// not change the sum if they are added last, one by one.
pub(crate) fn lost(terms: impl Iterator<Item = f64>, sum: f64) -> f64 {
    terms.filter(|term| *term < U * sum).sum::<f64>() / sum
}

/// Exact result of an operation in `f64`, before it is rounded to the profile's type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExactValue {
    /// Value without rounding, except for roundings that the profile states.
    pub value: f64,
    /// Standard deviation of the rounding error.
    pub sigma: f64,
    /// Largest rounding error of a correct engine.
    pub radius: f64,
}

impl ExactValue {
    /// Creates an exact number.
    #[inline(always)]
    pub fn sure(value: f64) -> Self {
        Self { value, sigma: 0.0, radius: 0.0 }
    }

    /// Creates a number with the error of many roundings.
    #[inline(always)]
    pub(crate) fn statistical(value: f64, sigma: f64) -> Self {
        Self { value, sigma, radius: LAMBDA * sigma }
    }

    /// Creates a number with the error of few roundings, which is at most `bound`.
    #[inline(always)]
    pub(crate) fn bounded(value: f64, bound: f64) -> Self {
        Self { value, sigma: bound / 2.0, radius: bound }
    }

    /// Adds a systematic error of up to `lost`, from terms that a sum may lose. This error does not average out.
    #[inline(always)]
    pub(crate) fn losing(self, lost: f64) -> Self {
        Self { radius: self.radius.max(LAMBDA / 2.0 * self.sigma + lost), ..self }
    }

    /// Raises sigma to that of a sequential sum. `walked` is the sum of the squared partial sums, each of which is
    /// rounded.
    pub(crate) fn walking(self, walked: f64) -> Self {
        let sigma = K * U * walked.sqrt();
        Self { sigma: self.sigma.max(sigma), radius: self.radius.max(LAMBDA * sigma), ..self }
    }

    /// Limits the error to `bound`.
    #[inline(always)]
    pub(crate) fn within(self, bound: f64) -> Self {
        Self { radius: self.radius.min(bound), ..self }
    }

    /// Adds an independent error to sigma.
    #[inline(always)]
    pub(crate) fn moved(self, sigma: f64, radius: f64) -> Self {
        Self { sigma: both(self.sigma, sigma), radius: self.radius + radius, ..self }
    }

    /// Adds an exact number.
    pub(crate) fn plus(self, known: f64) -> Self {
        let value = self.value + known;
        Self { value, ..self }.moved(K * U * value.abs(), U * value.abs())
    }

    /// Adds a bias to this sum of `n` terms, before the first term or after the last. If the bias comes first, partial
    /// sum k is about bias + value · k / n, and each partial sum is rounded.
    pub(crate) fn biased(self, bias: f64, n: f64) -> Self {
        let walked = n * bias * (bias + self.value);
        let sigma = both(self.sigma, K * U * walked.max(0.0).sqrt());
        let radius = self.radius + LAMBDA * (sigma - self.sigma);
        Self { sigma, radius, ..self }.plus(bias)
    }

    /// Multiplies by another uncertain number, with one rounding.
    pub(crate) fn times(self, other: Self) -> Self {
        let value = self.value * other.value;
        let radius =
            self.value.abs() * other.radius + other.value.abs() * self.radius + self.radius * other.radius;
        let sigma = both(self.value * other.sigma, other.value * self.sigma);
        Self { value, sigma, radius }.moved(K * U * value.abs(), U * value.abs())
    }

    /// Returns the root of a non-negative number, with one rounding. The root is steepest below the number, so the
    /// error is multiplied by the slope between the number and the lower end of its interval.
    pub(crate) fn root(self) -> Self {
        let root = self.value.sqrt();
        if root == 0.0 {
            return Self::bounded(0.0, self.radius.sqrt());
        }
        let lowest = (self.value - self.radius).max(0.0).sqrt();
        self.through(root, 1.0 / (root + lowest)).moved(K * U * root, U * root)
    }

    /// Propagates the error through a function: `value` is the function's value and `slope` its slope.
    #[inline(always)]
    pub(crate) fn through(self, value: f64, slope: f64) -> Self {
        Self { value, sigma: self.sigma * slope.abs(), radius: self.radius * slope.abs() }
    }

    /// Returns an exact value whose interval covers both numbers.
    pub(crate) fn or(self, other: Self) -> Self {
        let low = (self.value - self.radius).min(other.value - other.radius);
        let high = (self.value + self.radius).max(other.value + other.radius);
        Self::bounded((low + high) / 2.0, (high - low) / 2.0)
    }

    /// Extends the value to all numbers that round to it.
    pub(crate) fn unrounded(self, float: Float) -> Self {
        let (low, high) = float.cell(self.value);
        // Any of these numbers is possible, with equal probability.
        let (value, radius) = ((low + high) / 2.0, (high - low) / 2.0);
        Self { value, ..self }.moved(radius / 3f64.sqrt(), radius)
    }

    /// Rounds to a type in the middle of a computation. If both ends of the interval round to the same number, the
    /// result is exact. Otherwise the result covers the numbers between them. Rounding to `f32` is already part of the
    /// operation's sigma.
    #[inline(always)]
    pub(crate) fn rounded(self, float: Float) -> Self {
        if float == Float::F32 || !self.value.is_finite() { self } else { self.rounded_to(float) }
    }

    #[inline]
    fn rounded_to(self, float: Float) -> Self {
        let (low, high) = (float.round(self.value - self.radius), float.round(self.value + self.radius));
        Self::bounded((low + high) / 2.0, (high - low) / 2.0)
    }
}
