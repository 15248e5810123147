//! Preferences of routers: margins between the scores of chosen and other experts.

use crate::align::AlignedDump;
use crate::ops::experts::ExpertGroups;
use crate::ops::sampling::argmax;
use crate::tensor::Tensor;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::checkpoint::{Point, Site};
use crate::exact::{self, DEEPEST, ExactValue, Node, node_of};
use crate::view::View;

/// Margins by which the scores of a pass prefer the experts that our engine chose: a router's logits, or the scores
/// that a model computes from them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Preference {
    /// Largest margin to an expert that the dump chose. 0 if both sides chose the same experts.
    pub(crate) margin: f64,
    /// Smallest margin to an expert that our engine did not choose.
    pub closest: f64,
    /// Largest change that rounding can cause in the difference of two scores, for `margin` and for `closest`. `None`
    /// if not evaluated.
    pub(crate) parted: Option<[f64; 2]>,
}

/// Layer and pass of a router.
type RouterSite = (Option<usize>, Option<usize>);

/// The scores of a run by which experts are chosen, by layer and pass: router logits, or the model's scores.
#[derive(Debug, Default)]
pub(crate) struct Routers {
    scores: HashMap<RouterSite, (Point, Tensor)>,
    groups: Option<ExpertGroups>,
}

impl Routers {
    /// Makes an empty store of scores for a model with these groups of experts.
    pub(crate) fn of(groups: Option<ExpertGroups>) -> Self {
        Self { groups, ..Self::default() }
    }

    /// Stores a value if it is router logits or scores. Scores replace logits.
    pub(crate) fn look(&mut self, site: Site, value: &Tensor) {
        if matches!(site.point, Point::RouterLogits | Point::ExpertScores) {
            self.scores.insert((site.layer, site.pass), (site.point, value.clone()));
        }
    }

    /// Returns the number of experts of a site's layer.
    pub(crate) fn experts(&self, site: Site) -> Option<usize> {
        self.scores.get(&(site.layer, site.pass)).map(|(_, scores)| scores.row_len())
    }

    /// Returns two margins by which scores prefer the experts `own`, `[T, k]`: to the dump's experts, if recorded, and
    /// to the nearest other expert. Returns `None` if an expert does not exist, or if another one has a larger score,
    /// because these scores then do not decide the choice.
    pub(crate) fn preference(
        &self,
        site: Site,
        own: &Tensor,
        dumped: Option<&View>,
        is_evaluating: bool,
    ) -> Option<Preference> {
        let (point, scores) = self.scores.get(&(site.layer, site.pass))?;
        // With many operations before the scores, their error is measured instead of evaluated.
        let is_near = |node: Arc<Node>| node.depth <= DEEPEST;
        let is_evaluating = is_evaluating && scores.origins().iter().filter_map(node_of).all(is_near);
        let exacts = match is_evaluating {
            true => exact::known(scores),
            false => scores.data().iter().map(|&logit| ExactValue::sure(logit.into())).collect(),
        };
        let theirs = dumped.map_or_else(|| own.data().iter().map(|&x| x.into()).collect(), View::to_vec);
        let is_expert = |expert: f64| (0.0..scores.row_len() as f64).contains(&expert);
        if !own.data().iter().map(|&x| x.into()).chain(theirs.iter().copied()).all(is_expert) {
            return None;
        }
        let (mut margin, mut closest) = (ScoreGap::NONE, ScoreGap::ALL);
        for ((own, theirs), exacts) in own
            .data()
            .chunks(own.row_len())
            .zip(theirs.chunks(own.row_len()))
            .zip(exacts.chunks(scores.row_len()))
        {
            let router = TokenScores::new(exacts, *point, self.groups);
            let set = |chosen: &mut dyn Iterator<Item = usize>| chosen.collect::<HashSet<usize>>();
            let own = set(&mut own.iter().map(|&x| x as usize));
            let others: HashSet<usize> = (0..exacts.len()).filter(|expert| !own.contains(expert)).collect();
            let nearest = router.narrowest(&own, &others);
            if nearest.wide < -nearest.parted {
                return None; // other experts have larger scores: these are not the scores of the choice
            }
            let theirs = set(&mut theirs.iter().map(|&x| x as usize));
            margin = margin.larger(router.margin(&own, &theirs));
            closest = closest.smaller(nearest);
        }
        let parted = is_evaluating.then_some([margin.parted, closest.parted]);
        // A margin that is not a number is no tie.
        let wide = if margin.wide < 0.0 { 0.0 } else { margin.wide };
        Some(Preference { margin: wide, closest: closest.wide, parted })
    }
}

/// The difference of two scores, and the largest change of the difference that rounding can cause.
#[derive(Clone, Copy)]
struct ScoreGap {
    wide: f64,
    parted: f64,
}

impl ScoreGap {
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

/// The scores of one token.
struct TokenScores<'e> {
    exacts: &'e [ExactValue],
    /// Largest logit; `None` for scores that are not logits.
    largest: Option<f64>,
    groups: Option<GroupScores>,
}

/// The scores of a token's groups of experts.
struct GroupScores {
    /// Number of experts in a group.
    size: usize,
    /// Number of groups that the token chooses from.
    used: usize,
    scores: Vec<ExactValue>,
    is_chosen: Vec<bool>,
}

impl GroupScores {
    fn new(exacts: &[ExactValue], groups: ExpertGroups) -> Self {
        let values: Vec<f32> = exacts.iter().map(|exact| exact.value as f32).collect();
        let size = (exacts.len() / groups.count).max(1);
        let of_group = |(group, exacts): (f32, &[ExactValue])| {
            // Rounding may put other experts among a group's largest.
            let radius = exacts.iter().map(|exact| exact.radius).fold(0.0, f64::max);
            ExactValue { value: group.into(), sigma: 0.0, radius: radius * groups.summed as f64 }
        };
        let scores = groups.scores(&values).into_iter().zip(exacts.chunks(size)).map(of_group).collect();
        Self { size, used: groups.used, scores, is_chosen: groups.chosen(&values) }
    }

    /// Returns the smallest gap between a chosen group and another group: the group of the expert `other`, or any group
    /// that was not chosen.
    fn gap(&self, other: Option<usize>) -> ScoreGap {
        let gaps = |other: usize| {
            let chosen = self.scores.iter().zip(&self.is_chosen).filter(|(_, is_chosen)| **is_chosen);
            chosen
                .map(move |(one, _)| between(one, &self.scores[other]))
                .fold(ScoreGap::ALL, ScoreGap::smaller)
        };
        match other {
            Some(expert) => gaps(expert / self.size),
            None => {
                let others = (0..self.scores.len()).filter(|&group| !self.is_chosen[group]);
                others.map(gaps).fold(ScoreGap::ALL, ScoreGap::smaller)
            }
        }
    }

    /// Returns the largest gap between a group outside `these` and a group of `these`.
    fn widest(&self, these: &[usize]) -> ScoreGap {
        let others = (0..self.scores.len()).filter(|group| !these.contains(group));
        others
            .flat_map(|other| these.iter().map(move |&this| between(&self.scores[other], &self.scores[this])))
            .fold(ScoreGap::NONE, ScoreGap::larger)
    }

    fn has_chosen(&self, expert: usize) -> bool {
        self.is_chosen.get(expert / self.size).copied().unwrap_or(false)
    }
}

/// Returns the difference of two scores and its error bound, with the roundings of their sums.
fn between(one: &ExactValue, other: &ExactValue) -> ScoreGap {
    let own = |exact: &ExactValue| exact.radius + 2.0 * U * exact.value.abs();
    ScoreGap { wide: one.value - other.value, parted: own(one) + own(other) }
}

const U: f64 = 1.0 / (1u64 << 24) as f64;

impl<'e> TokenScores<'e> {
    fn new(exacts: &'e [ExactValue], point: Point, groups: Option<ExpertGroups>) -> Self {
        let is_of_logits = point == Point::RouterLogits;
        let largest =
            is_of_logits.then(|| exacts.iter().map(|exact| exact.value).fold(f64::NEG_INFINITY, f64::max));
        Self { exacts, largest, groups: groups.map(|groups| GroupScores::new(exacts, groups)) }
    }

    /// Returns the margin by which the scores prefer `own` experts to `theirs`.
    fn margin(&self, own: &HashSet<usize>, theirs: &HashSet<usize>) -> ScoreGap {
        match &self.groups {
            Some(groups) if own != theirs => self.margin_in(groups, theirs),
            _ => self.widest(own.difference(theirs), theirs.difference(own)),
        }
    }

    /// Returns the smallest margin, over all sets of groups that contain `theirs`, by which the scores prefer other experts
    /// or other groups. Infinite if `theirs` lie in more groups than a token may use.
    fn margin_in(&self, groups: &GroupScores, theirs: &HashSet<usize>) -> ScoreGap {
        let with: HashSet<usize> = theirs.iter().map(|expert| expert / groups.size).collect();
        let Some(free) = groups.used.checked_sub(with.len()) else { return ScoreGap::ALL };
        // `theirs` can be chosen from a set of groups only if no other expert in these groups has a larger score.
        let passed_over = |group: usize| {
            let all = group * groups.size..self.exacts.len().min((group + 1) * groups.size);
            let others: Vec<usize> = all.filter(|expert| !theirs.contains(expert)).collect();
            self.widest(others.iter(), theirs.iter())
        };
        let sure = with.iter().map(|&group| passed_over(group)).fold(ScoreGap::NONE, ScoreGap::larger);
        let mut rest: Vec<(usize, ScoreGap)> = (0..groups.scores.len())
            .filter(|group| !with.contains(group))
            .map(|group| (group, passed_over(group)))
            .collect();
        rest.sort_by(|(_, one), (_, other)| one.beyond().total_cmp(&other.beyond()));
        let mut margin = ScoreGap::ALL;
        for count in free..=rest.len() {
            let worst = rest[..count].last().map_or(sure, |(_, gap)| sure.larger(*gap));
            if worst.beyond() > margin.beyond() {
                break;
            }
            let mut fill: Vec<usize> = rest[..count].iter().map(|(group, _)| *group).collect();
            fill.sort_by(|&a, &b| groups.scores[b].value.total_cmp(&groups.scores[a].value));
            fill.truncate(free);
            fill.extend(&with);
            margin = margin.smaller(worst.larger(groups.widest(&fill)));
        }
        margin
    }

    /// Returns the difference of two experts' exact scores and its error bound. The bound of logits includes the error of
    /// the `f32` softmax: two roundings, and the error of the library's exponential.
    fn direct(&self, one: usize, other: usize) -> ScoreGap {
        let (first, second) = (&self.exacts[one], &self.exacts[other]);
        match self.largest {
            None => between(first, second),
            Some(largest) => {
                let own = |exact: &ExactValue| exact.radius + U * (8.0 + largest - exact.value);
                ScoreGap { wide: first.value - second.value, parted: own(first) + own(second) }
            }
        }
    }

    /// Returns the smallest change of scores that puts an expert in place of a chosen one. For an expert outside of the
    /// chosen groups, this is a change of group scores; for others, too, if groups have nearly equal scores.
    fn gap(&self, one: usize, other: usize) -> ScoreGap {
        let direct = self.direct(one, other);
        match &self.groups {
            None => direct,
            Some(groups) if groups.has_chosen(other) => direct.smaller(groups.gap(None)),
            Some(groups) => groups.gap(Some(other)),
        }
    }

    fn widest<'n>(
        &self,
        of: impl Iterator<Item = &'n usize>,
        than: impl Iterator<Item = &'n usize> + Clone,
    ) -> ScoreGap {
        of.flat_map(|&one| than.clone().map(move |&other| (one, other)))
            .map(|(one, other)| self.direct(one, other))
            .fold(ScoreGap::NONE, ScoreGap::larger)
    }

    fn narrowest(&self, of: &HashSet<usize>, than: &HashSet<usize>) -> ScoreGap {
        let gaps = of.iter().flat_map(|&one| than.iter().map(move |&other| (one, other)));
        gaps.map(|(one, other)| self.gap(one, other)).fold(ScoreGap::ALL, ScoreGap::smaller)
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
