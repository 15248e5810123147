//! Agreement of both sides' experts at each token.

use super::sequence_join::SequencePair;

/// Agreement of both sides' experts at a token. Its log-probability is computed from the token before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TokenRoute {
    /// A side has no data for this token or an earlier one, and no earlier token has known different experts.
    #[default]
    Unknown,
    /// All experts are the same, at this token and all earlier ones.
    Same,
    /// Experts of an earlier token differ, so its keys and values differ too. The token's own experts are the same or
    /// unknown.
    Later,
    /// Experts differ in at least one layer.
    Other,
}

impl TokenRoute {
    /// Returns true if no known flip of experts affects the token: its experts are the same, or unknown.
    pub(super) fn is_unflipped(self) -> bool {
        matches!(self, Self::Same | Self::Unknown)
    }
}

/// Agreement of the experts that the two sides chose in a pair of sequences.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RouteAgreement {
    /// Agreement at each token; empty if a side has no data.
    pub(super) tokens: Vec<TokenRoute>,
    /// Two numbers, counted over tokens and layers: choices that both sides have, and choices that differ.
    pub(super) choices: usize,
    pub(super) other_choices: usize,
    /// True if the sides have different numbers of layers or experts.
    pub(super) has_other_shape: bool,
}

impl RouteAgreement {
    /// Compares the experts of a pair.
    pub(super) fn of(pair: &SequencePair) -> Self {
        let [Some(rollout), Some(trainer)] = &pair.routes else { return Self::default() };
        let mut found = Self { has_other_shape: rollout.shape() != trainer.shape(), ..Self::default() };
        if found.has_other_shape {
            return found;
        }
        let mut before = TokenRoute::Same;
        // Nothing precedes the first token.
        found.tokens.push(TokenRoute::Unknown);
        for token in 0..pair.logprobs[0].len().saturating_sub(1) {
            let (mut is_known, mut differs) = (true, false);
            for layer in 0..rollout.shape()[0] {
                let both = rollout.chosen(token, layer).zip(trainer.chosen(token, layer));
                let is_other = both.is_some_and(|(rollout, trainer)| rollout != trainer);
                found.choices += usize::from(both.is_some());
                found.other_choices += usize::from(is_other);
                (is_known, differs) = (is_known && both.is_some(), differs || is_other);
            }
            let route = match before {
                _ if differs => TokenRoute::Other,
                TokenRoute::Later => TokenRoute::Later,
                _ if !is_known => TokenRoute::Unknown,
                before => before,
            };
            found.tokens.push(route);
            before = if route == TokenRoute::Other { TokenRoute::Later } else { route };
        }
        found
    }
}
