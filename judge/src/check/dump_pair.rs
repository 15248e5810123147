//! Two dumps as sources of values. Sites are matched by position, so a prompt read token by token can be
//! compared with one read in a single pass.

use std::ops::Range;

use crate::align::{
    AlignedDump, CommonExperts, ComparableEntries, DumpSite, MissingValues, Selection, ShapeDifference, axis,
    is_of_a_pass, latest_keys, temperature_at, unaligned,
};
use crate::check::choice_margins::{Preference, Routers};
use crate::check::continuations::Continuations;
use crate::check::ranks::{RankPair, Ranks};
use crate::check::site_check::{ArrayComparison, SiteCheck, ValuePair, distance};
use crate::check::sketches::compare_sketches;
use crate::check::uniform_distribution::UniformErrors;
use crate::checkpoint::{Point, Site, TapAxis, ValueKind};
use crate::error::{DumpError, Error, Result};
use crate::measure::{ColumnSelection, ValuePrecision, coarser};
use crate::tensor::Tensor;
use crate::view::View;
use crate::weight::DType;

/// The result at a site: the comparison, or a message about what is missing.
type PairResult = std::result::Result<ArrayComparison, String>;

/// A candidate and a reference dump with their common positions.
#[derive(Debug)]
pub struct DumpPair<'d> {
    candidate: &'d AlignedDump<'d>,
    reference: &'d AlignedDump<'d>,
    computed: DType,
    /// Number of leading tokens that both sides read identically.
    pub common: usize,
}

impl<'d> DumpPair<'d> {
    /// Prepares the comparison of two dumps whose operations round to `computed`.
    ///
    /// # Errors
    /// If their prompts differ.
    pub fn new(
        candidate: &'d AlignedDump<'d>,
        reference: &'d AlignedDump<'d>,
        computed: DType,
    ) -> Result<Self> {
        let (one, other) = (candidate.read_tokens(), reference.read_tokens());
        let common = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
        let prompt = |held: &AlignedDump| held.dump.manifest.input.tokens.len();
        let parts = common < one.len().min(other.len());
        if parts && common < prompt(candidate).min(prompt(reference)) {
            return Err(Error::Dump(DumpError::TokensDiffer {
                one_name: candidate.dump.path.display().to_string(),
                one,
                other_name: reference.dump.path.display().to_string(),
                other,
                position: common,
            }));
        }
        Ok(Self { candidate, reference, computed, common })
    }

    /// Returns both dumps, the candidate first.
    fn both(&self) -> [&'d AlignedDump<'d>; 2] {
        [self.candidate, self.reference]
    }

    /// Returns a note if only a part is compared: the dumps read different tokens, or one read more tokens.
    pub fn note(&self) -> Option<String> {
        let [candidate, reference] = self.both().map(|held| held.read_tokens());
        let common = self.common;
        match (candidate.get(common), reference.get(common)) {
            (Some(one), Some(other)) => Some(format!(
                "the dumps are compared only up to position {common}, where the candidate reads token {one} \
                 and the reference {other}"
            )),
            (None, None) => None,
            _ => Some(format!(
                "the candidate has read {} tokens, the reference {}: only the first {common} are compared",
                candidate.len(),
                reference.len()
            )),
        }
    }

    /// Returns a note if one side has more generated tokens.
    pub fn untold(&self) -> Option<String> {
        Continuations::of(self.both(), self.common).note()
    }

    /// Compares every selected site in data-flow order. A tap that one dump never records is skipped. If both
    /// dumps record a tap somewhere, each site of the tap must be in both.
    ///
    /// A value that exists once per pass is skipped if no pass of the other dump ends at the same token.
    ///
    /// # Errors
    /// If an array is damaged or of another shape.
    pub fn compare(&self, selection: &Selection) -> Result<Vec<SiteCheck>> {
        let (one, other) = (self.candidate.points(), self.reference.points());
        let common = |site: &Site| one.contains(&site.point) && other.contains(&site.point);
        let in_order = |held: &AlignedDump| {
            let mut sites: Vec<Site> = held.sites().filter(common).collect();
            sites.sort_by_key(|site| site.flow_order());
            sites
        };
        let mut found = Vec::new();
        // Values before RoPE show the order of heads for values after RoPE.
        let sites = in_order(self.candidate);
        for &site in &sites {
            if let Some(positions) = self.positions(self.candidate, site).filter(|_| self.is_silent()) {
                self.look_at_pairing(site, &positions)?;
            }
        }
        for site in sites {
            let positions = self.positions(self.candidate, site);
            if let Some(positions) = positions.filter(|positions| selection.takes(site, positions)) {
                found.extend(self.check(site, positions)?);
            }
        }
        for site in in_order(self.reference) {
            let positions = self.positions(self.reference, site);
            let Some(positions) = positions.filter(|positions| selection.takes(site, positions)) else {
                continue;
            };
            let lacking = self.at(self.candidate, site, &positions).lacking();
            found.extend(lacking.map(|what| self.record(site, &positions, Err(what))));
        }
        found.sort_by_key(|check| {
            let (_, layer, point) = check.site.flow_order();
            (if is_of_a_pass(check.site) { check.positions.end } else { usize::MAX }, layer, point)
        });
        Ok(found)
    }

    /// Returns the positions of a site that both dumps read. `None` if there are none.
    fn positions(&self, held: &AlignedDump, site: Site) -> Option<Range<usize>> {
        let positions = held.positions(site);
        match is_of_a_pass(site) {
            false => Some(positions),
            true => (positions.start < self.common).then(|| positions.start..positions.end.min(self.common)),
        }
    }

    fn at<'p>(&'p self, held: &'p AlignedDump<'d>, site: Site, positions: &Range<usize>) -> DumpSite<'p, 'd> {
        let pairing = self.reference.pairing().or(self.candidate.pairing());
        let temperature = temperature_at(self.candidate, positions);
        DumpSite { held, site, positions: positions.clone(), pairing, temperature }
    }

    /// Returns the record of a site with a result.
    fn record(&self, site: Site, positions: &Range<usize>, found: PairResult) -> SiteCheck {
        let recorded = self.candidate.recorded(site).or(self.reference.recorded(site));
        let check = SiteCheck { recorded, ..SiteCheck::new(site, positions.clone()) };
        match found {
            Ok(found) => SiteCheck { found: Some(found), ..check },
            Err(what) => SiteCheck { missing: Some(what), ..check },
        }
    }

    /// Compares a site of the candidate. `None` if the site cannot be compared because the two dumps split
    /// the tokens into different passes.
    fn check(&self, site: Site, positions: Range<usize>) -> Result<Option<SiteCheck>> {
        let is_listed = matches!(site.point, Point::TopIds | Point::TopLogprobs);
        let mut margin = None;
        let found = match self.obstacle(site, &positions)? {
            Some(found) => found,
            None if is_listed => match self.ranks(site, &positions)? {
                Err(absent) => return Ok(self.absent(site, positions, absent)),
                Ok(ranks) if site.point == Point::TopIds => {
                    margin = Some(ranks.margin());
                    Ok(ArrayComparison::Measured(ranks.of_ids()))
                }
                Ok(ranks) => Ok(ArrayComparison::Measured(ranks.of_values())),
            },
            None => match self.values(site, &positions)? {
                Err(absent) => return Ok(self.absent(site, positions, absent)),
                Ok(both) => Ok(self.measure(site, &positions, both)?),
            },
        };
        let (preference, uniform) = match &found {
            Ok(found) => (self.preference(site, &positions, found)?, self.uniform(site, &positions)?),
            Err(_) => (None, None),
        };
        Ok(Some(SiteCheck { margin, preference, uniform, ..self.record(site, &positions, found) }))
    }

    /// Returns the result of a site whose values are not compared one by one: it has sketches or the
    /// continuation, or its values are missing, not aligned, or stored in different ways.
    fn obstacle(&self, site: Site, positions: &Range<usize>) -> Result<Option<PairResult>> {
        let both = self.both().map(|held| self.at(held, site, positions));
        if both.iter().any(DumpSite::is_sketched) {
            return compare_sketches(&both).map(Some);
        }
        if let Some(what) = both[1].lacking() {
            return Ok(Some(Err(what)));
        }
        if !is_of_a_pass(site) {
            return Ok(Some(Ok(Continuations::of(self.both(), self.common).compare())));
        }
        let [one, other] = self.both().map(|held| temperature_at(held, positions));
        let has_temperature = site.point == Point::Probs || site.point.is_of_named_ids();
        if has_temperature && one != other {
            let what = format!("{site}: the temperature is {one} in the candidate, {other} in the reference");
            return Ok(Some(Err(what)));
        }
        self.look_at_pairing(site, positions)?;
        let wanted = self.reference.pairing().or(self.candidate.pairing());
        if self.both().iter().any(|held| held.is_unaligned(site, wanted)) {
            return Ok(Some(Ok(ArrayComparison::Unaligned(unaligned(site.point)))));
        }
        let is_unlike = || both.iter().any(DumpSite::is_stored_unlike);
        if site.point.kind() == ValueKind::Real && is_unlike() {
            let what =
                format!("{site}: dtype or \"step\" differs between passes; store all passes in the same way");
            return Ok(Some(Err(what)));
        }
        let has_none = self.common_rows(site, positions).is_some_and(|rows| rows.is_empty());
        Ok(has_none.then(|| Err(format!("{site}: the dumps have no row in common"))))
    }

    /// Measures the differences between the values of both dumps.
    fn measure(
        &self,
        site: Site,
        positions: &Range<usize>,
        both: (View<'static>, View<'static>),
    ) -> Result<ArrayComparison> {
        let (candidate, reference) = self.without_hidden_keys(site, positions, both)?;
        if let Some(what) = self.other_length(site, &candidate, &reference)? {
            return Ok(ArrayComparison::OtherLength(what));
        }
        let rows = self.common_rows(site, positions);
        let listed = rows.clone().unwrap_or_else(|| (0..positions.len()).collect());
        let grain = self.grain(site, positions);
        let pair = ValuePair { site, candidate, reference, grain, rows: listed };
        if site.point.kind() == ValueKind::Token {
            let all = |_| ColumnSelection::All;
            return Ok(ArrayComparison::Measured(pair.measure(all, |_| None)));
        }
        let shown = self.shown(site, positions, rows, &pair)?;
        let (common, shape) = (self.common_experts(site, positions)?, pair.reference.shape().to_vec());
        let columns = |row: usize| common.columns(&shape, row, shown.columns(row));
        let found = pair.measure(columns, |_| None);
        [pair.candidate, pair.reference].iter().for_each(View::release);
        Ok(ArrayComparison::Measured(found))
    }

    /// Returns the record of a site that both dumps record without common values. `None` if the site is
    /// skipped. It is skipped if no pass of the other dump ends at the same position. It is also skipped if
    /// the other dump records only the last row of logits, which is compared separately.
    fn absent(&self, site: Site, positions: Range<usize>, absent: MissingValues) -> Option<SiteCheck> {
        let has_rows = axis(site.point, TapAxis::Token).or(axis(site.point, TapAxis::Key)).is_some();
        let last = Site { point: Point::LastLogits, ..site };
        let has_last_row = site.point == Point::Logits && self.candidate.holds(last);
        let what = match absent {
            MissingValues::Unlike(what) => what,
            MissingValues::Elsewhere if !has_rows => return None,
            MissingValues::Elsewhere if has_last_row && self.ends_alike(&positions) => return None,
            MissingValues::Elsewhere => format!("{site}: only one of the two dumps has all rows"),
        };
        Some(self.record(site, &positions, Err(what)))
    }

    /// Returns true if a pass of the reference covers exactly these positions.
    fn ends_alike(&self, positions: &Range<usize>) -> bool {
        self.reference.passes().iter().any(|pass| (pass.position..pass.end()) == *positions)
    }

    /// Returns the top tokens of both sides at positions of the candidate.
    fn ranks(&self, site: Site, positions: &Range<usize>) -> Result<Result<RankPair, MissingValues>> {
        let of = |held, slack| -> Result<Result<Ranks, MissingValues>> {
            let at = |point| self.at(held, Site { point, ..site }, positions);
            let widths = at(Point::TopIds).widths()?;
            let (ids, values) = (at(Point::TopIds).values()?, at(Point::TopLogprobs).values()?);
            Ok(ids.and_then(|ids| Ok(Ranks { ids, values: values?, widths, slack })))
        };
        let grain = self.grain(Site { point: Point::TopLogprobs, ..site }, positions);
        let [one, other] = grain.slacks();
        let (candidate, reference) = (of(self.candidate, one)?, of(self.reference, other)?);
        let rows = self.common_rows(site, positions).unwrap_or_else(|| (0..positions.len()).collect());
        Ok(candidate.and_then(|candidate| Ok(RankPair { candidate, reference: reference?, rows, grain })))
    }

    /// Returns the errors that a uniform distribution would have instead of the candidate's.
    fn uniform(&self, site: Site, positions: &Range<usize>) -> Result<Option<UniformErrors>> {
        // Without a model, the vocabulary size is known only from the width of `probs`.
        if site.point != Point::Probs {
            return Ok(None);
        }
        let reference = self.at(self.reference, site, positions).values()?.ok();
        Ok(reference.and_then(|own| UniformErrors::of(site, &own, own.width(), |_| false)))
    }

    /// Returns the entries of a site that belong to the same experts on both sides.
    fn common_experts(&self, site: Site, positions: &Range<usize>) -> Result<CommonExperts> {
        if !site.point.is_of_chosen() {
            return Ok(CommonExperts::default());
        }
        let both = self.values(Site { point: Point::Experts, ..site }, positions)?.ok();
        let both = both.filter(|(one, other)| one.shape() == other.shape());
        Ok(both.map_or_else(CommonExperts::default, |(one, other)| CommonExperts::of(&one, &other)))
    }

    /// Returns the margin by which a side's router logits prefer its own experts to the other side's. Uses the
    /// reference's logits, or the candidate's if the reference has none.
    fn preference(
        &self,
        site: Site,
        positions: &Range<usize>,
        found: &ArrayComparison,
    ) -> Result<Option<Preference>> {
        let differs = |found: &ArrayComparison| matches!(found, ArrayComparison::Measured(found) if found.errors.max_abs != 0.0);
        if site.point != Point::Experts || !differs(found) {
            return Ok(None);
        }
        for [held, other] in [[self.reference, self.candidate], [self.candidate, self.reference]] {
            let router = Site { point: Point::RouterLogits, ..site };
            let of = |held, site| self.at(held, site, positions);
            let logits = of(held, router);
            if logits.lacking().is_some() || logits.rows_held().is_some() {
                continue;
            }
            let (Ok(logits), Ok(own), Ok(others)) =
                (logits.values()?, of(held, site).values()?, of(other, site).values()?)
            else {
                continue;
            };
            let mut routers = Routers::default();
            routers.look(router, &Tensor::from(&logits));
            return Ok(routers.preference(site, &Tensor::from(&own), Some(&others), false));
        }
        Ok(None)
    }

    fn values(
        &self,
        site: Site,
        positions: &Range<usize>,
    ) -> Result<Result<(View<'static>, View<'static>), MissingValues>> {
        let of = |held| self.at(held, site, positions).values();
        let (candidate, reference) = (of(self.candidate)?, of(self.reference)?);
        Ok(candidate.and_then(|candidate| Ok((candidate, reference?))))
    }

    /// Returns the rows that both dumps record, counted from the first position. `None` for all rows.
    fn common_rows(&self, site: Site, positions: &Range<usize>) -> Option<Vec<usize>> {
        let held = self.both().map(|held| self.at(held, site, positions).rows_held());
        match held {
            [Some(mut one), Some(other)] => {
                one.retain(|row| other.binary_search(row).is_ok());
                Some(one)
            }
            [one, other] => one.or(other),
        }
    }

    /// Returns true if a dump's order of heads is still unknown.
    fn is_silent(&self) -> bool {
        self.both().iter().any(|held| held.pairing().is_none())
    }

    /// Checks the order of heads of both dumps. Either manifest may be wrong, and an unknown order can be
    /// found from the other dump.
    fn look_at_pairing(&self, site: Site, positions: &Range<usize>) -> Result<()> {
        if self.reference.pairing().or(self.candidate.pairing()).is_none() {
            return Ok(());
        }
        let mut both = self.both();
        both.sort_by_key(|held| held.pairing().is_some());
        for held in both {
            held.look_at_pairing(site, |_| {
                Ok(self.values(site, positions)?.map_or(0.0, |(one, other)| distance(one, other)))
            })?;
            if self.is_silent() {
                break;
            }
        }
        Ok(())
    }

    /// Returns a message if the number of keys differs, which is a finding about the cache. Any other
    /// difference in shape means a different model.
    fn other_length(&self, site: Site, candidate: &View, reference: &View) -> Result<Option<String>> {
        let (one, other) = (candidate.shape(), reference.shape());
        match ShapeDifference::of(site.point, one, other) {
            ShapeDifference::None => Ok(None),
            ShapeDifference::Keys { numbers: [one, other], .. } => {
                Ok(Some(format!("the candidate has {one} keys, the reference {other}")))
            }
            ShapeDifference::Experts([one, other]) => Ok(Some(format!(
                "the candidate routes each token to {one} experts, the reference to {other}"
            ))),
            ShapeDifference::Model => {
                let path = self.reference.dump.path.display();
                let problem = format!("{site} has shape {one:?}, {path} has {other:?}");
                Err(Error::dump(&self.candidate.dump.path, problem))
            }
        }
    }

    /// Returns the entries that can be compared. Without a model, a layer's window is unknown, but hidden
    /// keys have no attention weight. A score is compared if both sides give its key a weight.
    fn shown(
        &self,
        site: Site,
        positions: &Range<usize>,
        rows: Option<Vec<usize>>,
        pair: &ValuePair<'static>,
    ) -> Result<ComparableEntries> {
        let shown = ComparableEntries::causal(site.point, pair.candidate.shape(), positions.start, rows);
        if site.point != Point::AttnScores {
            return Ok(shown);
        }
        let mut weights = Vec::new();
        for held in self.both() {
            let known = self.at(held, site, positions).weights()?;
            weights.extend(known.filter(|weights| weights.shape() == pair.candidate.shape()));
        }
        Ok(shown.masked(weights, [&pair.candidate, &pair.reference]))
    }

    /// Cuts the longer of two caches to the latest keys if attention weights show that the other keys are
    /// hidden. A layer with a sliding window may drop hidden keys.
    fn without_hidden_keys(
        &self,
        site: Site,
        positions: &Range<usize>,
        (candidate, reference): (View<'static>, View<'static>),
    ) -> Result<(View<'static>, View<'static>)> {
        let is_cache = matches!(site.point, Point::KCache | Point::VCache);
        let [one, other] = [&candidate, &reference].map(|view| view.shape().first().copied().unwrap_or(0));
        let (kept, all) = (one.min(other), one.max(other));
        if !is_cache || kept == all || all != positions.end {
            return Ok((candidate, reference));
        }
        let mut hidden = Vec::new();
        for held in self.both() {
            hidden.extend(self.at(held, site, positions).hides(all - kept, all)?);
        }
        Ok(match hidden.is_empty() || hidden.contains(&false) {
            true => (candidate, reference),
            false => (latest_keys(&candidate, site.point, kept), latest_keys(&reference, site.point, kept)),
        })
    }

    fn grain(&self, site: Site, positions: &Range<usize>) -> ValuePrecision {
        let [one, other] = self.both().map(|held| self.at(held, site, positions).stored());
        let stored = |dtype: Option<DType>| coarser(dtype?, self.computed);
        ValuePrecision {
            computed: self.computed,
            candidate: stored(one.0),
            reference: stored(other.0),
            steps: [one.1, other.1],
        }
    }
}
