//! A site of two dumps at the same positions: common rows, masks, top tokens, and precision.

use crate::align::{CommonExperts, ComparableEntries, DumpSite, MissingValues, latest_keys};
use crate::check::choice_margins::{Preference, Routers};
use crate::check::ranks::{RankPair, Ranks};
use crate::check::site_check::{ArrayComparison, ValuePair};
use crate::check::uniform_distribution::UniformErrors;
use crate::checkpoint::Point;
use crate::error::Result;
use crate::measure::{LogprobPrecision, ValuePrecision, coarser};
use crate::model::{may_have_expert_groups, may_have_expert_scores};
use crate::tensor::Tensor;
use crate::view::View;
use crate::weight::DType;

/// A site of a candidate and of a reference dump.
pub(super) struct SitePair<'p, 'd> {
    pub(super) candidate: DumpSite<'p, 'd>,
    pub(super) reference: DumpSite<'p, 'd>,
}

impl<'p, 'd> SitePair<'p, 'd> {
    /// Returns both sides, the candidate first.
    pub(super) fn both(&self) -> [&DumpSite<'p, 'd>; 2] {
        [&self.candidate, &self.reference]
    }

    /// Returns another tap at the same layer and positions.
    fn tap(&self, point: Point) -> Self {
        Self { candidate: self.candidate.tap(point), reference: self.reference.tap(point) }
    }

    /// Returns the values of both sides.
    pub(super) fn values(&self) -> Result<Result<(View<'static>, View<'static>), MissingValues>> {
        let (candidate, reference) = (self.candidate.values()?, self.reference.values()?);
        Ok(candidate.and_then(|candidate| Ok((candidate, reference?))))
    }

    /// Returns the rows that both dumps record, counted from the first position. `None` for all rows.
    pub(super) fn common_rows(&self) -> Option<Vec<usize>> {
        match self.both().map(DumpSite::rows_held) {
            [Some(mut one), Some(other)] => {
                one.retain(|row| other.binary_search(row).is_ok());
                Some(one)
            }
            [one, other] => one.or(other),
        }
    }

    /// Returns the rows that both dumps record, one by one.
    pub(super) fn listed_rows(&self) -> Vec<usize> {
        self.common_rows().unwrap_or_else(|| (0..self.candidate.positions.len()).collect())
    }

    /// Returns the types of both sides' values, for operations that round to `computed`.
    pub(super) fn precision(&self, computed: DType) -> ValuePrecision {
        let [one, other] = self.both().map(DumpSite::stored);
        let stored = |dtype: Option<DType>| coarser(dtype?, computed);
        let (candidate, reference) = (stored(one.0), stored(other.0));
        ValuePrecision { computed, candidate, reference, steps: [one.1, other.1] }
    }

    /// Returns the top tokens of both sides.
    pub(super) fn ranks(&self, computed: DType) -> Result<Result<RankPair, MissingValues>> {
        let of = |at: &DumpSite, slack: LogprobPrecision| -> Result<Result<Ranks, MissingValues>> {
            let ids = at.tap(Point::TopIds);
            let (widths, ids, values) = (ids.widths()?, ids.values()?, at.tap(Point::TopLogprobs).values()?);
            Ok(ids.and_then(|ids| Ok(Ranks { ids, values: values?, widths, slack })))
        };
        let precision = self.tap(Point::TopLogprobs).precision(computed);
        let [one, other] = precision.slacks();
        let (candidate, reference) = (of(&self.candidate, one)?, of(&self.reference, other)?);
        let rows = self.listed_rows();
        Ok(candidate.and_then(|candidate| Ok(RankPair { candidate, reference: reference?, rows, precision })))
    }

    /// Returns the errors that a uniform distribution would have instead of the candidate's.
    pub(super) fn uniform(&self) -> Result<Option<UniformErrors>> {
        let site = self.reference.site;
        // Without a model, the vocabulary size is known only from the width of `probs`.
        if site.point != Point::Probs {
            return Ok(None);
        }
        let reference = self.reference.values()?.ok();
        Ok(reference.and_then(|own| UniformErrors::of(site, &own, own.width(), |_| false)))
    }

    /// Returns the entries that belong to the same experts on both sides.
    pub(super) fn common_experts(&self) -> Result<CommonExperts> {
        if !self.candidate.site.point.is_of_chosen() {
            return Ok(CommonExperts::default());
        }
        let both = self.tap(Point::Experts).values()?.ok();
        let both = both.filter(|(one, other)| one.shape() == other.shape());
        Ok(both.map_or_else(CommonExperts::default, |(one, other)| CommonExperts::of(&one, &other)))
    }

    /// Returns the margin by which a side's scores or router logits prefer its own experts to the other side's. Uses the
    /// reference's, or the candidate's if the reference has none. `None` if other values may decide: scores that are not
    /// recorded, or groups of experts, which only a model states.
    pub(super) fn preference(&self, found: &ArrayComparison) -> Result<Option<Preference>> {
        let site = self.candidate.site;
        let differs = matches!(found, ArrayComparison::Measured(found) if found.errors.max_abs != 0.0);
        if site.point != Point::Experts || !differs {
            return Ok(None);
        }
        let [candidate, reference] = self.both();
        let sides = [[reference, candidate], [candidate, reference]];
        let is_any =
            |has: fn(&str) -> bool| self.both().iter().any(|at| has(at.held.dump.manifest.architecture()));
        if is_any(may_have_expert_groups) {
            return Ok(None);
        }
        let logits = Some(Point::RouterLogits).filter(|_| !is_any(may_have_expert_scores));
        for (point, [own, other]) in [Some(Point::ExpertScores), logits]
            .into_iter()
            .flatten()
            .flat_map(|point| sides.map(|two| (point, two)))
        {
            let scores = own.tap(point);
            if scores.lacking().is_some() || scores.rows_held().is_some() {
                continue;
            }
            let (Ok(values), Ok(own), Ok(others)) = (scores.values()?, own.values()?, other.values()?) else {
                continue;
            };
            let mut routers = Routers::default();
            routers.look(scores.site, &Tensor::from(&values));
            let preference = routers.preference(site, &Tensor::from(&own), Some(&others), false);
            if preference.is_some() {
                return Ok(preference);
            }
        }
        Ok(None)
    }

    /// Returns the entries that can be compared. Without a model, a layer's window is unknown, but hidden
    /// keys have no attention weight. A score is compared if both sides give its key a weight.
    pub(super) fn comparable_entries(&self, pair: &ValuePair<'static>) -> Result<ComparableEntries> {
        let (point, shape) = (pair.site.point, pair.candidate.shape());
        let first = self.candidate.positions.start;
        let shown = ComparableEntries::causal(point, shape, first, self.common_rows());
        if point != Point::AttnScores {
            return Ok(shown);
        }
        let mut weights = Vec::new();
        for at in self.both() {
            weights.extend(at.weights()?.filter(|weights| weights.shape() == shape));
        }
        Ok(shown.masked(weights, [&pair.candidate, &pair.reference]))
    }

    /// Cuts the longer of two caches to the latest keys if attention weights show that the other keys are
    /// hidden. A layer with a sliding window may drop hidden keys.
    pub(super) fn without_hidden_keys(
        &self,
        (candidate, reference): (View<'static>, View<'static>),
    ) -> Result<(View<'static>, View<'static>)> {
        let point = self.candidate.site.point;
        let is_cache = matches!(point, Point::KCache | Point::VCache);
        let [one, other] = [&candidate, &reference].map(|view| view.shape().first().copied().unwrap_or(0));
        let (kept, all) = (one.min(other), one.max(other));
        if !is_cache || kept == all || all != self.candidate.positions.end {
            return Ok((candidate, reference));
        }
        let mut hidden = Vec::new();
        for at in self.both() {
            hidden.extend(at.hides(all - kept, all)?);
        }
        Ok(match hidden.is_empty() || hidden.contains(&false) {
            true => (candidate, reference),
            false => (latest_keys(&candidate, point, kept), latest_keys(&reference, point, kept)),
        })
    }
}
