//! A factor that is read from values: with how far rounding may have moved it, and the plainest number that is so near.

use crate::change::{At, Value, rounded_to};
use crate::exact::Float;
use crate::numerics::Numerics;

/// `y = c·x`, by least squares.
pub(super) struct Scaled {
    factor: f64,
    /// How far it may be off.
    error: f64,
}

impl Scaled {
    /// From pairs of x and y; those that are not numbers say nothing.
    pub(super) fn read(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let (mut count, mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0, 0.0);
        for (x, y) in pairs.filter(|(x, y)| x.is_finite() && y.is_finite()) {
            count += 1.0;
            xx += x * x;
            xy += x * y;
            yy += y * y;
        }
        let factor = xy / xx;
        let left = (yy - factor * xy).max(0.0);
        let scatter = (left / (count - 1.0f64).max(1.0) / xx).sqrt();
        // A factor is an f32, and four deviations are hardly ever exceeded.
        let error = 4.0 * scatter + factor.abs() * f64::from(f32::EPSILON);
        (factor.is_finite() && error.is_finite()).then_some(Self { factor, error })
    }

    /// The numbers of `known` that it may be, as they are or rounded to the type of the results; where none is, the number
    /// with the fewest digits.
    pub(super) fn values(&self, at: &At, known: &[f64]) -> Vec<Value> {
        let short = Float::of(at.n.activation_type()).unwrap_or(Float::F32);
        let is_near = |number: f64| (number - self.factor).abs() <= self.error;
        let mut near: Vec<f64> =
            known.iter().copied().filter(|&number| is_near(number) || is_near(short.round(number))).collect();
        near.sort_by(|one, other| (one - self.factor).abs().total_cmp(&(other - self.factor).abs()));
        if near.is_empty() {
            let plain = (1..=9).map(|digits| rounded_to(digits, self.factor)).find(|&number| is_near(number));
            near.push(plain.unwrap_or(self.factor));
        }
        near.into_iter().map(Value::Number).collect()
    }
}
