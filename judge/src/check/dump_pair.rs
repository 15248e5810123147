//! Two dumps as sources of values. Sites are matched by position, so a prompt read token by token can be
//! compared with one read in a single pass.

use std::ops::Range;

use crate::align::{
    AlignedDump, DumpSite, MissingValues, Selection, ShapeDifference, axis, is_of_a_pass, temperature_at,
    unaligned,
};
use crate::check::continuations::Continuations;
use crate::check::site_check::{ArrayComparison, SiteCheck, ValuePair, distance};
use crate::check::site_pair::SitePair;
use crate::check::sketches::compare_sketches;
use crate::checkpoint::{Point, Site, TapAxis, ValueKind};
use crate::error::{DumpError, Error, Result};
use crate::measure::ColumnSelection;
use crate::view::View;
use crate::weight::DType;

/// The result at a site: the comparison, or a message about what is missing.
type PairResult = std::result::Result<ArrayComparison, String>;

/// A candidate and a reference dump with their common positions.
#[derive(Debug)]
pub(crate) struct DumpPair<'d> {
    candidate: &'d AlignedDump<'d>,
    reference: &'d AlignedDump<'d>,
    computed: DType,
    /// Number of leading tokens that both sides read identically.
    pub(crate) common: usize,
}

impl<'d> DumpPair<'d> {
    /// Prepares the comparison of two dumps whose operations round to `computed`.
    ///
    /// # Errors
    /// If their prompts differ.
    pub(crate) fn new(
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
    pub(crate) fn note(&self) -> Option<String> {
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
    pub(crate) fn untold(&self) -> Option<String> {
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
            let lacking = self.at(site, &positions).candidate.lacking();
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

    /// Returns a site of both dumps at these positions.
    fn at(&self, site: Site, positions: &Range<usize>) -> SitePair<'_, 'd> {
        let pairing = self.reference.pairing().or(self.candidate.pairing());
        let temperature = temperature_at(self.candidate, positions);
        let of = |held| DumpSite { held, site, positions: positions.clone(), pairing, temperature };
        SitePair { candidate: of(self.candidate), reference: of(self.reference) }
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
            None if is_listed => match self.at(site, &positions).ranks(self.computed)? {
                Err(absent) => return Ok(self.absent(site, positions, absent)),
                Ok(ranks) if site.point == Point::TopIds => {
                    margin = Some(ranks.margin());
                    Ok(ArrayComparison::Measured(ranks.of_ids()))
                }
                Ok(ranks) => Ok(ArrayComparison::Measured(ranks.of_values())),
            },
            None => match self.at(site, &positions).values()? {
                Err(absent) => return Ok(self.absent(site, positions, absent)),
                Ok(both) => Ok(self.measure(&self.at(site, &positions), both)?),
            },
        };
        let pair = self.at(site, &positions);
        let (preference, uniform) = match &found {
            Ok(found) => (pair.preference(found)?, pair.uniform()?),
            Err(_) => (None, None),
        };
        Ok(Some(SiteCheck { margin, preference, uniform, ..self.record(site, &positions, found) }))
    }

    /// Returns the result of a site whose values are not compared one by one: it has sketches or the
    /// continuation, or its values are missing, not aligned, or stored in different ways.
    fn obstacle(&self, site: Site, positions: &Range<usize>) -> Result<Option<PairResult>> {
        let pair = self.at(site, positions);
        if pair.both().into_iter().any(DumpSite::is_sketched) {
            return compare_sketches(pair.both()).map(Some);
        }
        if let Some(what) = pair.reference.lacking() {
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
        let is_unlike = || pair.both().into_iter().any(DumpSite::is_stored_unlike);
        if site.point.kind() == ValueKind::Real && is_unlike() {
            let what =
                format!("{site}: dtype or \"step\" differs between passes; store all passes in the same way");
            return Ok(Some(Err(what)));
        }
        let has_none = pair.common_rows().is_some_and(|rows| rows.is_empty());
        Ok(has_none.then(|| Err(format!("{site}: the dumps have no row in common"))))
    }

    /// Measures the differences between the values of both dumps.
    fn measure(&self, at: &SitePair, both: (View<'static>, View<'static>)) -> Result<ArrayComparison> {
        let site = at.candidate.site;
        let (candidate, reference) = at.without_hidden_keys(both)?;
        if let Some(what) = self.other_length(site, &candidate, &reference)? {
            return Ok(ArrayComparison::OtherLength(what));
        }
        let pair = ValuePair {
            site,
            candidate,
            reference,
            precision: at.precision(self.computed),
            rows: at.listed_rows(),
        };
        if site.point.kind() == ValueKind::Token {
            let all = |_| ColumnSelection::All;
            return Ok(ArrayComparison::Measured(pair.measure(all, |_| None)));
        }
        let shown = at.comparable_entries(&pair)?;
        let (common, shape) = (at.common_experts()?, pair.reference.shape().to_vec());
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
                Ok(self.at(site, positions).values()?.map_or(0.0, |(one, other)| distance(one, other)))
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
}
