//! Predicted distribution at one position, and the difference of two, in llama-perplexity's arithmetic: `f32` with
//! sums in `f64`, so that the tables have the same digits.

/// Log-probabilities of a vocabulary: scores less one number.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    scores: Vec<f32>,
    /// The largest logit; 0 of log-probabilities.
    max: f32,
    /// log Σ exp(logit - max); 0 of log-probabilities.
    log_sum: f32,
    /// Half of what log-probabilities were rounded to the multiple of; 0 of logits.
    half_step: f32,
    /// Value that smaller log-probabilities were raised to.
    least: f32,
}

/// Smallest log-probability that counts in a divergence: files hold nothing below the largest logit less 16.
const LEAST_LOG_PROB: f32 = -16.0;

/// Difference of two predictions at a position whose next token is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictionDifference {
    /// -log p of the next token, by the base.
    pub base_nll: f32,
    /// Negative log-probability of the next token, by the other.
    pub nll: f32,
    /// KL(base‖other) in nats.
    pub kld: f64,
    /// Difference of the next token's probabilities, other less base.
    pub p_diff: f32,
    /// True if both have the same most likely token.
    pub same_top: bool,
    /// The largest difference of log-probabilities, of all tokens that count.
    pub apart: f32,
    /// True if each difference is within the base's own rounding: a 16-bit base then cannot contradict the other.
    pub is_within: bool,
}

impl Prediction {
    /// Range of a row in a file below its largest logit.
    pub const RANGE: f32 = 16.0;
    /// Codes of a row of a file.
    pub const CODES: f32 = 65535.0;

    /// Logits, `[V]`, in place of what was there.
    ///
    /// # Errors
    /// The first value that is NaN or infinite.
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

    /// Log-probabilities, `[V]`, in place of what was there: multiples of `scale` above `least`, and what is below that is
    /// there, too. Codes are `u16`, little-endian.
    pub fn set_codes(&mut self, scale: f32, least: f32, codes: &[u8]) {
        let codes = codes.chunks_exact(2).map(|code| u16::from_le_bytes([code[0], code[1]]));
        self.scores.clear();
        self.scores.extend(codes.map(|code| scale * f32::from(code) + least));
        (self.max, self.log_sum) = (0.0, 0.0);
        (self.half_step, self.least) = (scale / 2.0, least);
    }

    /// Appends scale, least and codes as llama-perplexity writes them, in its arithmetic: logits further below the largest are
    /// raised.
    pub fn write_codes(&self, bytes: &mut Vec<u8>) {
        let max = self.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let min = self.scores.iter().copied().fold(f32::INFINITY, f32::min).max(max - Self::RANGE);
        let scale = (max - min) / Self::CODES;
        bytes.extend(scale.to_le_bytes());
        bytes.extend((min - max - self.log_sum).to_le_bytes());
        let per_step = 1.0 / scale;
        // With a scale of 0 nothing is above the least.
        let code =
            |score: f32| if score > min { (per_step * (score - min)).round_ties_even() as u16 } else { 0 };
        self.scores.iter().for_each(|&score| bytes.extend(code(score).to_le_bytes()));
    }

    /// Returns the sum of the probabilities of codes, and its error below and above 1: each is off by half a step of
    /// its logarithm, `f32` rounds, and probabilities below the smallest are raised to it.
    pub fn total(&self) -> (f64, [f64; 2]) {
        let (scale, least) = (2.0 * self.half_step, self.least);
        let sum = self.scores.iter().map(|log_prob| f64::from(log_prob.exp())).sum();
        let is_cut = scale >= Self::RANGE / Self::CODES * 0.999;
        let raised = self.scores.iter().filter(|&&log_prob| is_cut && log_prob == least).count() as f64;
        let rounding = f64::from(f32::EPSILON) * (f64::from(least).abs() + 4.0);
        let off = f64::from(scale) / 2.0 + rounding;
        (sum, [off, off + raised * f64::from(least).exp()])
    }

    /// Returns the precision of log-probabilities: the step of their codes, and the `f32` rounding.
    pub fn step(&self) -> f64 {
        2.0 * f64::from(self.half_step) + 2.0 * f64::from(f32::EPSILON) * (f64::from(self.least).abs() + 4.0)
    }

    /// The log-probability of a token, unless it may have been raised to the least.
    pub fn told(&self, id: usize) -> Option<f32> {
        self.scores.get(id).copied().filter(|value| *value > self.least)
    }

    /// The likeliest tokens whose log-probabilities are told, so many at most; of equally likely ones that with the lowest id.
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

    /// Returns true if nothing was set.
    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    /// Logits or log-probabilities, whichever they were set to.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// Returns the number that is subtracted from each score.
    fn shift(&self) -> f32 {
        self.max + self.log_sum
    }

    /// -log p of a token.
    ///
    /// # Panics
    /// If there is none of that id.
    pub fn nll(&self, id: u32) -> f32 {
        self.shift() - self.scores[id as usize]
    }

    /// Compares `other` with this prediction as the base, if `next` is the next token.
    ///
    /// # Panics
    /// If one has no such token, or they are of different sizes.
    pub fn judge(&self, other: &Self, next: u32) -> PredictionDifference {
        assert_eq!(self.len(), other.len(), "vocabularies");
        let (mut best, mut other_best, mut kld) = (0, 0, 0.0f64);
        let (shift, other_shift) = (self.shift(), other.shift());
        let (mut apart, mut is_within) = (0.0f32, true);
        // A score, what it is less, and their difference are rounded each, on both sides.
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
