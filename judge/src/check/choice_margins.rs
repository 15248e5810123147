//! Preferences of routers: margins between the logits of chosen and other experts.

use crate::align::AlignedDump;
use crate::ops::sampling::argmax;
use crate::tensor::Tensor;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::checkpoint::{Point, Site};
use crate::exact::{self, DEEPEST, ExactValue, Node, node_of};
use crate::view::View;

/// Margins by which the router logits of a pass prefer the experts that our engine chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Preference {
    /// Largest margin over the dump's experts. 0 if both sides chose the same experts.
    pub(crate) margin: f64,
    /// Smallest margin over an expert that our engine did not choose.
    pub(crate) closest: f64,
    /// Largest change of the two logits' difference that rounding can cause, for `margin` and for `closest`.
    /// `None` if not evaluated.
    pub(crate) parted: Option<[f64; 2]>,
}

/// A layer and a pass.
type RouterSite = (Option<usize>, Option<usize>);

/// The router logits of a run, by layer and pass.
#[derive(Debug, Default)]
pub(crate) struct Routers {
    logits: HashMap<RouterSite, Tensor>,
}

impl Routers {
    /// Stores a value if it is router logits.
    pub(crate) fn look(&mut self, site: Site, value: &Tensor) {
        if site.point == Point::RouterLogits {
            self.logits.insert((site.layer, site.pass), value.clone());
        }
    }

    /// Returns the number of experts of a site's layer.
    pub(crate) fn experts(&self, site: Site) -> Option<usize> {
        self.logits.get(&(site.layer, site.pass)).map(Tensor::row_len)
    }

    /// Returns the margins by which the router logits prefer `own` experts, `[T, k]`, to the dump's, if
    /// recorded, and to all others.
    pub(crate) fn preference(
        &self,
        site: Site,
        own: &Tensor,
        dumped: Option<&View>,
        is_evaluating: bool,
    ) -> Option<Preference> {
        let logits = self.logits.get(&(site.layer, site.pass))?;
        // With many operations before the logits, their error is measured instead of evaluated.
        let is_near = |node: Arc<Node>| node.depth <= DEEPEST;
        let is_evaluating = is_evaluating && logits.origins().iter().filter_map(node_of).all(is_near);
        let exacts = match is_evaluating {
            true => exact::known(logits),
            false => logits.data().iter().map(|&logit| ExactValue::sure(logit.into())).collect(),
        };
        let theirs = dumped.map_or_else(|| own.data().iter().map(|&x| x.into()).collect(), View::to_vec);
        let (mut margin, mut closest) = (LogitGap::NONE, LogitGap::ALL);
        for ((own, theirs), exacts) in own
            .data()
            .chunks(own.row_len())
            .zip(theirs.chunks(own.row_len()))
            .zip(exacts.chunks(logits.row_len()))
        {
            let router = RouterLogits::new(exacts);
            let set = |chosen: &mut dyn Iterator<Item = usize>| chosen.collect::<HashSet<usize>>();
            let own = set(&mut own.iter().map(|&x| x as usize));
            let theirs = set(&mut theirs.iter().map(|&x| x as usize));
            margin = margin.larger(router.widest(own.difference(&theirs), theirs.difference(&own)));
            let others: HashSet<usize> = (0..exacts.len()).filter(|expert| !own.contains(expert)).collect();
            closest = closest.smaller(router.narrowest(&own, &others));
        }
        let parted = is_evaluating.then_some([margin.parted, closest.parted]);
        Some(Preference { margin: margin.wide.max(0.0), closest: closest.wide, parted })
    }
}

/// The difference of two logits, and the change of it that rounding can cause.
#[derive(Clone, Copy)]
struct LogitGap {
    wide: f64,
    parted: f64,
}

impl LogitGap {
    const NONE: Self = Self { wide: f64::NEG_INFINITY, parted: 0.0 };
    const ALL: Self = Self { wide: f64::INFINITY, parted: 0.0 };

    fn beyond(self) -> f64 {
        self.wide - self.parted
    }

    fn larger(self, other: Self) -> Self {
        if other.beyond() > self.beyond() || other.wide.is_nan() { other } else { self }
    }

    fn smaller(self, other: Self) -> Self {
        if other.beyond() < self.beyond() || other.wide.is_nan() { other } else { self }
    }
}

/// The router logits of one token.
struct RouterLogits<'e> {
    exacts: &'e [ExactValue],
    largest: f64,
}

impl<'e> RouterLogits<'e> {
    fn new(exacts: &'e [ExactValue]) -> Self {
        let largest = exacts.iter().map(|exact| exact.value).fold(f64::NEG_INFINITY, f64::max);
        Self { exacts, largest }
    }

    /// Returns the difference of two experts' exact logits and its error bound. The bound includes the error of the `f32`
    /// softmax: two roundings, and the error of the library's exponential.
    fn gap(&self, one: usize, other: usize) -> LogitGap {
        const U: f64 = 1.0 / (1u64 << 24) as f64;
        let (one, other) = (&self.exacts[one], &self.exacts[other]);
        let own = |exact: &ExactValue| exact.radius + U * (8.0 + self.largest - exact.value);
        LogitGap { wide: one.value - other.value, parted: own(one) + own(other) }
    }

    fn widest<'n>(
        &self,
        of: impl Iterator<Item = &'n usize>,
        than: impl Iterator<Item = &'n usize> + Clone,
    ) -> LogitGap {
        of.flat_map(|&one| than.clone().map(move |&other| (one, other)))
            .map(|(one, other)| self.gap(one, other))
            .fold(LogitGap::NONE, LogitGap::larger)
    }

    fn narrowest(&self, of: &HashSet<usize>, than: &HashSet<usize>) -> LogitGap {
        let gaps = of.iter().flat_map(|&one| than.iter().map(move |&other| (one, other)));
        gaps.map(|(one, other)| self.gap(one, other)).fold(LogitGap::ALL, LogitGap::smaller)
    }
}

/// A draft token for which our engine prefers another token. Speculative decoding reads such tokens in the
/// pass that verifies them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftToken {
    /// The pass that read the token.
    pub(crate) pass: usize,
    /// The position before the token.
    pub(crate) position: usize,
    /// The token that was read.
    pub(crate) read: u32,
    /// The token that our engine prefers.
    pub(crate) own: u32,
    /// Margin by which our logits prefer `own` to `read`.
    pub(crate) margin: f64,
}

impl DraftToken {
    /// Returns the draft token of a pass for which our engine prefers another token by the largest margin.
    pub(crate) fn widest(held: &AlignedDump, pass: usize, logits: &Tensor) -> Option<Self> {
        let first = held.passes().get(pass).filter(|known| known.tokens.len() == logits.rows())?.position;
        let other = |row: usize| {
            let position = first + row;
            let read = held.choices.at(position)?;
            let logits = logits.row(row);
            let own = argmax(logits);
            let margin = f64::from(logits[own]) - f64::from(*logits.get(read as usize)?);
            (own != read as usize).then_some(Self { pass, position, read, own: own as u32, margin })
        };
        (0..logits.rows() - 1).filter_map(other).max_by(|a, b| a.margin.total_cmp(&b.margin))
    }
}
