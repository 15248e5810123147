//! The compared tokens in memory, for tests that need all of them at once.

use std::ops::Range;

use super::sequence_join::SequencePair;
use super::token_route::{RouteAgreement, TokenRoute};

/// Maximum number of tokens in memory: 136 MB with their routes. The same amount is needed again if experts differ.
const MOST_TOKENS: usize = 8_000_000;
/// Maximum number of sequences whose token range is stored.
const MOST_SEQUENCES: usize = 1_000_000;

/// A compared token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScoredToken {
    /// Log-probability of the rollout.
    pub(crate) rollout: f32,
    /// Log-probability of the trainer.
    pub(crate) trainer: f32,
    /// Position in the sequence.
    pub(crate) position: u32,
    /// Token id.
    pub(crate) id: u32,
}

impl ScoredToken {
    /// Returns rollout - trainer.
    pub(crate) fn delta(&self) -> f64 {
        f64::from(self.rollout) - f64::from(self.trainer)
    }

    /// Returns the mean of both log-probabilities.
    pub(crate) fn logprob(&self) -> f64 {
        0.5 * (f64::from(self.rollout) + f64::from(self.trainer))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SampleSequence {
    /// Index in the rollout's file.
    pub(crate) index: usize,
    /// Tokens of the sequence.
    pub(crate) tokens: Range<usize>,
    /// Stated training steps of the weights.
    pub(crate) versions: [Option<i64>; 2],
    /// Stated divisors of the logits.
    pub(crate) temperatures: [Option<f64>; 2],
}

/// The compared tokens, up to a limit of memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenSample {
    /// Tokens that both sides score.
    pub(crate) tokens: Vec<ScoredToken>,
    /// Agreement of the experts at each token.
    pub(super) routes: Vec<TokenRoute>,
    /// Sequences with at least one token that both sides score.
    pub(crate) sequences: Vec<SampleSequence>,
    /// Number of tokens above the memory limit.
    pub(crate) left_out: usize,
}

impl TokenSample {
    /// Adds the tokens of a pair, starting with the first completion token.
    pub(super) fn add(&mut self, pair: &SequencePair, agreement: &RouteAgreement) {
        let from = self.tokens.len();
        let first = pair.prompt_length.unwrap_or(0);
        let [rollout, trainer] = &pair.logprobs;
        let scored = rollout.iter().zip(trainer).enumerate().skip(first);
        // Values that overflow f32 are counted as infinite.
        let is_finite = |value: f64| (value as f32).is_finite();
        let scored = scored.filter(|(_, (rollout, trainer))| is_finite(**rollout) && is_finite(**trainer));
        if from + rollout.len() > MOST_TOKENS || self.sequences.len() == MOST_SEQUENCES {
            self.left_out += scored.count();
            return;
        }
        for (at, (&rollout, &trainer)) in scored {
            self.routes.push(agreement.tokens.get(at).copied().unwrap_or_default());
            self.tokens.push(ScoredToken {
                rollout: rollout as f32,
                trainer: trainer as f32,
                position: at as u32,
                id: pair.tokens.get(at).copied().unwrap_or(u32::MAX),
            });
        }
        if self.tokens.len() > from {
            let tokens = from..self.tokens.len();
            self.sequences.push(SampleSequence {
                index: pair.index,
                tokens,
                versions: pair.versions,
                temperatures: pair.temperatures,
            });
        }
    }

    /// Returns only the tokens with these kinds of routes.
    pub(super) fn with_routes(&self, are_such: impl Fn(TokenRoute) -> bool) -> Self {
        let mut found = Self { left_out: self.left_out, ..Self::default() };
        for sequence in &self.sequences {
            let from = found.tokens.len();
            for at in sequence.tokens.clone().filter(|&at| are_such(self.routes[at])) {
                found.tokens.push(self.tokens[at]);
                found.routes.push(self.routes[at]);
            }
            if found.tokens.len() > from {
                found.sequences.push(SampleSequence { tokens: from..found.tokens.len(), ..sequence.clone() });
            }
        }
        found
    }

    pub(crate) fn of(&self, sequence: &SampleSequence) -> &[ScoredToken] {
        &self.tokens[sequence.tokens.clone()]
    }
}
