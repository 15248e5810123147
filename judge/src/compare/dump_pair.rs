//! Comparison of two dumps from any producers. Sites are matched by position, so a prompt read token by token
//! can be compared with one read in a single pass.

use std::ops::Range;
use std::sync::Arc;

use crate::checkpoint::{Point, Site, TapAxis, ValueKind};
use crate::compare::Selection;
use crate::compare::alignment::unaligned;
use crate::compare::array_comparison::ArrayComparison;
use crate::compare::axis_slices::{axis, latest_keys};
use crate::compare::comparable_entries::{ComparableEntries, MaskEvidence};
use crate::compare::compared_dump::{ComparedDump, is_of_a_pass};
use crate::compare::dump_site::{DumpSite, MissingValues, temperature_at};
use crate::compare::expert_slots::{CommonExperts, measure_experts};
use crate::compare::live_comparison::is_of_other_number;
use crate::compare::ranks::{RankPair, Ranks};
use crate::compare::routers::{Preference, Routers};
use crate::compare::sketches::{measure_sketches, sketch_of};
use crate::compare::uniform_distribution::UniformErrors;
use crate::compare::visible_keys::VisibleKeys;
use crate::error::{DumpError, Error, Result};
use crate::measure::{Agreement, ColumnSelection, Tops, ValuePrecision, coarser, measure, measure_tokens};
use crate::tensor::Tensor;
use crate::view::View;
use crate::weight::DType;

/// Error message for sketches with different orders of heads.
const UNALIGNED_SKETCHES: &str =
    "sketches cannot be compared: the two dumps order heads differently (layout.rope_pairing)";

/// Error message for sketches with different orders of experts.
const UNALIGNED_EXPERTS: &str = "sketches cannot be compared: the two dumps list the experts in different \
    orders";

/// The comparison of one site of two dumps.
#[derive(Clone, Debug, PartialEq)]
pub struct SitePair {
    /// The tap, the layer, and the pass: the candidate's pass if the candidate records the site, else the
    /// reference's.
    pub site: Site,
    /// The positions that were compared, or should have been.
    pub positions: Range<usize>,
    /// The result, or a message about what is missing.
    pub found: Result<ArrayComparison, String>,
}

/// A candidate and a reference dump with their common positions.
#[derive(Debug)]
pub struct DumpPair<'d> {
    candidate: &'d ComparedDump<'d>,
    reference: &'d ComparedDump<'d>,
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
        candidate: &'d ComparedDump<'d>,
        reference: &'d ComparedDump<'d>,
        computed: DType,
    ) -> Result<Self> {
        let (one, other) = (candidate.read_tokens(), reference.read_tokens());
        let common = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
        let prompt = |held: &ComparedDump| held.dump.manifest.input.tokens.len();
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

    /// Returns a note if only a part is compared: the dumps read different tokens, or one read more tokens.
    pub fn note(&self) -> Option<String> {
        let [candidate, reference] = [self.candidate, self.reference].map(|held| held.read_tokens());
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

    /// Compares every selected site in data-flow order. A tap that one dump never records is skipped. If both
    /// dumps record a tap somewhere, each site of the tap must be in both.
    ///
    /// A value that exists once per pass is skipped if no pass of the other dump ends at the same token.
    ///
    /// # Errors
    /// If an array is damaged or of another shape.
    pub fn compare(&self, selection: &Selection) -> Result<Vec<SitePair>> {
        let (one, other) = (self.candidate.points(), self.reference.points());
        let common = |site: &Site| one.contains(&site.point) && other.contains(&site.point);
        let in_order = |held: &ComparedDump| {
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
                found.extend(self.of_candidate(site, positions)?);
            }
        }
        for site in in_order(self.reference) {
            let positions = self.positions(self.reference, site);
            let Some(positions) = positions.filter(|positions| selection.takes(site, positions)) else {
                continue;
            };
            let lacking = self.at(self.candidate, site, &positions).lacking();
            found.extend(lacking.map(|what| SitePair { site, positions, found: Err(what) }));
        }
        found.sort_by_key(|paired| {
            let (_, layer, point) = paired.site.flow_order();
            (if is_of_a_pass(paired.site) { paired.positions.end } else { usize::MAX }, layer, point)
        });
        Ok(found)
    }

    /// Returns the positions of a site that both dumps read. `None` if there are none.
    fn positions(&self, held: &ComparedDump, site: Site) -> Option<Range<usize>> {
        let positions = held.positions(site);
        match is_of_a_pass(site) {
            false => Some(positions),
            true => (positions.start < self.common).then(|| positions.start..positions.end.min(self.common)),
        }
    }

    fn at<'p>(
        &'p self,
        held: &'p ComparedDump<'d>,
        site: Site,
        positions: &Range<usize>,
    ) -> DumpSite<'p, 'd> {
        let pairing = self.reference.pairing().or(self.candidate.pairing());
        let temperature = temperature_at(self.candidate, positions);
        DumpSite { held, site, positions: positions.clone(), pairing, temperature }
    }

    /// Compares a site of the candidate. `None` if the site cannot be compared because the two dumps split
    /// the tokens into different passes.
    fn of_candidate(&self, site: Site, positions: Range<usize>) -> Result<Option<SitePair>> {
        if self.is_sketched(site, &positions) {
            let found = self.of_sketches(site, &positions)?;
            return Ok(Some(SitePair { site, positions, found }));
        }
        if let Some(what) = self.at(self.reference, site, &positions).lacking() {
            return Ok(Some(SitePair { site, positions, found: Err(what) }));
        }
        if !is_of_a_pass(site) {
            return Ok(Some(SitePair { site, positions, found: Ok(self.generated()) }));
        }
        let [one, other] = [self.candidate, self.reference].map(|held| temperature_at(held, &positions));
        let has_temperature = site.point == Point::Probs || site.point.is_of_named_ids();
        if has_temperature && one != other {
            let what = format!("{site}: the temperature is {one} in the candidate, {other} in the reference");
            return Ok(Some(SitePair { site, positions, found: Err(what) }));
        }
        self.look_at_pairing(site, &positions)?;
        let wanted = self.at(self.reference, site, &positions).pairing;
        if [self.candidate, self.reference].iter().any(|held| held.is_unaligned(site, wanted)) {
            let found = Ok(ArrayComparison::Unaligned(unaligned(site.point)));
            return Ok(Some(SitePair { site, positions, found }));
        }
        if site.point.kind() == ValueKind::Real && self.is_stored_unlike(site, &positions) {
            let what =
                format!("{site}: dtype or \"step\" differs between passes; store all passes in the same way");
            return Ok(Some(SitePair { site, positions, found: Err(what) }));
        }
        let rows = self.common_rows(site, &positions);
        if rows.as_ref().is_some_and(Vec::is_empty) {
            let what = format!("{site}: the dumps have no row in common");
            return Ok(Some(SitePair { site, positions, found: Err(what) }));
        }
        if matches!(site.point, Point::TopIds | Point::TopLogprobs) {
            let ranks = match self.ranks(site, &positions)? {
                Err(absent) => return Ok(self.absent(site, positions, absent)),
                Ok(ranks) => ranks,
            };
            let found = match site.point {
                Point::TopIds => ranks.of_ids(),
                _ => ranks.of_values(),
            };
            return Ok(Some(SitePair { site, positions, found: Ok(ArrayComparison::Measured(found)) }));
        }
        let both = match self.values(site, &positions)? {
            Err(absent) => return Ok(self.absent(site, positions, absent)),
            Ok(both) => both,
        };
        let (candidate, reference) = self.without_hidden_keys(site, &positions, both)?;
        let found = match self.other_length(site, &candidate, &reference)? {
            Some(what) => ArrayComparison::OtherLength(what),
            None if site.point == Point::Experts => {
                let rows = rows.unwrap_or_else(|| (0..positions.len()).collect());
                ArrayComparison::Measured(measure_experts(&candidate, &reference, &rows))
            }
            None if site.point.kind() == ValueKind::Token => {
                ArrayComparison::Measured(measure_tokens(candidate, reference))
            }
            None => {
                let listed = rows.clone().unwrap_or_else(|| (0..positions.len()).collect());
                let shown = self.shown(site, &positions, rows, &candidate, &reference)?;
                let grain = self.grain(site, &positions);
                let (common, shape) = (self.common_experts(site, &positions)?, reference.shape().to_vec());
                let columns = |row: usize| common.columns(&shape, row, shown.columns(row));
                let mut found = measure(candidate.clone(), reference.clone(), grain, columns);
                if site.point == Point::TokenLogprobs {
                    let all = |_| ColumnSelection::All;
                    found.agreement =
                        Some(Agreement::of(&candidate, &reference, &listed, grain, all, |_| None));
                }
                if site.point == Point::Logits && !found.is_identical() {
                    found.agreement = Some(Agreement::of_logits(&candidate, &reference, &listed));
                }
                if site.point == Point::LastLogits {
                    found.tops = Tops::of(&candidate, &reference).map(Box::new);
                }
                [candidate, reference].iter().for_each(View::release);
                ArrayComparison::Measured(found)
            }
        };
        Ok(Some(SitePair { site, positions, found: Ok(found) }))
    }

    /// Returns the result for a site that both dumps record without common values. `None` if the site is
    /// skipped. It is skipped if no pass of the other dump ends at the same position. It is also skipped if
    /// the other dump records only the last row of logits, which is compared separately.
    fn absent(&self, site: Site, positions: Range<usize>, absent: MissingValues) -> Option<SitePair> {
        let has_rows = axis(site.point, TapAxis::Token).or(axis(site.point, TapAxis::Key)).is_some();
        let last = Site { point: Point::LastLogits, ..site };
        let has_last_row = site.point == Point::Logits && self.candidate.holds(last);
        let what = match absent {
            MissingValues::Unlike(what) => what,
            MissingValues::Elsewhere if !has_rows => return None,
            MissingValues::Elsewhere if has_last_row && self.ends_alike(&positions) => return None,
            MissingValues::Elsewhere => format!("{site}: only one of the two dumps has all rows"),
        };
        Some(SitePair { site, positions, found: Err(what) })
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

    /// Returns the largest margin by which a token that only one side lists exceeds its upper bound on the other side.
    ///
    /// # Errors
    /// If an array is damaged.
    pub fn rank_margin(&self, paired: &SitePair) -> Result<Option<f64>> {
        if paired.site.point != Point::TopIds || paired.found.is_err() {
            return Ok(None);
        }
        Ok(self.ranks(paired.site, &paired.positions)?.ok().map(|ranks| ranks.margin()))
    }

    /// Returns the errors that a uniform distribution would have instead of the candidate's.
    ///
    /// # Errors
    /// If an array is damaged.
    pub fn uniform(&self, site: &Site, positions: &Range<usize>) -> Result<Option<UniformErrors>> {
        // Without a model, the vocabulary size is known only from the width of `probs`.
        if site.point != Point::Probs {
            return Ok(None);
        }
        let reference = self.at(self.reference, *site, positions).values()?.ok();
        let measured = |own: View| {
            Some(UniformErrors::measured(&UniformErrors::values(*site, &own, own.width())?, &own, || false))
        };
        Ok(reference.and_then(measured))
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
    ///
    /// # Errors
    /// If an array is damaged.
    pub fn preference(&self, paired: &SitePair) -> Result<Option<Preference>> {
        let SitePair { site, positions, found: Ok(ArrayComparison::Measured(found)) } = paired else {
            return Ok(None);
        };
        if site.point != Point::Experts || found.errors.max_abs == 0.0 {
            return Ok(None);
        }
        for [held, other] in [[self.reference, self.candidate], [self.candidate, self.reference]] {
            let router = Site { point: Point::RouterLogits, ..*site };
            let of = |held, site| self.at(held, site, positions);
            let logits = of(held, router);
            if logits.lacking().is_some() || logits.rows_held().is_some() {
                continue;
            }
            let (Ok(logits), Ok(own), Ok(others)) =
                (logits.values()?, of(held, *site).values()?, of(other, *site).values()?)
            else {
                continue;
            };
            let mut routers = Routers::default();
            routers.look(Site { point: Point::RouterLogits, ..*site }, &Tensor::from(&logits));
            return Ok(routers.preference(*site, &Tensor::from(&own), Some(&others), false));
        }
        Ok(None)
    }

    fn is_sketched(&self, site: Site, positions: &Range<usize>) -> bool {
        let in_passes = |held| {
            let at = self.at(held, site, positions);
            at.passes().into_iter().any(|pass| held.dump.sketches(Site { pass: Some(pass), ..site }))
        };
        [self.candidate, self.reference].into_iter().any(in_passes)
    }

    /// Compares two sketches, or a sketch with values that are sketched here. Both passes must cover the same
    /// tokens, since a sketch cannot be split.
    fn of_sketches(&self, site: Site, positions: &Range<usize>) -> Result<Result<ArrayComparison, String>> {
        let both = [self.candidate, self.reference];
        let sites = both.map(|held| {
            let passes = self.at(held, site, positions).passes();
            let of_pass = passes.first().map(|&pass| Site { pass: Some(pass), ..site });
            of_pass.filter(|&site| passes.len() == 1 && held.positions(site) == *positions)
        });
        let [Some(one), Some(other)] = sites else {
            return Ok(Err(format!(
                "{site}: the sketches cover different passes: the dumps split the tokens \
                differently"
            )));
        };
        let follows = site.point.follows_rope_pairing();
        if follows && both.iter().any(|held| held.pairing() != both[0].pairing()) {
            return Ok(Ok(ArrayComparison::Unaligned(UNALIGNED_SKETCHES.to_owned())));
        }
        if site.point.is_of_chosen() && !self.are_in_one_order(site, one, other)? {
            return Ok(Ok(ArrayComparison::Unaligned(UNALIGNED_EXPERTS.to_owned())));
        }
        let [candidate, reference] =
            [self.sketch(both[0], one, both[1], other)?, self.sketch(both[1], other, both[0], one)?];
        let (Some(candidate), Some(reference)) = (candidate, reference) else {
            return Ok(Err(format!("{site}: recorded in only one of the two dumps")));
        };
        if candidate.shape() != reference.shape() {
            return Ok(Err(format!("{site}: the sketches have different shapes")));
        }
        let elements = both[0].dump.row(one).map_or(0, |row| row.shape.iter().product());
        Ok(Ok(ArrayComparison::Measured(measure_sketches(&candidate, &reference, elements))))
    }

    /// Returns a dump's sketch of a site. If the dump has values instead, sketches them after rounding to the
    /// other side's type.
    fn sketch(
        &self,
        held: &ComparedDump,
        site: Site,
        other: &ComparedDump,
        there: Site,
    ) -> Result<Option<View<'static>>> {
        if let Some(sketch) = held.dump.sketch(site)? {
            return Ok(Some(sketch));
        }
        let values = held.values(site, None)?;
        Ok(values.map(|values| sketch_of(site.point, &values, other.stored(there))))
    }

    /// Returns true if both dumps list the experts of a pass in the same order.
    fn are_in_one_order(&self, site: Site, one: Site, other: Site) -> Result<bool> {
        let of = |held: &ComparedDump, site: Site| held.dump.view(Site { point: Point::Experts, ..site });
        let both = (of(self.candidate, one)?, of(self.reference, other)?);
        let (Some(one), Some(other)) = both else { return Ok(false) };
        let is_stored_so = site.point != Point::Experts && one.shape() == other.shape();
        Ok(is_stored_so && one.to_vec() == other.to_vec() && one.to_vec().is_sorted())
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
        let held = [self.candidate, self.reference].map(|held| self.at(held, site, positions).rows_held());
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
        [self.candidate, self.reference].iter().any(|held| held.pairing().is_none())
    }

    /// Checks the order of heads of both dumps. Either manifest may be wrong, and an unknown order can be
    /// found from the other dump.
    fn look_at_pairing(&self, site: Site, positions: &Range<usize>) -> Result<()> {
        if self.reference.pairing().or(self.candidate.pairing()).is_none() {
            return Ok(());
        }
        let mut both = [self.candidate, self.reference];
        both.sort_by_key(|held| held.pairing().is_some());
        for held in both {
            held.look_at_pairing(site, |_| {
                let both = self.values(site, positions)?.ok();
                let both = both.filter(|(one, other)| one.shape() == other.shape());
                let rel_l2 = |(one, other)| {
                    let (one, other): (View, View) = (one, other);
                    measure(one, other, ValuePrecision::F32, |_| ColumnSelection::All).errors.rel_l2
                };
                Ok(both.map_or(0.0, rel_l2))
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
        if one == other {
            return Ok(None);
        }
        let keys = axis(site.point, TapAxis::Key).filter(|_| one.len() == other.len());
        match keys.map(|axis| (one[axis], other[axis])) {
            Some((one, other)) if one != other => {
                Ok(Some(format!("the candidate has {one} keys, the reference {other}")))
            }
            _ if is_of_other_number(site.point, one, other) => {
                let [one, other] = [one, other].map(|shape| shape[1]);
                Ok(Some(format!(
                    "the candidate routes each token to {one} experts, the reference to {other}"
                )))
            }
            _ => {
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
        candidate: &View<'static>,
        reference: &View<'static>,
    ) -> Result<ComparableEntries> {
        let causal = VisibleKeys {
            first_query: positions.start,
            first_key: 0,
            window: None,
            rows: rows.map(Arc::from),
        };
        let mut shown = ComparableEntries {
            point: site.point,
            shape: candidate.shape().to_vec(),
            causal,
            told_by: MaskEvidence::Nothing,
        };
        if site.point != Point::AttnScores {
            return Ok(shown);
        }
        let mut weights = Vec::new();
        for held in [self.candidate, self.reference] {
            let known = self.weights(held, site, positions)?;
            weights.extend(known.filter(|weights| weights.shape() == candidate.shape()));
        }
        shown.told_by = match weights.is_empty() {
            false => MaskEvidence::Weights(weights),
            // A score that a mask set to minus infinity on one side may have any value on the other side.
            true => MaskEvidence::Scores([candidate.clone(), reference.clone()]),
        };
        Ok(shown)
    }

    /// Returns the attention weights of a site's layer and pass, if recorded.
    fn weights(
        &self,
        held: &ComparedDump<'d>,
        site: Site,
        positions: &Range<usize>,
    ) -> Result<Option<View<'static>>> {
        let at = self.at(held, Site { point: Point::AttnWeights, ..site }, positions);
        if at.lacking().is_none() && at.rows_held().is_none() { Ok(at.values()?.ok()) } else { Ok(None) }
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
        for held in [self.candidate, self.reference] {
            let known = self.weights(held, site, positions)?;
            if let Some(weights) = known.filter(|weights| weights.width() == all) {
                let are_zero = |row| (0..all - kept).all(|key| weights.get(row * all + key) == 0.0);
                hidden.push((0..weights.rows()).all(are_zero));
            }
        }
        Ok(match hidden.is_empty() || hidden.contains(&false) {
            true => (candidate, reference),
            false => (latest_keys(&candidate, site.point, kept), latest_keys(&reference, site.point, kept)),
        })
    }

    /// Returns true if a dump stores this site's passes in different types or with different decimal steps.
    fn is_stored_unlike(&self, site: Site, positions: &Range<usize>) -> bool {
        let is_unlike = |held: &ComparedDump| {
            let passes = self.at(held, site, positions).passes();
            let stored = |&pass: &usize| {
                let site = Site { pass: Some(pass), ..site };
                (held.stored(site), held.step(site))
            };
            passes.windows(2).any(|pair| stored(&pair[0]) != stored(&pair[1]))
        };
        [self.candidate, self.reference].into_iter().any(is_unlike)
    }

    fn grain(&self, site: Site, positions: &Range<usize>) -> ValuePrecision {
        let stored = |held| {
            let at = self.at(held, site, positions);
            let pass = at.passes().first().copied();
            coarser(held.stored(Site { pass, ..site })?, self.computed)
        };
        let step = |held| {
            let pass = self.at(held, site, positions).passes().first().copied();
            held.step(Site { pass, ..site })
        };
        ValuePrecision {
            computed: self.computed,
            candidate: stored(self.candidate),
            reference: stored(self.reference),
            steps: [step(self.candidate), step(self.reference)],
        }
    }

    /// Compares the continuations up to the shorter one, and only while both dumps have read the same tokens.
    fn generated(&self) -> ArrayComparison {
        let [one, other] = [self.candidate, self.reference].map(|held| self.continuation(held));
        let both = one.len().min(other.len());
        ArrayComparison::Measured(measure_tokens(
            View::of_tokens(&one[..both]),
            View::of_tokens(&other[..both]),
        ))
    }

    /// Returns the choices after the prompt. If the two dumps read different tokens later, only the choices
    /// before that.
    fn continuation(&self, held: &ComparedDump) -> Vec<u32> {
        let prompt = self.reference.dump.manifest.input.tokens.len();
        let parts = self.parts();
        let choices = held.choices.iter().filter(|(position, _)| !parts || *position < self.common);
        choices.filter(|(position, _)| position + 1 >= prompt).map(|(_, token)| token).collect()
    }

    /// Returns true if the two dumps read different tokens at some position.
    fn parts(&self) -> bool {
        [self.candidate, self.reference].iter().all(|held| held.read_tokens().len() > self.common)
    }

    /// Returns a note if one side has more generated tokens.
    pub fn untold(&self) -> Option<String> {
        let [one, other] = [self.candidate, self.reference].map(|held| self.continuation(held).len());
        (one != other).then(|| {
            let both = one.min(other);
            format!(
                "generated: the candidate has {one} tokens, the reference {other}; only the first {both} \
                are compared"
            )
        })
    }
}
