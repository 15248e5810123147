//! The part of the differences at tokens whose experts differ.

use serde::Serialize;

use super::finding::{GapFinding, counted};
use super::pair_view::PairView;
use super::token_route::{RouteAgreement, TokenRoute};
use crate::verdict::Verdict;

/// Findings that other experts can cause in a correct engine.
const CAUSED: [&str; 8] = [
    "far-tokens",
    "other-token",
    "one-sided",
    "outlier-sequences",
    "position-step",
    "unexplained-size",
    "large-size",
    "bias",
];

/// Counts of choices of experts in all pairs.
#[derive(Clone, Debug, Default)]
pub(super) struct RouteCounts {
    choices: usize,
    other_choices: usize,
    pub(super) has_other_shape: bool,
}

/// Agreement of the experts, and its part of the differences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteEffect {
    /// Choices, one for each token and layer, that both sides have.
    pub(crate) choices: usize,
    /// Choices of other experts.
    pub(crate) other_choices: usize,
    /// Compared tokens with other experts in at least one layer.
    pub other_tokens: usize,
    /// Their share of the squared differences.
    pub other_share: f64,
    /// Tokens with the same experts, after a token with others.
    pub(crate) later_tokens: usize,
    /// Their share of the squared differences.
    pub(crate) later_share: f64,
    /// Tokens with the same experts, here and before.
    pub(crate) same_tokens: usize,
    /// Root mean square difference of the log-odds of `same_tokens`.
    pub same_scale: f64,
}

impl RouteCounts {
    /// Adds a pair.
    pub(super) fn add(&mut self, agreement: &RouteAgreement) {
        self.choices += agreement.choices;
        self.other_choices += agreement.other_choices;
        self.has_other_shape |= agreement.has_other_shape;
    }

    /// Returns each group's share of the squared differences; `None` if a side has no routing data.
    pub(super) fn effect(&self, pair: &PairView) -> Option<RouteEffect> {
        let routes = &pair.sample.routes;
        let count = |wanted| routes.iter().filter(|&&route| route == wanted).count();
        let share = |wanted| pair.share(|index| routes[index] == wanted);
        let same = pair.sample.tokens.iter().enumerate().filter(|(at, _)| routes[*at] == TokenRoute::Same);
        let square: f64 = same.map(|(at, _)| pair.scaled[at].powi(2)).sum();
        let same_tokens = count(TokenRoute::Same);
        (self.choices > 0).then(|| RouteEffect {
            choices: self.choices,
            other_choices: self.other_choices,
            other_tokens: count(TokenRoute::Other),
            other_share: share(TokenRoute::Other),
            later_tokens: count(TokenRoute::Later),
            later_share: share(TokenRoute::Later),
            same_tokens,
            same_scale: (square / same_tokens.max(1) as f64).sqrt(),
        })
    }
}

impl RouteEffect {
    /// Returns true if other experts can be the reason for these findings. `is_proven` is true if enough tokens with the
    /// same experts differ by rounding alone.
    pub(super) fn can_cause(&self, findings: &[GapFinding], is_proven: bool) -> bool {
        let cause = findings.iter().find(|finding| finding.verdict != Verdict::Pass);
        self.other_tokens > 0 && cause.is_some_and(|finding| is_proven || CAUSED.contains(&finding.cause))
    }

    /// Returns the finding that the tokens with the same experts differ by rounding alone.
    pub(super) fn finding(&self) -> GapFinding {
        let text = format!(
            "{}: {:.1} % of the gap is there, {:.1} % at later tokens of the same sequences; all other tokens \
             ({}) differ by rounding (scale {:.2e}). Rounding flips experts with nearly equal scores, and a wrong router \
             flips them, too: --model compares both sides with the model",
            self.described(),
            100.0 * self.other_share,
            100.0 * self.later_share,
            self.same_tokens,
            self.same_scale
        );
        GapFinding::doubt("flipped-experts", text)
            .at(Vec::new(), self.other_share + self.later_share)
            .with("tokens", self.other_tokens)
    }

    fn described(&self) -> String {
        format!("other experts at {}", counted(self.other_tokens, "token"))
    }

    /// Returns the lines of the terminal's report.
    pub(super) fn lines(&self) -> String {
        let percent = |part: usize, all: usize| 100.0 * part as f64 / all.max(1) as f64;
        format!(
            "\nExperts\n  other choices           {} of {} ({:.2} %)\n  tokens with others      {}, {:.1} % of the squared gap\n  later \
             tokens            {}, {:.1} % of the squared gap\n  tokens with the same    {}, scale {:.2e}\n",
            self.other_choices,
            self.choices,
            percent(self.other_choices, self.choices),
            self.other_tokens,
            100.0 * self.other_share,
            self.later_tokens,
            100.0 * self.later_share,
            self.same_tokens,
            self.same_scale
        )
    }
}
