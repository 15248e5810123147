//! Exact evaluation of scores with ALiBi.

use crate::exact::input::InputTensor;
use crate::exact::operation::rows_around;
use crate::exact::value::{K, U};
use crate::exact::{ExactValue, Float, Operation, Profile};
use crate::tensor::Tensor;

/// Scores plus each head's slope times the distance from the query to the key.
pub(crate) struct BiasedScores {
    /// `[H, T, S]`
    pub(crate) scores: Tensor,
    /// `[H]`
    pub(crate) slopes: Vec<f32>,
    /// Index of the pass's first token among the keys.
    pub(crate) position: usize,
}

impl Operation for BiasedScores {
    /// Bounds the rounding errors of the slope, the bias and the sum, and that of a score which a fused kernel adds
    /// unrounded. Covers engines that count positions from the first key, whose biases are larger.
    ///
    /// The slope of head h is `base^n` with n up to h + 1. Such a power has h + 1 times the relative error of its base,
    /// which is up to `U` in engines that round it to f32, as ours does. All scores of a head share this error, so sigma
    /// does not contain it.
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let &[_, tokens, keys] = self.scores.shape() else { panic!("scores are [H, T, S]") };
        let scores = InputTensor::read(&self.scores, profile, rows_around(wanted, 1));
        let unit = profile.results.unit().max(U);
        let one = |&flat: &usize| {
            let (head, query, key) =
                (flat / keys / tokens, self.position + flat / keys % tokens, flat % keys);
            let (slope, score) = (f64::from(self.slopes[head]), scores.get(flat));
            let value = score.value + slope * (key as f64 - query as f64);
            let from_first = slope * key.max(query) as f64;
            let sum = value.abs().max((score.value + slope * key as f64).abs());
            let fused = if profile.results == Float::F32 { 0.0 } else { score.value.abs() };
            let bound = unit * (from_first + sum + fused) + 4.0 * U * from_first;
            let of_base = (head + 1) as f64 * U * from_first;
            ExactValue { value, ..score }.moved(K * bound, bound + of_base)
        };
        wanted.iter().map(one).collect()
    }

    /// Returns `f32`, since the bound already contains the rounding of the sum.
    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.scores]
    }
}
