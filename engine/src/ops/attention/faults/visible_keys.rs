//! Wrong rules for the keys that a query sees: the first keys are kept, a buffer is trimmed by its padded length,
//! keys are shifted, the last block is not read, the cache is a ring buffer, or some keys are seen by no query.

use std::ops::Range;

use crate::change::{ChangeValue, SiteContext, index_range};
use crate::ops::attention::exact::Softmax;
use crate::ops::attention::faults::masked_scores::softmax_of_seen;
use crate::tensor::Tensor;

/// A rule by which a query sees keys.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum KeyRule {
    /// The first keys, and a window of the latest keys (StreamingLLM).
    Sinks {
        /// Number of first keys.
        first: usize,
        /// Number of latest keys.
        window: usize,
    },
    /// The model's window, but counted from the end of a buffer that is padded to a multiple of this step.
    Padded(usize),
    /// The keys that the model shows, shifted this many positions later.
    Shifted(isize),
    /// The keys that the model shows, except those in a last block of this size that is not full.
    WholeBlocks(usize),
    /// The keys that the model shows, but only those among this many latest keys at the pass's end (a ring buffer).
    Ring(usize),
    /// The keys that the model shows, except the latest cached ones: this many, just before the pass.
    WithoutLatest(usize),
    /// The keys that the model shows, except those at some positions.
    Without {
        /// First hidden position.
        first: usize,
        /// Last hidden position.
        last: usize,
    },
}

/// A query: its position, the keys that the model shows it, and the positions of its pass.
#[derive(Clone)]
struct Query {
    own: Range<usize>,
    window: Option<usize>,
    pass: Range<usize>,
}

impl KeyRule {
    /// Parses a value of `mask_window`.
    pub(super) fn of_window(word: &str) -> Option<Self> {
        if let Some((first, window)) = word.split_once('+') {
            return Some(Self::Sinks { first: first.parse().ok()?, window: window.parse().ok()? });
        }
        let (name, number) = word.split_once(':')?;
        match name {
            "padded" => Some(Self::Padded(number.parse().ok().filter(|&step| step > 0)?)),
            "ring" => Some(Self::Ring(number.parse().ok()?)),
            _ => None,
        }
    }

    /// Parses a value of `mask_causal`.
    pub(super) fn of_mask(word: &str) -> Option<Self> {
        let (name, number) = word.split_once(':')?;
        match name {
            "shifted" => Some(Self::Shifted(number.parse().ok()?)),
            "whole-blocks" => Some(Self::WholeBlocks(number.parse().ok().filter(|&size| size > 0)?)),
            "without-latest" => Some(Self::WithoutLatest(number.parse().ok().filter(|&keys| keys > 0)?)),
            "without" => {
                let hidden = index_range(number)?;
                Some(Self::Without { first: hidden.start, last: hidden.end - 1 })
            }
            _ => None,
        }
    }

    fn value(self) -> ChangeValue {
        ChangeValue::Word(match self {
            Self::Sinks { first, window } => format!("{first}+{window}"),
            Self::Padded(step) => format!("padded:{step}"),
            Self::Shifted(by) => format!("shifted:{by}"),
            Self::WholeBlocks(size) => format!("whole-blocks:{size}"),
            Self::Ring(rows) => format!("ring:{rows}"),
            Self::WithoutLatest(keys) => format!("without-latest:{keys}"),
            Self::Without { first, last } if first == last => format!("without:{first}"),
            Self::Without { first, last } => format!("without:{first}-{last}"),
        })
    }

    fn is_of_window(self) -> bool {
        matches!(self, Self::Sinks { .. } | Self::Padded(_) | Self::Ring(_))
    }

    /// Returns true if a query sees a key. The key is a token position.
    fn sees(self, query: &Query, key: usize) -> bool {
        let Query { own, window, pass } = query;
        match self {
            Self::Sinks { first, window } => key < own.end && (key < first || key + window >= own.end),
            Self::Padded(step) => {
                let padded = own.end.next_multiple_of(step);
                key < own.end && window.is_some_and(|window| key + window >= padded)
            }
            Self::Shifted(by) => {
                let start = if own.start == 0 { Some(0) } else { own.start.checked_add_signed(by) };
                let seen = start.unwrap_or(0)..own.end.checked_add_signed(by).unwrap_or(0);
                seen.contains(&key)
            }
            Self::WholeBlocks(size) => own.contains(&key) && key < own.end / size * size,
            Self::Ring(rows) => own.contains(&key) && key + rows >= pass.end,
            Self::WithoutLatest(keys) => {
                own.contains(&key) && !(pass.start.saturating_sub(keys)..pass.start).contains(&key)
            }
            Self::Without { first, last } => own.contains(&key) && !(first..=last).contains(&key),
        }
    }

    /// Computes softmax over the keys that the rule shows. Returns `None` if the model shows the same keys.
    pub(super) fn softmax(self, at: &SiteContext) -> Option<Tensor> {
        let extent = KeyExtent::of(at)?;
        let shown: Vec<Vec<bool>> = (0..extent.tokens).map(|token| extent.shown(self, token)).collect();
        let is_model = (0..extent.tokens).all(|token| shown[token] == extent.own(token));
        if is_model { None } else { softmax_of_seen(at, |token, key| shown[token][key]) }
    }
}

/// Queries and keys of a pass.
struct KeyExtent {
    tokens: usize,
    keys: usize,
    /// Number of keys that were dropped before the first key.
    dropped: usize,
    /// Position of the first query.
    position: usize,
    window: Option<usize>,
    has_chunks: bool,
}

impl KeyExtent {
    fn of(at: &SiteContext) -> Option<Self> {
        let Softmax { scores, mask, .. } = at.stage()?;
        let &[_, tokens, keys] = scores.shape() else { return None };
        let position = mask.position.max(at.positions.start);
        // A mask that shows every key has no position.
        (mask.position <= keys).then_some(Self {
            tokens,
            keys,
            dropped: position - mask.position,
            position,
            window: mask.window,
            has_chunks: mask.chunks.is_some(),
        })
    }

    fn query(&self, token: usize) -> Query {
        let end = self.position + token + 1;
        let seen = match self.window {
            Some(chunk) if self.has_chunks => (end - 1) % chunk + 1,
            window => window.unwrap_or(end),
        };
        let first = end.saturating_sub(seen);
        Query {
            own: first.max(self.dropped)..end,
            window: self.window,
            pass: self.position..self.position + self.tokens,
        }
    }

    /// Returns one entry per key: true if the model shows the key to a query.
    fn own(&self, token: usize) -> Vec<bool> {
        let own = self.query(token).own;
        (0..self.keys).map(|key| own.contains(&(self.dropped + key))).collect()
    }

    /// Returns one entry per key: true if a rule shows the key to a query. If the rule shows a query no keys, the query
    /// sees the model's keys.
    fn shown(&self, rule: KeyRule, token: usize) -> Vec<bool> {
        let query = self.query(token);
        let shown: Vec<bool> = (0..self.keys).map(|key| rule.sees(&query, self.dropped + key)).collect();
        if shown.contains(&true) { shown } else { self.own(token) }
    }

    /// Returns all rules that change the keys of some query, those with few parameters first.
    fn rules(&self) -> Vec<KeyRule> {
        let length = self.position + self.tokens;
        let most = length.min(MOST_PARAMETERS);
        let mut rules: Vec<KeyRule> = (2..=most).map(KeyRule::WholeBlocks).collect();
        rules.extend([-1, 1, -2, 2, -3, 3].map(KeyRule::Shifted));
        if self.window.is_some() {
            rules.extend((2..=MOST_PARAMETERS).map(KeyRule::Padded));
        }
        if self.tokens > 1 {
            rules.extend((1..most).map(KeyRule::Ring));
        }
        rules.extend((1..=LATEST.min(self.position)).map(KeyRule::WithoutLatest));
        for first in [1, 2, 3, 4, 8] {
            rules.extend((1..most).map(|window| KeyRule::Sinks { first, window }));
        }
        rules
    }

    /// Returns the rule that hides the keys which no query sees, if these keys are consecutive and some query sees keys
    /// on both sides of them.
    fn hidden(&self, seen: &[Vec<bool>]) -> Option<KeyRule> {
        let is_hidden = |&key: &usize| {
            let shows = |token: usize| self.own(token)[key];
            (0..self.tokens).any(shows) && (0..self.tokens).all(|token| !shows(token) || !seen[token][key])
        };
        let hidden: Vec<usize> = (0..self.keys).filter(is_hidden).collect();
        let (&first, &last) = (hidden.first()?, hidden.last()?);
        let is_run = last - first + 1 == hidden.len();
        let is_inside =
            seen.iter().any(|row| row[..first].contains(&true) && row[last + 1..].contains(&true));
        let [first, last] = [first, last].map(|key| key + self.dropped);
        (is_run && is_inside).then_some(KeyRule::Without { first, last })
    }

    /// Returns the rule that keeps the first keys, if the keys that a query sees have a gap.
    fn sinks(&self, seen: &[Vec<bool>]) -> Option<KeyRule> {
        let end = |token: usize| self.position + token + 1 - self.dropped;
        let gap = |token: usize| {
            let row = seen[token].get(..end(token))?;
            let first = row.iter().position(|seen| !seen).filter(|&first| first > 0)?;
            let window = row.iter().rev().position(|seen| !seen).filter(|&window| window > 0)?;
            Some(KeyRule::Sinks { first: first + self.dropped, window })
        };
        (0..self.tokens).rev().find_map(gap)
    }
}

/// Largest block, step or window that is tried when no attention weights are recorded.
const MOST_PARAMETERS: usize = 128;

/// Largest number of keys before the current pass for which hiding is tried.
const LATEST: usize = 8;

/// Maximum number of rules of one family that are read from the keys that queries see.
const MOST_RULES: usize = 6;

/// Finds the rules under which each query sees exactly the keys that have a nonzero weight in some head.
pub(super) fn read(at: &SiteContext, theirs: &[f64], is_of_window: bool) -> Vec<ChangeValue> {
    let Some(extent) = KeyExtent::of(at) else { return Vec::new() };
    let heads = theirs.len() / (extent.tokens * extent.keys).max(1);
    let weight =
        |head: usize, token: usize, key: usize| theirs[(head * extent.tokens + token) * extent.keys + key];
    let sees = |token: usize, key: usize| (0..heads).any(|head| weight(head, token, key) > 0.0);
    let seen: Vec<Vec<bool>> =
        (0..extent.tokens).map(|token| (0..extent.keys).map(|key| sees(token, key)).collect()).collect();
    let is_made_by =
        |rule: &KeyRule| (0..extent.tokens).rev().all(|token| extent.shown(*rule, token) == seen[token]);
    let rules = extent.rules().into_iter().chain(extent.hidden(&seen)).chain(extent.sinks(&seen));
    let mut read: Vec<ChangeValue> = Vec::new();
    for rule in rules.filter(|rule| rule.is_of_window() == is_of_window).filter(is_made_by) {
        let value = rule.value();
        if !read.contains(&value) && read.len() < MOST_RULES {
            read.push(value);
        }
    }
    read
}

/// Returns usual windows and rules, tried if no weights are recorded.
pub(super) fn all(at: &SiteContext, is_of_window: bool) -> Vec<ChangeValue> {
    let Some(extent) = KeyExtent::of(at) else { return Vec::new() };
    let length = extent.position + extent.tokens;
    let windows = (1..length.min(MOST_PARAMETERS)).filter(|_| is_of_window);
    let windows = windows.map(|window| ChangeValue::Number(window as f64));
    let rules = extent.rules().into_iter().filter(|rule| rule.is_of_window() == is_of_window);
    let is_usual = |rule: &KeyRule| match rule {
        KeyRule::Padded(step) => step.is_power_of_two() || *step <= 8,
        KeyRule::Sinks { window, .. } => window.is_power_of_two() || *window <= 12,
        KeyRule::WholeBlocks(size) => *size <= 8 || size.is_multiple_of(8),
        _ => true,
    };
    windows.chain(rules.filter(is_usual).map(KeyRule::value)).collect()
}
