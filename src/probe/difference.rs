//! Difference between two answers to the same request, and its judgement by rounding.

use std::fmt;

use half::{bf16, f16};

use crate::noise::NoiseFloor;
use crate::probe::answer::{TokenLogprob, TokenPosition};
use crate::verdict::Verdict;

/// Difference between two answers, up to the first position with different tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerDifference {
    /// Number of compared positions.
    pub(crate) places: usize,
    /// Number of compared log-probabilities.
    pub(crate) values: usize,
    /// Largest difference of log-probabilities.
    pub(crate) largest: f64,
    /// Position of the largest difference.
    pub(crate) at: usize,
    /// Largest share of the probability that moved to other tokens at one position. It is a lower bound.
    pub(crate) moved: f64,
    /// First position with different tokens.
    pub(crate) parts: Option<DivergentTokens>,
    /// True if one answer ends before the other.
    pub(crate) ends_early: bool,
    /// Number of positions at which only one of the two answers has log-probabilities.
    pub(crate) untold: usize,
}

/// Two tokens at one position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DivergentTokens {
    /// Position at which the tokens differ.
    pub(crate) at: usize,
    /// Text of both tokens.
    pub(crate) tokens: [String; 2],
    /// Margin by which the first answer prefers its token; `None` if it is unknown.
    pub(crate) margin: Option<TokenMargin>,
}

/// Margin of one token over another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TokenMargin {
    /// The margin, if both log-probabilities are known.
    Told(LogprobDifference),
    /// The other token is not among the returned top tokens, so it is at most as likely as the least likely of them.
    AtLeast(LogprobDifference),
}

/// Difference of two log-probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogprobDifference {
    /// Difference of the log-probabilities in nats.
    pub nats: f64,
    /// Difference of the two probabilities.
    pub share: f64,
}

impl LogprobDifference {
    /// Returns the difference of two log-probabilities.
    pub(crate) fn of(one: f64, other: f64) -> Self {
        Self { nats: (one - other).abs(), share: (one.exp() - other.exp()).abs() }
    }

    /// Returns the maximum of the two differences, in nats and in probability.
    pub(crate) fn or(self, other: Self) -> Self {
        Self { nats: self.nats.max(other.nats), share: self.share.max(other.share) }
    }
}

impl TokenMargin {
    fn of(place: &TokenPosition, first: &TokenLogprob, second: &TokenLogprob) -> Option<Self> {
        let own = logprob_of(place, first)?;
        if let Some(other) = logprob_of(place, second) {
            return Some(Self::Told(preferred(own, other)));
        }
        Some(Self::AtLeast(preferred(own, least(place)?)))
    }

    /// Decides whether rounding can cause the choice of the other token. A lower bound of the margin cannot exclude
    /// rounding.
    fn judge(self, floor: f64, by: impl Fn(LogprobDifference) -> f64) -> Verdict {
        let floor = NoiseFloor { max_abs: floor, ..NoiseFloor::default() };
        match self {
            Self::Told(margin) => floor.parts(by(margin), 0.0).0,
            Self::AtLeast(margin) => floor.parts(by(margin), 0.0).0.max(Verdict::Inconclusive),
        }
    }
}

impl fmt::Display for TokenMargin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Told(margin) => write!(f, "{:.1e} apart", margin.nats),
            Self::AtLeast(margin) => write!(f, "at least {:.1e} apart", margin.nats),
        }
    }
}

impl AnswerDifference {
    /// Compares two lists of the same positions. Positions after the first different token are not compared,
    /// since their inputs differ.
    pub fn of(one: &[TokenPosition], other: &[TokenPosition]) -> Self {
        let mut found = Self { ends_early: one.len() != other.len(), ..Self::default() };
        for (at, (one, other)) in one.iter().zip(other).enumerate() {
            found.places += 1;
            found.compare(at, one, other);
            if let (Some(first), Some(second)) = (&one.token, &other.token)
                && !first.is(second)
            {
                let margin = TokenMargin::of(one, first, second);
                found.parts = Some(DivergentTokens { at, tokens: [shown(first), shown(second)], margin });
                found.ends_early = false;
                break;
            }
        }
        found
    }

    fn compare(&mut self, at: usize, one: &TokenPosition, other: &TokenPosition) {
        self.untold += usize::from(tells(one) != tells(other));
        let mut seen: Vec<&TokenLogprob> = Vec::new();
        for named in one.top.iter().chain(&one.token) {
            if seen.iter().any(|known| known.is(named)) {
                continue;
            }
            seen.push(named);
            let Some(p) = logprob_of(one, named) else { continue };
            match logprob_of(other, named) {
                Some(q) => {
                    self.values += 1;
                    self.differ(at, (p - q).abs());
                    self.moved = self.moved.max((p.exp() - q.exp()).abs());
                }
                None => self.lacks(at, p, other),
            }
        }
        for named in other.top.iter().filter(|named| logprob_of(one, named).is_none()) {
            if let Some(q) = named.logprob {
                self.lacks(at, q, one);
            }
        }
    }

    fn differ(&mut self, at: usize, apart: f64) {
        // NaN counts as the largest difference.
        if !(apart <= self.largest) {
            (self.largest, self.at) = (apart, at);
        }
    }

    /// Compares with a token that is not in the list. It is at most as likely as the last token in the list.
    fn lacks(&mut self, at: usize, p: f64, place: &TokenPosition) {
        if let Some(least) = least(place) {
            self.differ(at, (p - least).max(0.0));
            self.moved = self.moved.max(p.exp() - least.exp());
        }
    }

    /// Returns true if there is no difference.
    pub(crate) fn is_none(&self) -> bool {
        self.largest == 0.0
            && self.moved <= 0.0
            && self.parts.is_none()
            && !self.ends_early
            && self.untold == 0
    }

    /// Decides whether the difference is rounding. `floor` is the measured effect of rounding on the log-probabilities
    /// of this model and text, if a model is known. `step` is the precision of the decimals in the answers.
    pub fn judge(&self, floor: Option<LogprobDifference>, step: f64) -> (Verdict, String) {
        let told = self.told();
        if self.places == 0 {
            return (Verdict::Inconclusive, "nothing was compared".to_owned());
        }
        if self.is_none() {
            return (Verdict::Pass, told);
        }
        if self.moved > ANOTHER {
            return (
                Verdict::Fail,
                format!(
                    "{told}: another distribution, {:.0} % of the probability moved to other tokens",
                    100.0 * self.moved
                ),
            );
        }
        // An end is a token choice like any other, but its token and log-probability are unknown.
        if self.ends_early {
            return (Verdict::Inconclusive, format!("{told}; one answer ends before the other"));
        }
        if self.untold > 0 {
            let told =
                format!("{told}; at {} positions only one of the answers has log-probabilities", self.untold);
            return (Verdict::Inconclusive, told);
        }
        let Some(floor) = floor else {
            return (Verdict::Inconclusive, format!("{told}; give --model to decide if that is rounding"));
        };
        self.weigh(LogprobDifference { nats: floor.nats + step, share: floor.share + step }, told)
    }

    /// Compares with the noise floor. If rounding changes the log-probabilities of unlikely tokens so much that they
    /// decide nothing, compares probabilities instead.
    fn weigh(&self, floor: LogprobDifference, told: String) -> (Verdict, String) {
        let by_nats = level(self.largest, floor.nats);
        if floor.nats < BLIND {
            let by_choice = self.by_choice(floor.nats, |margin| margin.nats);
            return (by_nats.max(by_choice), format!("{told}; rounding moves them by {:.1e}", floor.nats));
        }
        let told = format!("{told}; rounding moves them by {:.1e} here", floor.nats);
        if NoiseFloor::NEAR * floor.share >= ANOTHER {
            return (by_nats.max(Verdict::Inconclusive), format!("{told}, too much for a verdict"));
        }
        let by_share = level(self.moved, floor.share).max(self.by_choice(floor.share, |margin| margin.share));
        let told = format!(
            "{told}, and probabilities by {:.1e}; the probabilities of the two answers differ by up to {:.1e}",
            floor.share, self.moved
        );
        (by_nats.max(by_share), told)
    }

    /// Decides whether rounding can cause a different choice of token.
    fn by_choice(&self, floor: f64, by: impl Fn(LogprobDifference) -> f64) -> Verdict {
        match &self.parts {
            None => Verdict::Pass,
            Some(DivergentTokens { margin: None, .. }) => Verdict::Inconclusive,
            Some(DivergentTokens { margin: Some(margin), .. }) => margin.judge(floor, by),
        }
    }

    fn told(&self) -> String {
        let values = match self.values {
            0 => format!("{} tokens, without log-probabilities", self.places),
            values => format!("{values} log-probabilities of {} tokens", self.places),
        };
        let apart = match self.largest {
            _ if self.is_none() => return format!("{values}, the same"),
            0.0 => String::new(),
            largest => format!(", up to {largest:.1e} apart (token {})", self.at + 1),
        };
        let parts = self.parts.as_ref().map(|parts| {
            let margin = parts.margin.map_or("the margin is unknown".to_owned(), |margin| margin.to_string());
            format!(
                "; token {} is {} in one answer and {} in the other, {margin}",
                parts.at + 1,
                parts.tokens[0],
                parts.tokens[1]
            )
        });
        format!("{values}{apart}{}", parts.unwrap_or_default())
    }
}

/// Share of the probability above which two distributions differ by more than rounding. To move this share, rounding
/// would have to change two logits by ln 3 each, in opposite directions.
const ANOTHER: f64 = 0.5;
/// Noise floor in nats above which log-probabilities decide nothing, since a change of ln 3 already makes a
/// different distribution.
const BLIND: f64 = 1.0986;

/// Returns the verdict for an error and a noise floor.
fn level(error: f64, floor: f64) -> Verdict {
    match error {
        error if error <= NoiseFloor::NEAR * floor => Verdict::Pass,
        error if error <= NoiseFloor::FAR * floor => Verdict::Inconclusive,
        _ => Verdict::Fail,
    }
}

/// Returns the margin of one log-probability over another; negative if it is smaller.
fn preferred(own: f64, other: f64) -> LogprobDifference {
    LogprobDifference { nats: own - other, share: own.exp() - other.exp() }
}

/// Returns the smallest log-probability of the returned top tokens.
fn least(place: &TokenPosition) -> Option<f64> {
    place.top.iter().filter_map(|named| named.logprob).reduce(f64::min)
}

fn logprob_of(place: &TokenPosition, named: &TokenLogprob) -> Option<f64> {
    place.top.iter().chain(&place.token).find(|known| known.is(named) && known.logprob.is_some())?.logprob
}

fn shown(named: &TokenLogprob) -> String {
    match (named.id, named.text.is_empty()) {
        (Some(id), true) => id.to_string(),
        (Some(id), false) => format!("{:?} ({id})", named.text),
        (None, _) => format!("{:?}", named.text),
    }
}

fn tells(place: &TokenPosition) -> bool {
    place.top.iter().chain(&place.token).any(|named| named.logprob.is_some())
}

/// Returns the precision of the log-probabilities in an answer: half of the last decimal place if few decimals are
/// written, or two roundings of the largest value if every value is a bf16 or f16 number.
pub(crate) fn coarseness(places: &[TokenPosition]) -> f64 {
    let named = places.iter().flat_map(|place| place.top.iter().chain(&place.token));
    let values: Vec<f32> = named.filter_map(|named| Some(named.logprob? as f32)).collect();
    let largest = values.iter().fold(0.0f64, |most, value| most.max(f64::from(value.abs())));
    let all = |short: fn(f32) -> f32| values.iter().all(|value| short(*value) == *value);
    let of_type = if all(|value| bf16::from_f32(value).to_f32()) {
        2.0 * largest / 256.0
    } else if all(|value| f16::from_f32(value).to_f32()) {
        2.0 * largest / 2048.0
    } else {
        0.0
    };
    of_type.max(decimals(places).unwrap_or(0.0))
}

/// Returns half of the last decimal place, if the server writes few decimals.
pub fn decimals<'p>(places: impl IntoIterator<Item = &'p TokenPosition>) -> Option<f64> {
    const SEEN: usize = 8;
    const MOST: usize = 6;
    let named = places.into_iter().flat_map(|place| place.top.iter().chain(&place.token));
    let values: Vec<f64> =
        named.filter_map(|named| named.logprob).filter(|value| value.fract() != 0.0).collect();
    let digits = |value: &f64| value.to_string().split_once('.').map_or(0, |(_, digits)| digits.len());
    let most = values.iter().map(digits).max().filter(|most| values.len() >= SEEN && *most <= MOST)?;
    Some(0.5 * 10f64.powi(-(most as i32)))
}
