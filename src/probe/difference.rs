//! How far two answers to the same question are apart, and whether rounding may have parted them.

use std::fmt;

use half::{bf16, f16};

use crate::compare::{Floor, Verdict};
use crate::probe::answer::{Named, Place};

/// How far two answers are apart, up to where they name different tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// Positions that were compared.
    pub places: usize,
    /// Log-probabilities that were compared.
    pub values: usize,
    /// The largest difference of log-probabilities, and the position.
    pub largest: f64,
    /// Where it is.
    pub at: usize,
    /// So much of the probability went from one token to others, where it was most: at least.
    pub moved: f64,
    /// The first position where the tokens are not the same.
    pub parts: Option<Parting>,
    /// Whether one ends before the other.
    pub ends_early: bool,
    /// Positions of which one tells log-probabilities, and the other none.
    pub untold: usize,
}

/// Two tokens at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Parting {
    /// The position.
    pub at: usize,
    /// Both, as they are shown.
    pub tokens: [String; 2],
    /// How much the first answer prefers its token to the other's; `None` where it does not tell.
    pub margin: Option<Margin>,
}

/// How much one token is preferred to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Margin {
    /// Both are told.
    Told(Moves),
    /// The other is not among the likeliest that are told, so that it is no likelier than the least of them.
    AtLeast(Moves),
}

/// How far two log-probabilities are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moves {
    /// In nats.
    pub nats: f64,
    /// As probabilities.
    pub share: f64,
}

impl Moves {
    /// Of one from another.
    pub fn of(one: f64, other: f64) -> Self {
        Self { nats: (one - other).abs(), share: (one.exp() - other.exp()).abs() }
    }

    /// The larger of both, each way.
    pub fn or(self, other: Self) -> Self {
        Self { nats: self.nats.max(other.nats), share: self.share.max(other.share) }
    }
}

impl Margin {
    fn of(place: &Place, first: &Named, second: &Named) -> Option<Self> {
        let own = logprob_of(place, first)?;
        if let Some(other) = logprob_of(place, second) {
            return Some(Self::Told(preferred(own, other)));
        }
        Some(Self::AtLeast(preferred(own, least(place)?)))
    }

    /// Whether rounding may have made the other choice. More than what is known of a bound cannot be ruled out.
    fn judge(self, floor: f64, by: impl Fn(Moves) -> f64) -> Verdict {
        let floor = Floor { max_abs: floor, ..Floor::default() };
        match self {
            Self::Told(margin) => floor.parts(by(margin), 0.0).0,
            Self::AtLeast(margin) => floor.parts(by(margin), 0.0).0.max(Verdict::Inconclusive),
        }
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Told(margin) => write!(f, "{:.1e} apart", margin.nats),
            Self::AtLeast(margin) => write!(f, "at least {:.1e} apart", margin.nats),
        }
    }
}

impl Difference {
    /// Between two lists of the same positions. What stands behind the first token that differs was asked another question.
    pub fn of(one: &[Place], other: &[Place]) -> Self {
        let mut found = Self { ends_early: one.len() != other.len(), ..Self::default() };
        for (at, (one, other)) in one.iter().zip(other).enumerate() {
            found.places += 1;
            found.compare(at, one, other);
            if let (Some(first), Some(second)) = (&one.token, &other.token)
                && !first.is(second)
            {
                let margin = Margin::of(one, first, second);
                found.parts = Some(Parting { at, tokens: [shown(first), shown(second)], margin });
                found.ends_early = false;
                break;
            }
        }
        found
    }

    fn compare(&mut self, at: usize, one: &Place, other: &Place) {
        self.untold += usize::from(tells(one) != tells(other));
        let mut seen: Vec<&Named> = Vec::new();
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
        // NaN is further apart than anything.
        if !(apart <= self.largest) {
            (self.largest, self.at) = (apart, at);
        }
    }

    /// What is not among the likeliest is no likelier than the least of them.
    fn lacks(&mut self, at: usize, p: f64, place: &Place) {
        if let Some(least) = least(place) {
            self.differ(at, (p - least).max(0.0));
            self.moved = self.moved.max(p.exp() - least.exp());
        }
    }

    /// Whether nothing is different.
    pub fn is_none(&self) -> bool {
        self.largest == 0.0
            && self.moved <= 0.0
            && self.parts.is_none()
            && !self.ends_early
            && self.untold == 0
    }

    /// Whether what was found is rounding. `floor` is how far rounding moves log-probabilities of this model on this text, where
    /// a model tells; `step` what decimals of the answers stand for.
    pub fn judge(&self, floor: Option<Moves>, step: f64) -> (Verdict, String) {
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
                    "{told}: another distribution, {:.0} % of the probability went elsewhere",
                    100.0 * self.moved
                ),
            );
        }
        // An end is a choice as others are; but which token it was, and how likely, is not told.
        if self.ends_early {
            return (Verdict::Inconclusive, format!("{told}; one ends before the other"));
        }
        if self.untold > 0 {
            let told = format!("{told}; at {} positions one of both tells no log-probabilities", self.untold);
            return (Verdict::Inconclusive, told);
        }
        let Some(floor) = floor else {
            return (Verdict::Inconclusive, format!("{told}; whether that is rounding, --model M tells"));
        };
        self.weigh(Moves { nats: floor.nats + step, share: floor.share + step }, told)
    }

    /// By what rounding comes to. Where it moves some log-probability by so much that it tells nothing of the likely ones, probabilities
    /// do.
    fn weigh(&self, floor: Moves, told: String) -> (Verdict, String) {
        let by_nats = level(self.largest, floor.nats);
        if floor.nats < BLIND {
            let by_choice = self.by_choice(floor.nats, |margin| margin.nats);
            return (by_nats.max(by_choice), format!("{told}; rounding moves them by {:.1e}", floor.nats));
        }
        let told = format!("{told}; rounding moves them by {:.1e} here", floor.nats);
        if Floor::NEAR * floor.share >= ANOTHER {
            return (by_nats.max(Verdict::Inconclusive), format!("{told}, so that nothing is told by it"));
        }
        let by_share = level(self.moved, floor.share).max(self.by_choice(floor.share, |margin| margin.share));
        let told = format!(
            "{told}, and probabilities by {:.1e}, of which these are up to {:.1e} apart",
            floor.share, self.moved
        );
        (by_nats.max(by_share), told)
    }

    /// Whether rounding may have made another choice.
    fn by_choice(&self, floor: f64, by: impl Fn(Moves) -> f64) -> Verdict {
        match &self.parts {
            None => Verdict::Pass,
            Some(Parting { margin: None, .. }) => Verdict::Inconclusive,
            Some(Parting { margin: Some(margin), .. }) => margin.judge(floor, by),
        }
    }

    fn told(&self) -> String {
        let values = match self.values {
            0 => format!("{} tokens, of which nothing more is told", self.places),
            values => format!("{values} log-probabilities of {} tokens", self.places),
        };
        let apart = match self.largest {
            _ if self.is_none() => return format!("{values}, the same"),
            0.0 => String::new(),
            largest => format!(", up to {largest:.1e} apart (token {})", self.at + 1),
        };
        let parts = self.parts.as_ref().map(|parts| {
            let margin =
                parts.margin.map_or("nobody tells how close".to_owned(), |margin| margin.to_string());
            format!("; token {} is {} or {}, {margin}", parts.at + 1, parts.tokens[0], parts.tokens[1])
        });
        format!("{values}{apart}{}", parts.unwrap_or_default())
    }
}

/// More of a distribution is elsewhere than where it was: this is not the same one, rounded. (To move so much, rounding would have
/// to change two logits by ln 3 against each other.)
const ANOTHER: f64 = 0.5;
/// Where rounding alone moves a log-probability by ln 3, it makes another distribution.
const BLIND: f64 = 1.0986;

/// Whether an error is what rounding comes to.
fn level(error: f64, floor: f64) -> Verdict {
    match error {
        error if error <= Floor::NEAR * floor => Verdict::Pass,
        error if error <= Floor::FAR * floor => Verdict::Inconclusive,
        _ => Verdict::Fail,
    }
}

/// How much likelier one is than another: less than nothing where it is not.
fn preferred(own: f64, other: f64) -> Moves {
    Moves { nats: own - other, share: own.exp() - other.exp() }
}

/// The least of the likeliest that are told.
fn least(place: &Place) -> Option<f64> {
    place.top.iter().filter_map(|named| named.logprob).reduce(f64::min)
}

fn logprob_of(place: &Place, named: &Named) -> Option<f64> {
    place.top.iter().chain(&place.token).find(|known| known.is(named) && known.logprob.is_some())?.logprob
}

fn shown(named: &Named) -> String {
    match (named.id, named.text.is_empty()) {
        (Some(id), true) => id.to_string(),
        (Some(id), false) => format!("{:?} ({id})", named.text),
        (None, _) => format!("{:?}", named.text),
    }
}

fn tells(place: &Place) -> bool {
    place.top.iter().chain(&place.token).any(|named| named.logprob.is_some())
}

/// How far log-probabilities may be from what they stand for: half of the last decimal, where few are written; where each of them is
/// a number of bf16 or f16, two roundings of the largest to that.
pub fn coarseness(places: &[Place]) -> f64 {
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

/// Half of the last decimal that a server writes, if it writes few: its values stand for all that round to them.
pub fn decimals<'p>(places: impl IntoIterator<Item = &'p Place>) -> Option<f64> {
    const SEEN: usize = 8;
    const MOST: usize = 6;
    let named = places.into_iter().flat_map(|place| place.top.iter().chain(&place.token));
    let values: Vec<f64> =
        named.filter_map(|named| named.logprob).filter(|value| value.fract() != 0.0).collect();
    let digits = |value: &f64| value.to_string().split_once('.').map_or(0, |(_, digits)| digits.len());
    let most = values.iter().map(digits).max().filter(|most| values.len() >= SEEN && *most <= MOST)?;
    Some(0.5 * 10f64.powi(-(most as i32)))
}
