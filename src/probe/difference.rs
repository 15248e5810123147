//! How far two answers to the same question are apart, and whether rounding may have parted them.

use std::fmt;

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
}

/// Two tokens at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Parting {
    /// The position.
    pub at: usize,
    /// Both, as they are shown.
    pub tokens: [String; 2],
    /// How much the first answer prefers its token to the other's, in nats; `None` where it does not tell.
    pub margin: Option<Margin>,
}

/// How much one token is preferred to another, in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Margin {
    /// Both are told.
    Told(f64),
    /// The other is not among the likeliest that are told, so that it is no likelier than the least of them.
    AtLeast(f64),
}

impl Margin {
    fn of(place: &Place, first: &Named, second: &Named) -> Option<Self> {
        let own = logprob_of(place, first)?;
        if let Some(other) = logprob_of(place, second) {
            return Some(Self::Told(own - other));
        }
        Some(Self::AtLeast(own - least(place)?))
    }

    /// Whether rounding may have made the other choice. More than what is known of a bound cannot be ruled out.
    fn judge(self, floor: &Floor) -> Verdict {
        match self {
            Self::Told(margin) => floor.parts(margin, 0.0).0,
            Self::AtLeast(margin) => floor.parts(margin, 0.0).0.max(Verdict::Inconclusive),
        }
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Told(margin) => write!(f, "{margin:.1e} apart"),
            Self::AtLeast(margin) => write!(f, "at least {margin:.1e} apart"),
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
                    let apart = (p - q).abs();
                    // NaN is further apart than anything.
                    if !(apart <= self.largest) {
                        (self.largest, self.at) = (apart, at);
                    }
                    self.moved = self.moved.max((p.exp() - q.exp()).abs());
                }
                // What is not among the likeliest is no likelier than the least of them.
                None => {
                    let least = least(other).unwrap_or(f64::NAN);
                    self.moved = self.moved.max(p.exp() - least.exp());
                }
            }
        }
    }

    /// Whether nothing is different.
    pub fn is_none(&self) -> bool {
        self.largest == 0.0 && self.moved == 0.0 && self.parts.is_none() && !self.ends_early
    }

    /// Whether what was found is rounding. `floor` is how far rounding moves log-probabilities of this model on this text, where
    /// a model tells; `step` what decimals of the answers stand for.
    pub fn judge(&self, floor: Option<f64>, step: f64) -> (Verdict, String) {
        let told = self.told();
        if self.places == 0 {
            return (Verdict::Inconclusive, "nothing was compared".to_owned());
        }
        if self.is_none() {
            return (Verdict::Pass, told);
        }
        if self.ends_early {
            return (Verdict::Fail, format!("{told}; one ends before the other"));
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
        let Some(floor) = floor else {
            return (Verdict::Inconclusive, format!("{told}; whether that is rounding, --model M tells"));
        };
        let floor = Floor { max_abs: floor + step, ..Floor::default() };
        let by_values = match self.largest {
            largest if largest <= Floor::NEAR * floor.max_abs => Verdict::Pass,
            largest if largest <= Floor::FAR * floor.max_abs => Verdict::Inconclusive,
            _ => Verdict::Fail,
        };
        let by_choice = match &self.parts {
            None => Verdict::Pass,
            Some(Parting { margin: None, .. }) => Verdict::Inconclusive,
            Some(Parting { margin: Some(margin), .. }) => margin.judge(&floor),
        };
        (by_values.max(by_choice), format!("{told}; rounding moves them by {:.1e}", floor.max_abs))
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
