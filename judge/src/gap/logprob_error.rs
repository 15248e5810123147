//! The error model: how far rounding moves a log-probability.
//!
//! A softmax gives log p = z - lse(z). Rounding moves each logit by noise of standard deviation s. The log-odds
//! log(p / (1 - p)) = z - lse(logits of the other tokens) then move by noise between s and sqrt(2)·s, for every p.
//! The last operations add errors that do not shrink with 1 - p: the rounding of z and lse, and of the stored
//! number. Their size in log-odds is divided by 1 - p.

use super::rounding_scales::LogOddsScale;
use super::token_sample::{ScoredToken, TokenSample};

/// Absolute error of z - lse(z) in f32, for logits up to 32 on both sides.
const F32_ERROR: f64 = 3e-6;
/// Smallest total probability of all other tokens that an f32 log-probability can represent.
const LEAST_REST: f64 = 6e-8;

/// Error of a log-probability that does not depend on the other tokens.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct StorageError {
    /// Absolute error.
    pub(crate) absolute: f64,
    /// Error relative to the log-probability.
    pub(crate) relative: f64,
}

/// Scales differences so that rounding gives them a standard deviation of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogprobError {
    /// Standard deviation of the log-odds, to compare with the storage error.
    scale: f64,
    storage: StorageError,
}

impl LogprobError {
    /// Creates the model for a type. Without a type, uses the scale of the differences themselves.
    pub(super) fn new(sample: &TokenSample, scale: Option<LogOddsScale>, storage: StorageError) -> Self {
        let own = || {
            median(
                sample
                    .tokens
                    .iter()
                    .filter(|token| rest(token) > 1e-2)
                    .map(|token| log_odds(token, storage.absolute).abs()),
            )
        };
        let scale = scale.map_or_else(|| own().max(1e-7), |scale| scale.largest);
        Self { scale, storage }
    }

    /// Returns the difference of the log-odds, reduced where storage errors dominate.
    pub(crate) fn scaled(&self, token: &ScoredToken) -> f64 {
        log_odds(token, self.storage.absolute) * self.share(token)
    }

    /// Returns true if logit errors are visible in a token, because its storage error is smaller.
    pub(crate) fn is_informative(&self, token: &ScoredToken) -> bool {
        self.share(token) > std::f64::consts::FRAC_1_SQRT_2
    }

    /// Returns the standard deviation of a difference of log-probabilities for logit noise of this size.
    pub(crate) fn sigma(&self, token: &ScoredToken, scale: f64) -> f64 {
        (scale * rest(token)).hypot(self.storage(token))
    }

    fn storage(&self, token: &ScoredToken) -> f64 {
        self.storage.absolute.hypot(self.storage.relative * token.logprob())
    }

    fn share(&self, token: &ScoredToken) -> f64 {
        let logits = self.scale * rest(token);
        logits / logits.hypot(self.storage(token))
    }
}

/// Returns the difference of the log-odds, rollout - trainer. `least` is the smallest probability of all other
/// tokens that the types can represent.
pub(crate) fn log_odds(token: &ScoredToken, least: f64) -> f64 {
    log_odds_of(token.rollout, least) - log_odds_of(token.trainer, least)
}

/// Returns log(p / (1 - p)), where 1 - p is at least `least`.
pub(crate) fn log_odds_of(logprob: f32, least: f64) -> f64 {
    let logprob = f64::from(logprob).min(0.0);
    logprob - (-logprob.exp_m1()).max(least.max(LEAST_REST)).ln()
}

/// Returns the total probability of all other tokens, on the side where it is larger.
pub(crate) fn rest(token: &ScoredToken) -> f64 {
    let least = f64::from(token.rollout.min(token.trainer)).min(0.0);
    (-least.exp_m1()).max(LEAST_REST)
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(&mut values.collect::<Vec<_>>(), 0.5)
}

pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let at = ((values.len() - 1) as f64 * share) as usize;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

impl StorageError {
    /// Error of f32 log-probabilities.
    pub const F32: Self = Self { absolute: F32_ERROR, relative: 1.2e-7 };

    /// Returns the storage error of two independent roundings.
    pub(crate) fn with(self, other: Self) -> Self {
        Self { absolute: self.absolute.hypot(other.absolute), relative: self.relative.hypot(other.relative) }
    }
}
