//! What is predicted at one position, and how two predictions differ, in llama-perplexity's arithmetic: `f32` throughout, sums
//! in `f64`. So its table and ours have the same digits.

/// Log-probabilities of a vocabulary: scores less one number.
#[derive(Clone, Debug, Default)]
pub struct Row {
    scores: Vec<f32>,
    /// The largest logit; 0 of log-probabilities.
    max: f32,
    /// log Σ exp(logit - max); 0 of log-probabilities.
    log_sum: f32,
}

/// What is less likely than that counts for nothing in a divergence: files hold nothing below the likeliest logit less 16.
const LEAST_LOG_PROB: f32 = -16.0;

/// How two predictions differ at a position whose next token is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// -log p of the next token, by the base.
    pub base_nll: f32,
    /// The same by the other.
    pub nll: f32,
    /// KL(base‖other) in nats.
    pub kld: f64,
    /// How much likelier the next token is to the other.
    pub p_diff: f32,
    /// Whether both find the same token likeliest.
    pub same_top: bool,
}

impl Row {
    /// Logits, `[V]`, in place of what was there.
    ///
    /// # Errors
    /// The first that is no number.
    pub fn set_logits(&mut self, logits: impl Iterator<Item = f32>) -> Result<(), String> {
        self.scores.clear();
        self.scores.extend(logits);
        let max = self.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if let Some(index) = self.scores.iter().position(|logit| !logit.is_finite()) {
            return Err(format!("the logit of token {index} is {}, expected a number", self.scores[index]));
        }
        let sum: f64 = self.scores.iter().map(|logit| f64::from((logit - max).exp())).sum();
        (self.max, self.log_sum) = (max, sum.ln() as f32);
        Ok(())
    }

    /// Log-probabilities, `[V]`, in place of what was there.
    pub fn set_log_probs(&mut self, log_probs: impl Iterator<Item = f32>) {
        self.scores.clear();
        self.scores.extend(log_probs);
        (self.max, self.log_sum) = (0.0, 0.0);
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.scores.len()
    }

    /// Whether nothing was set.
    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    /// Logits or log-probabilities, whichever they were set to.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// The log-probability of something that has this score, if the largest score is added to it.
    pub(super) fn below_max(&self, score_less_max: f32) -> f32 {
        score_less_max - self.log_sum
    }

    /// What each score is less.
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

    /// How `other` differs from this as the base, where `next` follows.
    ///
    /// # Panics
    /// If one has no such token, or they are of different sizes.
    pub fn judge(&self, other: &Row, next: u32) -> Judged {
        assert_eq!(self.len(), other.len(), "vocabularies");
        let (mut best, mut other_best, mut kld) = (0, 0, 0.0f64);
        let (shift, other_shift) = (self.shift(), other.shift());
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
                kld += f64::from(log_prob.exp() * (log_prob - other_score + other_shift));
            }
        }
        let (base_nll, nll) = (self.nll(next), other.nll(next));
        let p_diff = (-nll).exp() - (-base_nll).exp();
        Judged { base_nll, nll, kld, p_diff, same_top: best == other_best }
    }
}
