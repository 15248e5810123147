//! Exact evaluation of mixtures of experts: routing weights, products with the chosen experts' matrices, and the
//! weighted sum. The chosen experts are inputs; the router's logits are judged separately.

use std::collections::HashMap;

use crate::exact::dot::dot;
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operand::{CodeRange, Operand, operand_type};
use crate::exact::operation::by_row;
use crate::exact::value::{K, U, both};
use crate::exact::{Choice, ExactValue, Float, Operands, Operation, Profile, is_given};
use crate::ops::activation::exact::sigmoid;
use crate::ops::attention::exact::softmax;
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction, choose, normalised, row_of_each};
use crate::ops::linear::exact::WeightRow;
use crate::parallel;
use crate::tensor::Tensor;
use crate::weight::Matrix;

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
    /// Returns the distance of the largest logit, which engines subtract in their softmax, from the largest of the chosen
    /// experts. A correction bias or groups may skip the expert with the largest logit.
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

/// Weights of engines that use the biased scores of the choice as weights: `[T, k]` to `[T, k]`.
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

/// Multiplies a weight by the scaling factor of the routing. `used` terms were added in its divisor.
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

    /// Divides values by their sum.
    fn divided_by_sum(&self, values: Vec<ExactValue>, profile: &Profile) -> Vec<ExactValue> {
        let sum: f64 = values.iter().map(|value| value.value).sum::<f64>() + f64::from(self.added);
        // The sum of the values, and that with the added number.
        let rounding = match profile.results {
            short if self.rounds_scores && short != Float::F32 => 2.0 * short.unit() * sum.abs(),
            _ => 0.0,
        };
        let sigma = values.iter().map(|value| value.sigma.powi(2)).sum::<f64>().sqrt() + rounding;
        let radius: f64 = values.iter().map(|value| value.radius).sum::<f64>() + rounding;
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

/// Choice of experts: `[T, E]` to `[T, k]`. Scores that differ by less than their errors are ties, which
/// the verdict decides.
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

/// Products with the matrices of the chosen experts: `[T, cols]` or `[T, k, cols]` to `[T, k, rows]`.
pub(crate) struct ExpertProducts {
    /// `[T, cols]`, or `[T, k, cols]`: each chosen expert's own activations
    pub(crate) x: Tensor,
    /// `[rows, cols]` of each expert
    pub(crate) w: Vec<Matrix>,
    /// `[T, k]`, ascending
    pub(crate) chosen: Tensor,
}

impl Operation for ExpertProducts {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let mut exacts = self.products(profile, wanted);
        if profile.operands.tf32().is_some() {
            self.allow_whole_rows(profile, wanted, &mut exacts);
        }
        exacts
    }

    fn is_light(&self) -> bool {
        false
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Tf32, Choice::Tf32Away, Choice::Tf32Cut, Choice::Truncates]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }

    fn dependence(&self) -> f64 {
        (self.w[0].rows as f64 / self.w[0].cols as f64).max(1.0)
    }

    fn is_unbiased(&self, profile: &Profile) -> bool {
        let is_coded = Float::of(operand_type(profile, self.w[0].dtype)).is_none();
        is_given(&self.x) && !profile.truncates && !is_coded
    }
}

impl ExpertProducts {
    fn products(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let rows = self.w[0].rows;
        let operands = self.operands(profile, wanted);
        let each = self.operand_of_each(profile);
        // Sorted by expert and output, so that each row of weights is decoded once for all tokens.
        let place = |index: usize| {
            let (entry, output) = (wanted[index] / rows, wanted[index] % rows);
            (self.chosen.data()[entry] as usize, output)
        };
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_unstable_by_key(|&index| place(index));
        let groups: Vec<&[usize]> = order.chunk_by(|&a, &b| place(a) == place(b)).collect();
        let of_group = |group: usize| {
            let indices = groups[group];
            let (expert, output) = place(indices[0]);
            let row = WeightRow::new(&self.w[expert], output, profile);
            let at = |&index: &usize| row.times(&operands[&each(wanted[index] / rows)], None, profile);
            indices.iter().map(at).collect::<Vec<_>>()
        };
        let found = parallel::map(groups.len(), self.w[0].cols, of_group);
        let mut exacts = vec![ExactValue::default(); wanted.len()];
        for (indices, found) in groups.into_iter().zip(found) {
            indices.iter().zip(found).for_each(|(&index, exact)| exacts[index] = exact);
        }
        exacts
    }

    /// Widens the results of experts that one token of the pass chooses: cuBLAS computes products of one row in plain
    /// f32, unless other sequences of a batch add rows.
    fn allow_whole_rows(&self, profile: &Profile, wanted: &[usize], exacts: &mut [ExactValue]) {
        let mut tokens = vec![0; self.w.len()];
        self.chosen.data().iter().for_each(|&expert| tokens[expert as usize] += 1);
        let is_alone =
            |&index: &usize| tokens[self.chosen.data()[wanted[index] / self.w[0].rows] as usize] == 1;
        let alone: Vec<usize> = (0..wanted.len()).filter(is_alone).collect();
        let whole = Profile { operands: Operands::Whole, truncates: false, ..*profile };
        let flats: Vec<usize> = alone.iter().map(|&index| wanted[index]).collect();
        for (index, exact) in alone.into_iter().zip(self.products(&whole, &flats)) {
            exacts[index] = exacts[index].or(exact);
        }
    }

    /// Returns the index of the operand that each entry of `chosen` reads: its row of activations, or its own operand
    /// if the codes of activations have the scale of the expert.
    fn operand_of_each(&self, profile: &Profile) -> Box<dyn Fn(usize) -> usize + Sync> {
        match has_stored_scales(profile) {
            true => Box::new(|entry| entry),
            false => Box::new(row_of_each(&self.x, self.chosen.row_len())),
        }
    }

    /// Returns the operands that the requested results need.
    fn operands(&self, profile: &Profile, wanted: &[usize]) -> HashMap<usize, Operand> {
        let rows = self.w[0].rows;
        let each = self.operand_of_each(profile);
        let mut needed: Vec<usize> = wanted.iter().map(|flat| each(flat / rows)).collect();
        needed.dedup();
        let x = InputTensor::of(&self.x, profile);
        let operand = |index: usize| (index, self.operand(&x, profile, index));
        parallel::map(needed.len(), 4 * self.w[0].cols, |index| operand(needed[index])).into_iter().collect()
    }

    fn operand(&self, x: &InputTensor, profile: &Profile, index: usize) -> Operand {
        let (width, dtype) = (self.w[0].cols, self.w[0].dtype);
        if !has_stored_scales(profile) {
            return Operand::new(x.part(index * width, width), profile, dtype, None);
        }
        let row = row_of_each(&self.x, self.chosen.row_len())(index);
        let input = self.w[self.chosen.data()[index] as usize].input_scale();
        let profile =
            Profile { activation_codes: profile.activation_codes.filter(|_| input.is_some()), ..*profile };
        Operand::new(x.part(row * width, width), &profile, dtype, input.map(CodeRange::Stored))
    }
}

/// Returns true if the codes of activations have scales that are stored with the matrices.
fn has_stored_scales(profile: &Profile) -> bool {
    profile.activation_codes.is_some_and(|codes| codes.are_stored())
}

/// The weighted sum of the chosen experts' outputs: `[T, k, d]`, `[T, k]` to `[T, d]`.
pub(crate) struct ExpertMixture {
    /// `[T, k, d]`
    pub(crate) outputs: Tensor,
    /// `[T, k]`
    pub(crate) weights: Tensor,
    /// Scores in the choice, which decide the order of the sum: `[T, k]`
    pub(crate) scores: Tensor,
    /// True if the architecture's authors round the sum only. Other engines may round products and partial sums.
    pub(crate) is_whole: bool,
}

impl Operation for ExpertMixture {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let &[_, used, width] = self.outputs.shape() else { panic!("outputs are [T, k, d]") };
        let (outputs, weights) =
            (InputTensor::of(&self.outputs, profile), InputTensor::of(&self.weights, profile));
        let one = |&flat: &usize| {
            let (token, column) = (flat / width, flat % width);
            let product = |slot: usize| {
                let (weight, output) =
                    (weights.get(token * used + slot), outputs.get((token * used + slot) * width + column));
                weight.times(output)
            };
            let whole: Vec<ExactValue> = (0..used).map(product).collect();
            let terms: Vec<ExactValue> = whole.iter().map(|term| term.rounded(profile.weighted)).collect();
            let mixed = match profile.mixed {
                Float::F32 => sum(&terms),
                short => sum_in(short, &terms),
            };
            let is_rounded = [profile.weighted, profile.mixed] != [Float::F32; 2];
            if self.is_whole && is_rounded { mixed.or(sum(&whole)) } else { mixed }
        };
        wanted.iter().map(one).collect()
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Weighted, Choice::Mixed]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.outputs, &self.weights]
    }
}

/// Sums the terms, for any order of summation.
fn sum(terms: &[ExactValue]) -> ExactValue {
    dot(
        &InputValues::new(terms.iter().copied()),
        &InputValues::new(terms.iter().map(|_| ExactValue::sure(1.0))),
    )
}

/// Sums expert after expert in index order, and rounds each partial sum.
fn sum_in(short: Float, terms: &[ExactValue]) -> ExactValue {
    let add = |sum: ExactValue, term: &ExactValue| {
        let value = sum.value + term.value;
        ExactValue { value, sigma: sum.sigma.hypot(term.sigma), radius: sum.radius + term.radius }
            .moved(K * U * value.abs(), U * value.abs())
            .rounded(short)
    };
    let (first, rest) = terms.split_first().expect("a token chooses an expert");
    rest.iter().fold(*first, add)
}
