//! Predicted distribution at one position, and the difference of two distributions. The arithmetic is that of
//! llama-perplexity (`f32` with sums in `f64`), so that the tables have the same digits.

/// Log-probabilities of a vocabulary. Each is a score minus a number that all scores share.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    scores: Vec<f32>,
    /// Largest logit; 0 for log-probabilities.
    max: f32,
    /// log Σ exp(logit - max); 0 for log-probabilities.
    log_sum: f32,
    /// Half of the step to which log-probabilities were rounded; 0 for logits.
    half_step: f32,
    /// Lower limit of log-probabilities. Smaller ones were raised to it.
    least: f32,
}

/// Smallest log-probability that is counted in a divergence. Files store nothing below the largest logit minus 16.
const LEAST_LOG_PROB: f32 = -16.0;

/// Difference between two predictions at a position whose next token is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictionDifference {
    /// Negative log-probability of the next token, by the base.
    pub base_nll: f32,
    /// Negative log-probability of the next token, by the other prediction.
    pub nll: f32,
    /// KL(base‖other) in nats.
    pub kld: f64,
    /// Difference of the next token's probabilities, other minus base.
    pub p_diff: f32,
    /// True if both have the same most likely token.
    pub same_top: bool,
    /// Largest difference of log-probabilities, over all tokens that are counted.
    pub apart: f32,
    /// True if each difference is within the rounding error of the base's stored values, so that a 16-bit base file
    /// cannot contradict the other prediction.
    pub is_within: bool,
}

impl Prediction {
    /// Range of the stored scores of a row: the smallest stored score is the largest logit minus this number.
    pub const RANGE: f32 = 16.0;
    /// Number of steps in a row's range.
    pub const CODES: f32 = 65535.0;

    /// Sets the prediction to logits, `[V]`.
    ///
    /// # Errors
    /// Names the first value that is NaN or infinite.
    pub fn set_logits(&mut self, logits: impl Iterator<Item = f32>) -> Result<(), String> {
        self.scores.clear();
        self.scores.extend(logits);
        self.normalise()
    }

    fn normalise(&mut self) -> Result<(), String> {
        let max = self.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if let Some(index) = self.scores.iter().position(|logit| !logit.is_finite()) {
            return Err(format!("the logit of token {index} is {}, expected a number", self.scores[index]));
        }
        let sum: f64 = self.scores.iter().map(|logit| f64::from((logit - max).exp())).sum();
        (self.max, self.log_sum) = (max, sum.ln() as f32);
        (self.half_step, self.least) = (0.0, f32::NEG_INFINITY);
        Ok(())
    }

    /// Sets the prediction to log-probabilities, `[V]`, given as little-endian `u16` codes: multiples of `scale`, added
    /// to `least`. Smaller log-probabilities were raised to `least`.
    pub fn set_codes(&mut self, scale: f32, least: f32, codes: &[u8]) {
        let codes = codes.chunks_exact(2).map(|code| u16::from_le_bytes([code[0], code[1]]));
        self.scores.clear();
        self.scores.extend(codes.map(|code| scale * f32::from(code) + least));
        (self.max, self.log_sum) = (0.0, 0.0);
        (self.half_step, self.least) = (scale / 2.0, least);
    }

    /// Appends scale, lower limit and codes, in the format and arithmetic of llama-perplexity. Logits too far below the
    /// largest are raised to the lower limit.
    pub fn write_codes(&self, bytes: &mut Vec<u8>) {
        let max = self.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let min = self.scores.iter().copied().fold(f32::INFINITY, f32::min).max(max - Self::RANGE);
        let scale = (max - min) / Self::CODES;
        bytes.extend(scale.to_le_bytes());
        bytes.extend((min - max - self.log_sum).to_le_bytes());
        let per_step = 1.0 / scale;
        // If the scale is 0, all codes are 0.
        let code =
            |score: f32| if score > min { (per_step * (score - min)).round_ties_even() as u16 } else { 0 };
        self.scores.iter().for_each(|&score| bytes.extend(code(score).to_le_bytes()));
    }

    /// Returns the sum of the probabilities of all codes, and the largest errors of that sum below and above 1. Each
    /// logarithm has an error of half a step plus `f32` rounding, and probabilities below the lower limit are raised to
    /// it.
    pub fn total(&self) -> (f64, [f64; 2]) {
        let (scale, least) = (2.0 * self.half_step, self.least);
        let sum = self.scores.iter().map(|log_prob| f64::from(log_prob.exp())).sum();
        let is_cut = scale >= Self::RANGE / Self::CODES * 0.999;
        let raised = self.scores.iter().filter(|&&log_prob| is_cut && log_prob == least).count() as f64;
        let rounding = f64::from(f32::EPSILON) * (f64::from(least).abs() + 4.0);
        let off = f64::from(scale) / 2.0 + rounding;
        (sum, [off, off + raised * f64::from(least).exp()])
    }

    /// Returns the precision of log-probabilities: the step of their codes plus the `f32` rounding.
    pub fn step(&self) -> f64 {
        2.0 * f64::from(self.half_step) + 2.0 * f64::from(f32::EPSILON) * (f64::from(self.least).abs() + 4.0)
    }

    /// Returns a token's log-probability. `None` if it may have been raised to the lower limit.
    pub fn told(&self, id: usize) -> Option<f32> {
        self.scores.get(id).copied().filter(|value| *value > self.least)
    }

    /// Returns up to `most` likeliest tokens with known log-probabilities; equally likely tokens by ascending id.
    pub fn likeliest(&self, most: usize) -> Vec<(u32, f32)> {
        let told = |id: usize| Some((id as u32, self.told(id)?));
        let mut all: Vec<(u32, f32)> = (0..self.len()).filter_map(told).collect();
        let descending = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if most < all.len() {
            all.select_nth_unstable_by(most, descending);
            all.truncate(most);
        }
        all.sort_unstable_by(descending);
        all
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.scores.len()
    }

    /// Returns true if the prediction has no scores.
    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    /// Returns the number that is subtracted from each score to get its log-probability.
    fn shift(&self) -> f32 {
        self.max + self.log_sum
    }

    /// Returns the negative log-probability of a token.
    ///
    /// # Panics
    /// If the id is outside the vocabulary.
    pub fn nll(&self, id: u32) -> f32 {
        self.shift() - self.scores[id as usize]
    }

    /// Compares `other` with this prediction as the base; `next` is the actual next token.
    ///
    /// # Panics
    /// If a prediction lacks the token, or the vocabularies have different sizes.
    pub fn judge(&self, other: &Self, next: u32) -> PredictionDifference {
        assert_eq!(self.len(), other.len(), "vocabularies");
        let (mut best, mut other_best, mut kld) = (0, 0, 0.0f64);
        let (shift, other_shift) = (self.shift(), other.shift());
        let (mut apart, mut is_within) = (0.0f32, true);
        // Three roundings on each side: the score, the number that is subtracted, and the difference.
        let largest = [shift, other_shift, self.scores[0], LEAST_LOG_PROB]
            .map(f32::abs)
            .into_iter()
            .fold(0.0, f32::max);
        let rounding = 6.0 * f32::EPSILON * largest;
        let pairs = self.scores.iter().zip(&other.scores).enumerate();
        for (id, (score, other_score)) in pairs {
            if *score > self.scores[best] {
                best = id;
            }
            if *other_score > other.scores[other_best] {
                other_best = id;
            }
            let log_prob = score - shift;
            if log_prob > LEAST_LOG_PROB {
                let difference = log_prob - other_score + other_shift;
                kld += f64::from(log_prob.exp() * difference);
                if log_prob > self.least {
                    apart = apart.max(difference.abs());
                    is_within &= difference.abs() <= self.half_step + other.half_step + rounding;
                }
            }
        }
        let (base_nll, nll) = (self.nll(next), other.nll(next));
        let p_diff = (-nll).exp() - (-base_nll).exp();
        PredictionDifference { base_nll, nll, kld, p_diff, same_top: best == other_best, apart, is_within }
    }
}
