//! A sample with its error model: the input of all tests.

use std::ops::Range;

use super::logprob_error::{LogprobError, median};
use super::rounding_scales::LogOddsScale;
use super::token_sample::{SampleSequence, ScoredToken, TokenSample};

/// A sample of tokens with their scaled differences, and the expected size of rounding.
pub(super) struct PairView<'s> {
    pub(crate) sample: &'s TokenSample,
    pub(crate) error: LogprobError,
    /// Scale of rounding differences for the types that the files state.
    pub(crate) scale: Option<LogOddsScale>,
    /// Scaled difference of each token.
    pub(crate) scaled: Vec<f64>,
    /// Root mean square of the scaled differences in the median sequence.
    pub(crate) typical: f64,
}

impl<'s> PairView<'s> {
    pub(super) fn new(sample: &'s TokenSample, error: LogprobError, scale: Option<LogOddsScale>) -> Self {
        let scaled: Vec<f64> = sample.tokens.iter().map(|token| error.scaled(token)).collect();
        let all = sample.sequences.iter().map(|sequence| rms(&scaled[sequence.tokens.clone()]));
        let typical = median(all);
        Self { sample, error, scale, scaled, typical }
    }

    /// Returns the scaled differences of a sequence.
    pub(super) fn scaled_of(&self, sequence: &SampleSequence) -> &[f64] {
        &self.scaled[sequence.tokens.clone()]
    }

    /// Returns the largest scale that rounding may cause. Without stated types, returns the scale of bf16.
    pub(super) fn limit(&self) -> f64 {
        let coarsest = || LogOddsScale::named("bf16").map_or(f64::INFINITY, |scale| scale.largest);
        self.scale.map_or_else(coarsest, |scale| scale.largest)
    }

    /// Returns the root mean square of all scaled differences.
    pub(super) fn rms(&self) -> f64 {
        rms(&self.scaled)
    }

    /// Returns true if a difference is within a few standard deviations of the largest rounding scale.
    pub(super) fn is_rounding(&self, token: &ScoredToken) -> bool {
        token.delta().abs() <= 6.0 * self.error.sigma(token, self.limit())
    }

    /// Returns the largest mean difference that can result if all tokens have the same rounding error of one step.
    pub(super) fn largest_bias(&self) -> f64 {
        let sigma = |token: &ScoredToken| self.error.sigma(token, self.limit()).powi(2);
        let square: f64 = self.sample.tokens.iter().map(sigma).sum();
        0.5 * (square / self.sample.tokens.len().max(1) as f64).sqrt()
    }

    /// Returns the share of the squared differences that belongs to some tokens.
    pub(super) fn share(&self, is_there: impl Fn(usize) -> bool) -> f64 {
        let square = |index: usize| self.sample.tokens[index].delta().powi(2);
        let all: f64 = (0..self.sample.tokens.len()).map(square).sum();
        let there: f64 = (0..self.sample.tokens.len()).filter(|&index| is_there(index)).map(square).sum();
        if all > 0.0 { there / all } else { 0.0 }
    }

    /// Returns the share of the squared differences that belongs to ranges of tokens.
    pub(super) fn share_of(&self, ranges: impl IntoIterator<Item = Range<usize>>) -> f64 {
        let mut is_there = vec![false; self.sample.tokens.len()];
        ranges.into_iter().for_each(|range| is_there[range].fill(true));
        self.share(|index| is_there[index])
    }

    /// Returns the sequences with their tokens.
    pub(super) fn sequences(&self) -> impl Iterator<Item = (&'s SampleSequence, &'s [ScoredToken])> {
        let sample = self.sample;
        sample.sequences.iter().map(move |sequence| (sequence, sample.of(sequence)))
    }
}

/// Returns the root mean square; 0 for no values.
pub(super) fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|value| value * value).sum::<f64>() / values.len().max(1) as f64).sqrt()
}
