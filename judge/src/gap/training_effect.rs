//! The effect of the differences on training: importance ratios and estimates of the KL divergence.

use serde::Serialize;

/// Sums over all compared tokens. The ratio of a token is p(trainer) / p(rollout).
#[derive(Clone, Debug)]
pub(super) struct RatioSums {
    clip: f64,
    tokens: usize,
    clipped: usize,
    ratio: f64,
    square: f64,
    k1: f64,
    k3: f64,
    delta: f64,
    largest: f64,
}

/// The effect of the differences on training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainingEffect {
    /// Importance ratios that differ from 1 by more than this are clipped.
    pub(crate) clip: f64,
    /// Share of the tokens whose ratio is clipped.
    pub(crate) clip_fraction: f64,
    /// Mean ratio. It is 1 if the tokens were sampled from the rollout's probabilities.
    pub(crate) mean_ratio: f64,
    /// Effective sample size of the ratios, as a share of the tokens.
    pub(crate) effective_sample_size: f64,
    /// Mean of log p(rollout) - log p(trainer).
    pub(crate) kl_k1: f64,
    /// Mean of ratio - 1 - log ratio.
    pub(crate) kl_k3: f64,
    /// Part of `kl_k3` that rounding explains.
    pub(crate) kl_k3_rounding: f64,
    /// Mean absolute difference of the log-probabilities.
    pub(crate) mean_abs: f64,
    /// Largest absolute difference.
    pub(crate) max_abs: f64,
}

impl RatioSums {
    pub(super) fn new(clip: f64) -> Self {
        let zero = 0.0;
        Self {
            clip,
            tokens: 0,
            clipped: 0,
            ratio: zero,
            square: zero,
            k1: zero,
            k3: zero,
            delta: zero,
            largest: zero,
        }
    }

    /// Adds a token.
    pub(super) fn add(&mut self, rollout: f64, trainer: f64) {
        let log_ratio = trainer - rollout;
        // Larger ratios would make the sums infinite.
        let ratio = log_ratio.min(50.0).exp();
        self.tokens += 1;
        self.clipped += usize::from((ratio - 1.0).abs() > self.clip);
        self.ratio += ratio;
        self.square += ratio * ratio;
        self.k1 -= log_ratio;
        self.k3 += ratio - 1.0 - log_ratio;
        self.delta += log_ratio.abs();
        self.largest = self.largest.max(log_ratio.abs());
    }

    /// Returns the effect. `explained` is the share of the squared differences that rounding explains.
    pub(super) fn effect(&self, explained: f64) -> Option<TrainingEffect> {
        let count = self.tokens as f64;
        (self.tokens > 0).then(|| TrainingEffect {
            clip: self.clip,
            clip_fraction: self.clipped as f64 / count,
            mean_ratio: self.ratio / count,
            effective_sample_size: self.ratio * self.ratio / (self.square * count),
            kl_k1: self.k1 / count,
            kl_k3: self.k3 / count,
            kl_k3_rounding: explained * self.k3 / count,
            mean_abs: self.delta / count,
            max_abs: self.largest,
        })
    }
}
