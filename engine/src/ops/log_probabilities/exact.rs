//! Exact evaluation of log-probabilities: logits minus the logarithm of the sum of all exponentials.

use crate::exact::operation::by_row;
use crate::exact::value::{K, U};
use crate::exact::{ExactValue, Float, LAMBDA, Operation, Profile, evaluate, node_of};
use crate::ops::log_probabilities::Picks;
use crate::parallel;
use crate::tensor::Tensor;

/// log softmax(logits / temperature) at some ids of each row, always in `f32`.
pub(crate) struct LogProbabilities {
    /// `[T, V]`
    pub(crate) logits: Tensor,
    /// Token ids of each row.
    pub(crate) picks: Picks,
    /// Divisor of the logits.
    pub(crate) temperature: f32,
}

impl Operation for LogProbabilities {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let width = self.picks.width();
        let rows: Vec<&[usize]> = by_row(wanted, width).collect();
        let of_row = |row: usize| self.row(profile, rows[row]);
        parallel::map(rows.len(), 8 * self.logits.row_len(), of_row).concat()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.logits]
    }
}

impl LogProbabilities {
    fn row(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (width, row) = (self.picks.width(), wanted[0] / self.picks.width());
        let ids = self.picks.row(row);
        let logits = self.logits_of(profile, self.picks.rows[row]);
        let sum = match self.picks.is_closed {
            true => LogSum::of(&ids.iter().map(|&id| logits[id as usize]).collect::<Vec<_>>(), profile),
            false => LogSum::of(&logits, profile),
        };
        wanted.iter().map(|flat| sum.less(logits[ids[flat % width] as usize])).collect()
    }

    /// Returns one row of logits with their uncertainty, divided by the temperature. All rows of a large vocabulary
    /// would not fit in memory.
    fn logits_of(&self, profile: &Profile, row: usize) -> Vec<ExactValue> {
        let vocabulary = self.logits.row_len();
        let wanted: Vec<usize> = (row * vocabulary..(row + 1) * vocabulary).collect();
        let node = self.logits.origins().iter().find_map(node_of);
        let float = node.map_or(Float::F32, |node| node.stage.results(profile));
        let temperature = f64::from(self.temperature);
        let divided = |x: ExactValue| {
            let value = x.value / temperature;
            let rounding = if temperature == 1.0 { 0.0 } else { U * value.abs() };
            x.through(value, 1.0 / temperature).moved(K * rounding, rounding)
        };
        let logits = evaluate(&self.logits, profile.made, &wanted);
        logits.into_iter().map(|x| divided(x.rounded(float))).collect()
    }
}

/// log Σ exp z, with its sensitivity to errors of z.
struct LogSum {
    value: f64,
    /// Sum of the logits' errors, weighted by probability: Σ p·sigma and Σ p·radius. This is the error of the logarithm
    /// if all logit errors have the same sign.
    sigma: f64,
    radius: f64,
    /// Factor for the curvature of the exponential: e^(2r), where r is the largest error bound.
    bend: f64,
    /// The engine's own rounding error in the sum.
    own: ExactValue,
}

impl LogSum {
    fn of(logits: &[ExactValue], profile: &Profile) -> Self {
        let max = logits.iter().map(|z| z.value).fold(f64::NEG_INFINITY, f64::max);
        let value = max + logits.iter().map(|z| (z.value - max).exp()).sum::<f64>().ln();
        let mean =
            |of: fn(&ExactValue) -> f64| logits.iter().map(|z| (z.value - value).exp() * of(z)).sum::<f64>();
        let widest = logits.iter().map(|z| z.radius).fold(0.0, f64::max);
        // Exponentials have the library's error and the rounding error of their arguments, and are then summed.
        let n = logits.len() as f64;
        let summing = K * U * (n / 3.0).sqrt();
        let slowest = if profile.one_by_one { n * U } else { LAMBDA * summing };
        let few = U * (profile.library_ulps * 2.0 + 2.0 + max.abs() + value.abs());
        let own = ExactValue::bounded(value, few).moved(summing, slowest);
        Self { value, sigma: mean(|z| z.sigma), radius: mean(|z| z.radius), bend: (2.0 * widest).exp(), own }
    }

    /// Subtracts the logarithm from a logit. The logit's error affects both: |d log p| ≤ (1 - p)·|dz| + Σ p·|dz| over
    /// the others.
    fn less(&self, z: ExactValue) -> ExactValue {
        let value = z.value - self.value;
        let p = value.exp().min(1.0);
        let travelled = |own: f64, all: f64| (1.0 - p) * own + (all - p * own).max(0.0);
        let rounding = U * (z.value.abs() + 2.0 * value.abs());
        ExactValue {
            value,
            sigma: travelled(z.sigma, self.sigma),
            radius: travelled(z.radius, self.radius) * self.bend,
        }
        .moved(self.own.sigma.hypot(K * rounding), self.own.radius + rounding)
    }
}
