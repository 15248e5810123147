//! Effect of differing experts: the part of the differences at tokens whose experts differ.

use serde::Serialize;

use super::finding::{GapFinding, counted};
use super::pair_view::PairView;
use super::token_route::{RouteAgreement, TokenRoute};

/// A different choice of experts is named as the reason if it explains at least this share of the squared differences.
pub(super) const MOST_OF_GAP: f64 = 0.5;
/// Largest share of choices that rounding may flip. Between bf16 and f32, 2.1 and 3.5 % were measured; a wrong
/// router flipped 86 % (`make_routes.py`).
pub(super) const MOST_FLIPPED: f64 = 0.2;
/// Largest share of a sequence's choices that rounding may flip. At most 19 % were measured, and at least 74 % with
/// a wrong router.
const MOST_OF_SEQUENCE: f64 = 0.5;
/// Minimum number of choices in a sequence whose share of flips is judged.
const LEAST_CHOICES: usize = 16;
/// Minimum number of sequences with tokens whose experts are the same on both sides. With fewer such sequences, a
/// finding that other experts cannot cause is still reported. The tests for patterns need the same number.
const LEAST_SEQUENCES: usize = 8;
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
    /// Number of sequences in which more choices differ than rounding may flip.
    other_sequences: usize,
    pub(super) has_other_shape: bool,
}

/// Agreement of the experts, and their effect on the differences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteEffect {
    /// Number of choices that both sides have, one for each token and layer.
    pub(crate) choices: usize,
    /// Number of choices in which the sides chose different experts.
    pub(crate) other_choices: usize,
    /// Number of sequences in which more choices differ than rounding may flip.
    pub(crate) other_sequences: usize,
    /// Number of compared tokens with different experts in at least one layer.
    pub other_tokens: usize,
    /// Share of the squared differences at `other_tokens`.
    pub other_share: f64,
    /// Number of tokens with the same or unknown experts that follow a token with different experts.
    pub(crate) later_tokens: usize,
    /// Share of the squared differences at `later_tokens`.
    pub(crate) later_share: f64,
    /// Number of tokens whose own experts, and those of all earlier tokens, are the same on both sides.
    pub(crate) same_tokens: usize,
    /// Root mean square difference of the log-odds of `same_tokens`.
    pub same_scale: f64,
}

impl RouteCounts {
    /// Adds a pair.
    pub(super) fn add(&mut self, agreement: &RouteAgreement) {
        self.choices += agreement.choices;
        self.other_choices += agreement.other_choices;
        let most = MOST_OF_SEQUENCE * agreement.choices as f64;
        let is_other = agreement.choices >= LEAST_CHOICES && agreement.other_choices as f64 > most;
        self.other_sequences += usize::from(is_other);
        self.has_other_shape |= agreement.has_other_shape;
    }

    /// Returns the reason why the routes cannot be those of the same tokens in correct engines.
    pub(super) fn contradiction(&self) -> Option<String> {
        let share = self.other_choices as f64 / self.choices.max(1) as f64;
        let differing = match self.other_sequences {
            _ if share > MOST_FLIPPED => format!("{:.0} % of the chosen experts differ", 100.0 * share),
            0 => return None,
            count => format!("most of the chosen experts differ in {}", counted(count, "sequence")),
        };
        Some(format!(
            "{differing}, and rounding flips few: routed_experts of one side belongs to other tokens, layers or requests, or \
             a router is wrong"
        ))
    }

    /// Returns each group's share of the squared differences; `None` if a side has no routing data.
    pub(super) fn effect(&self, pair: &PairView) -> Option<RouteEffect> {
        if self.choices == 0 {
            return None;
        }
        let routes = &pair.sample.routes;
        let count = |wanted| routes.iter().filter(|&&route| route == wanted).count();
        let share = |wanted| pair.share(|index| routes[index] == wanted);
        let same = pair.sample.tokens.iter().enumerate().filter(|(at, _)| routes[*at] == TokenRoute::Same);
        let square: f64 = same.map(|(at, _)| pair.scaled[at].powi(2)).sum();
        let same_tokens = count(TokenRoute::Same);
        Some(RouteEffect {
            choices: self.choices,
            other_choices: self.other_choices,
            other_sequences: self.other_sequences,
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
    /// Returns true if other experts can cause such a finding in a correct engine.
    pub(super) fn is_caused(cause: &str) -> bool {
        CAUSED.contains(&cause)
    }

    /// Returns true if other experts can cause a finding, because it does not occur at tokens with the same experts.
    /// `proven_in` is the number of sequences with such tokens, if enough of these tokens differ only by rounding.
    pub(super) fn can_cause(&self, cause: &str, proven_in: Option<usize>) -> bool {
        let is_rare =
            self.other_choices as f64 <= MOST_FLIPPED * self.choices as f64 && self.other_sequences == 0;
        let holds_gap = self.other_share + self.later_share >= MOST_OF_GAP;
        let is_same_mostly = self.same_tokens >= self.other_tokens + self.later_tokens;
        let is_proven = proven_in.is_some_and(|sequences| sequences >= LEAST_SEQUENCES) && is_same_mostly;
        is_rare && holds_gap && (is_proven || Self::is_caused(cause))
    }

    /// Returns the finding that the differences are at tokens with other experts. `is_proven` is true if enough tokens
    /// with the same experts differ only by rounding.
    pub(super) fn finding(&self, is_proven: bool) -> GapFinding {
        let others = match is_proven {
            true => {
                let scale = self.same_scale;
                format!(
                    "the {} tokens with the same experts differ by rounding (scale {scale:.2e})",
                    self.same_tokens
                )
            }
            false => {
                format!("only {} tokens have the same experts, too few to judge alone", self.same_tokens)
            }
        };
        let text = format!(
            "{}: {:.1} % of the squared gap is at these tokens, {:.1} % at later tokens of the same sequences; \
             {others}. Rounding flips experts with nearly equal scores, but a wrong router flips experts, too: use \
             --model to compare both sides with the model",
            self.described(),
            100.0 * self.other_share,
            100.0 * self.later_share,
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
