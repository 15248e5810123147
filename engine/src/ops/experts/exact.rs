//! Exact evaluation of mixtures of experts: routing weights, products with the chosen experts' matrices, and the
//! weighted sum. The chosen experts are inputs; the router's logits are judged separately.

mod mixture;
mod products;

use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operation::by_row;
use crate::exact::value::{K, U, both};
use crate::exact::{Choice, ExactValue, Float, Operation, Profile};
use crate::ops::activation::exact::sigmoid;
use crate::ops::attention::exact::softmax;
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction, choose, normalised};
use crate::tensor::Tensor;

pub(crate) use mixture::ExpertMixture;
pub(crate) use products::ExpertProducts;

/// Weights of the chosen experts: `[T, E]`, `[T, k]` to `[T, k]`.
pub(crate) struct ExpertWeights {
    /// `[T, E]`
    pub(crate) logits: Tensor,
    /// `[T, k]`, ascending
    pub(crate) chosen: Tensor,
    /// Routing rules.
    pub(crate) routing: ExpertRouting,
}

impl Operation for ExpertWeights {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (experts, used) = (self.logits.row_len(), self.chosen.row_len());
        let logits = InputTensor::of(&self.logits, profile);
        let of_token = |flats: &[usize]| {
            let token = flats[0] / used;
            let all = logits.part(token * experts, experts);
            let chosen = self.chosen.row(token).iter().map(|&expert| expert as usize);
            let weights: Vec<ExactValue> = match (self.routing.function, self.routing.is_normalised) {
                // With and without other experts in the softmax, the divisor is the same for all chosen experts.
                (ScoreFunction::Softmax, true) => {
                    let skipped = self.skipped(&all.values, chosen.clone());
                    let weights = softmax(&InputValues::new(chosen.map(|expert| all.get(expert))), profile);
                    // An engine may subtract the largest logit of all experts, not of the chosen ones: exponents are
                    // `skipped` lower.
                    let moved = |weight: ExactValue| {
                        let error = 2.0 * U * skipped * weight.value;
                        weight.moved(K * error, error)
                    };
                    weights.into_iter().map(moved).collect()
                }
                (ScoreFunction::Softmax, false) => {
                    let weights = softmax(&all, profile);
                    chosen.map(|expert| weights[expert]).collect()
                }
                (ScoreFunction::Sigmoid, is_normalised) => {
                    let score =
                        |expert| self.routing.score(sigmoid(all.get(expert), profile.library_ulps), profile);
                    let scores = chosen.map(score).collect();
                    let shares = |scores| self.routing.divided_by_sum(scores, profile);
                    let weights = if is_normalised { shares(scores) } else { scores };
                    match self.routing.scale == 1.0 {
                        true => weights,
                        // Engines round before they multiply by the factor.
                        false => {
                            weights.into_iter().map(|weight| self.routing.score(weight, profile)).collect()
                        }
                    }
                }
            };
            let one = |&flat: &usize| {
                let expert = self.chosen.row(token)[flat % used] as usize;
                let each =
                    self.routing.scales.get(expert).map_or(1.0, |&by| profile.weights.round(by.into()));
                scaled(weights[flat % used], f64::from(self.routing.scale) * each, used)
            };
            flats.iter().map(one).collect::<Vec<_>>()
        };
        by_row(wanted, used).flat_map(of_token).collect()
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.expert_weights
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::ExpertWeights]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.logits]
    }
}

impl ExpertWeights {
    /// Returns the difference between the largest logit of all experts and the largest logit of the chosen ones.
    /// Engines subtract the largest logit in their softmax. A correction bias or expert groups may exclude the expert
    /// that has it.
    fn skipped(&self, logits: &[f64], chosen: impl Iterator<Item = usize>) -> f64 {
        let may_skip = !self.routing.bias.is_empty() || self.routing.groups.is_some();
        if !may_skip || self.routing.is_of_chosen {
            return 0.0;
        }
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let of_chosen = chosen.map(|expert| logits[expert]).fold(f64::NEG_INFINITY, f64::max);
        Some(largest - of_chosen).filter(|skipped| skipped.is_finite()).unwrap_or(0.0)
    }
}

/// Routing weights of engines that wrongly use the biased scores as weights: `[T, k]` to `[T, k]`.
pub(crate) struct BiasedWeights {
    /// Scores of the chosen experts, `[T, k]`.
    pub(crate) scores: Tensor,
    /// Routing rules.
    pub(crate) routing: ExpertRouting,
}

impl BiasedWeights {
    /// Computes the weights.
    pub(crate) fn weights(&self) -> Tensor {
        let weights = self.scores.clone();
        self.routing.scaled(match self.routing.is_normalised {
            true => normalised(weights, |row| row.iter().sum::<f32>() + self.routing.added),
            false => weights,
        })
    }
}

impl Operation for BiasedWeights {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let used = self.scores.row_len();
        let scores = InputTensor::of(&self.scores, profile);
        let of_token = |flats: &[usize]| {
            let first = flats[0] / used * used;
            let all: Vec<ExactValue> = (first..first + used).map(|flat| scores.get(flat)).collect();
            let weights =
                if self.routing.is_normalised { self.routing.divided_by_sum(all, profile) } else { all };
            let one = |&flat: &usize| scaled(weights[flat % used], self.routing.scale.into(), used);
            flats.iter().map(one).collect::<Vec<_>>()
        };
        by_row(wanted, used).flat_map(of_token).collect()
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.expert_weights
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.scores]
    }
}

/// Multiplies a weight by the scaling factor of the routing. `used` is the number of terms in the weight's divisor.
fn scaled(weight: ExactValue, scale: f64, used: usize) -> ExactValue {
    let weight = weight.through(weight.value * scale, scale);
    let size = U * weight.value.abs();
    weight.moved(2.0 * K * size, (used as f64 + 6.0) * size)
}

impl ExpertRouting {
    /// Returns a score. If the architecture's authors round scores, allows both the rounded and the unrounded score,
    /// since other engines may not round.
    fn score(&self, score: ExactValue, profile: &Profile) -> ExactValue {
        if self.rounds_scores { score.or(score.rounded(profile.results)) } else { score }
    }

    /// Divides values by their sum. If the architecture's authors round the sum, allows both the rounded and the unrounded
    /// sum, like [`Self::score`].
    fn divided_by_sum(&self, values: Vec<ExactValue>, profile: &Profile) -> Vec<ExactValue> {
        let ExactValue { value: sum, sigma, radius } = self.sum(&values, profile);
        let size = sum.abs();
        // The sum is uncertain by less than itself, unless values of both signs cancel out.
        let least = (size - radius).max(size * U);
        let divided = |value: ExactValue| {
            let share = value.value / sum;
            ExactValue {
                value: share,
                sigma: both(value.sigma, share.abs() * sigma) / size,
                radius: (value.radius + share.abs() * radius) / least,
            }
        };
        values.into_iter().map(divided).collect()
    }

    /// Returns the divisor of the weights: their sum plus a constant.
    fn sum(&self, values: &[ExactValue], profile: &Profile) -> ExactValue {
        let (added, short) = (f64::from(self.added), profile.results);
        let terms = ExactValue {
            value: values.iter().map(|value| value.value).sum(),
            sigma: values.iter().map(|value| value.sigma.powi(2)).sum::<f64>().sqrt(),
            radius: values.iter().map(|value| value.radius).sum(),
        };
        let sum = ExactValue { value: terms.value + added, ..terms };
        if !self.rounds_scores || short == Float::F32 {
            return sum;
        }
        // The rounded sum may be of terms that were added in `f32` in any order.
        let terms = terms.moved(0.0, U * values.len() as f64 * terms.value.abs());
        sum.or(terms.plus(added).rounded(short)).or(terms.rounded(short).plus(added).rounded(short))
    }
}

/// Scores by which experts are chosen: `[T, E]` to `[T, E]`.
pub(crate) struct ExpertScores {
    /// `[T, E]`
    pub(crate) logits: Tensor,
    /// Routing rules.
    pub(crate) routing: ExpertRouting,
}

impl Operation for ExpertScores {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let experts = self.logits.row_len();
        let logits = InputTensor::of(&self.logits, profile);
        let of_token = |flats: &[usize]| {
            let all = logits.part(flats[0] / experts * experts, experts);
            let scores: Vec<ExactValue> = match self.routing.function {
                ScoreFunction::Softmax => softmax(&all, profile),
                ScoreFunction::Sigmoid => {
                    (0..experts).map(|expert| sigmoid(all.get(expert), profile.library_ulps)).collect()
                }
            };
            let one = |&flat: &usize| {
                let score = self.routing.score(scores[flat % experts], profile);
                let bias = self.routing.bias.get(flat % experts);
                let Some(&bias) = bias else { return score };
                let (bias, value) = (f64::from(bias), score.value + f64::from(bias));
                // transformers rounds the bias like a weight if it rounds the logits; others need not.
                let moved = match self.routing.precision {
                    RouterPrecision::Activations => (profile.weights.round(bias) - bias).abs(),
                    RouterPrecision::Unrounded | RouterPrecision::Whole => 0.0,
                };
                ExactValue { value, ..score }.moved(K * U * value.abs(), U * value.abs() + moved)
            };
            flats.iter().map(one).collect::<Vec<_>>()
        };
        by_row(wanted, experts).flat_map(of_token).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.logits]
    }
}

/// Choice of experts: `[T, E]` to `[T, k]`. Scores that differ by less than their errors are ties, which the
/// verdict handles.
pub(crate) struct ExpertChoice {
    /// `[T, E]`
    pub(crate) scores: Tensor,
    /// Routing rules.
    pub(crate) routing: ExpertRouting,
}

impl Operation for ExpertChoice {
    fn at(&self, _: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let chosen = choose(&self.scores, &self.routing);
        wanted.iter().map(|&flat| ExactValue::sure(chosen.data()[flat].into())).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.scores]
    }
}
