//! Least-squares estimate of a factor, with its uncertainty and the number with the fewest digits within the
//! uncertainty.

use crate::change::{ChangeValue, SiteContext, rounded_to};
use crate::exact::Float;
use crate::numerics::Numerics;

/// Estimate of `c` in `y = c · x` by least squares.
pub(crate) struct FactorEstimate {
    factor: f64,
    /// Uncertainty of the factor.
    error: f64,
}

impl FactorEstimate {
    /// Estimates the factor from pairs of x and y; pairs with NaN are ignored.
    pub(crate) fn read(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let pairs: Vec<(f64, f64)> = pairs.filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        let squares: f64 = pairs.iter().map(|(x, _)| x * x).sum();
        let factor = pairs.iter().map(|(x, y)| x * y).sum::<f64>() / squares;
        // Rounding errors grow with the value, so each pair is weighted by its residual.
        let left: f64 = pairs.iter().map(|(x, y)| (x * (y - factor * x)).powi(2)).sum();
        let scatter = left.sqrt() / squares;
        // Errors rarely exceed four standard deviations. The factor and the number that it multiplies are both f32.
        let error = 4.0 * scatter + 4.0 * factor.abs() * f64::from(f32::EPSILON);
        (factor.is_finite() && error.is_finite()).then_some(Self { factor, error })
    }

    /// Raises the uncertainty to at least `part` of the factor, because people choose numbers with few digits.
    pub(crate) fn chosen_within(self, part: f64) -> Self {
        Self { error: self.error.max(part * self.factor.abs()), ..self }
    }

    /// Returns true if a number is within the uncertainty.
    pub(crate) fn holds(&self, number: f64) -> bool {
        (number - self.factor).abs() <= self.error
    }

    /// Returns the logarithm of the factor, with the fewest digits within the uncertainty; negative infinity if the factor may
    /// be 0, and `None` if it is negative.
    pub(crate) fn plain_logarithm(&self) -> Option<f64> {
        if self.holds(0.0) {
            return Some(f64::NEG_INFINITY);
        }
        let logarithm = Some(self.factor.ln()).filter(|logarithm| logarithm.is_finite())?;
        let mut plain = [0.0].into_iter().chain((1..=7).map(|digits| rounded_to(digits, logarithm)));
        Some(plain.find(|plain| self.holds(plain.exp())).unwrap_or(logarithm))
    }

    /// Returns the numbers of `known` within the uncertainty, exact or rounded to the result type. If none fits,
    /// returns the number with the fewest digits.
    pub(crate) fn values(&self, at: &SiteContext, known: &[f64]) -> Vec<ChangeValue> {
        let short = Float::of(at.n.activation_type()).unwrap_or(Float::F32);
        let is_near = |number: f64| self.holds(number) || self.holds(short.round(number));
        let mut near: Vec<f64> = known.iter().copied().filter(|&number| is_near(number)).collect();
        near.sort_by(|one, other| (one - self.factor).abs().total_cmp(&(other - self.factor).abs()));
        if near.is_empty() {
            let plain = (1..=9).map(|digits| rounded_to(digits, self.factor)).find(|&number| is_near(number));
            near.push(plain.unwrap_or(self.factor));
        }
        near.into_iter().map(ChangeValue::Number).collect()
    }
}
