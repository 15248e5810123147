//! Our engine as a source of values: a tap that compares each value of a run with the dump's and may replace
//! it by the dump's.

use std::collections::{HashMap, HashSet};

use crate::align::{
    AlignedDump, Selection, ShapeDifference, among, axis, expert_slots, latest_keys, repaired, unaligned,
    with_latest, without_padding,
};
use crate::check::choice_margins::{DraftToken, Preference, Routers};
use crate::check::continuation_values::{ContinuationValues, InputPrecision};
use crate::check::engine_properties::EngineProperties;
use crate::check::logprobs::{ListedIds, TopIds};
use crate::check::rules::Role;
use crate::check::site_check::{ArrayComparison, SiteCheck, ValuePair, distance, is_of_logits};
use crate::check::sketches::{measure_sketches, sketch_of};
use crate::check::uniform_distribution::UniformErrors;
use crate::checkpoint::{Point, Site, TapAxis, ValueKind};
use crate::error::{Error, Result};
use crate::exact::{self, Float, ResultPair};
use crate::measure::{ColumnSelection, Distribution};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::view::View;
use crate::weight::DType;

/// Maximum number of values kept for computing operations again. Each value takes some tens of bytes,
/// including inputs.
const MOST_KEPT: usize = 1 << 24;

/// A tap that compares every value with the dump's and keeps one record per visited site.
#[derive(Debug)]
pub struct LiveComparison<'d> {
    held: &'d AlignedDump<'d>,
    role: Role,
    selection: &'d Selection,
    engine: &'d EngineProperties,
    go_on: ContinuationValues,
    /// The records of visited sites.
    checks: Vec<SiteCheck>,
    /// The number of tokens in the vocabulary.
    vocabulary: usize,
    /// The engine's latest row of logits.
    logits: Vec<f32>,
    routers: Routers,
    /// Our engine's ranking of the ids that the dump lists, by pass.
    ranked: HashMap<usize, TopIds>,
    /// `None` if operations are not evaluated exactly. `Some(true)` if the dump's engine may round
    /// differently than its profile states.
    may_differ: Option<bool>,
    /// The sites at which the distribution of errors is measured, if any.
    distributed: Option<&'d HashSet<Site>>,
    error: Option<Error>,
}

impl<'d> LiveComparison<'d> {
    /// Makes a comparison with the dump's values, converted to our engine's order of heads.
    pub fn new(
        held: &'d AlignedDump<'d>,
        role: Role,
        selection: &'d Selection,
        engine: &'d EngineProperties,
        go_on: ContinuationValues,
    ) -> Self {
        Self {
            held,
            role,
            selection,
            engine,
            go_on,
            checks: Vec::new(),
            vocabulary: 0,
            logits: Vec::new(),
            routers: Routers::of(engine.expert_groups),
            ranked: HashMap::new(),
            may_differ: None,
            distributed: None,
            error: None,
        }
    }

    /// Also measures the distribution of errors at these sites.
    pub(crate) fn distributing(self, sites: &'d HashSet<Site>) -> Self {
        Self { distributed: Some(sites), ..self }
    }

    /// Also evaluates each operation exactly. The run must use traced numerics. `may_differ` is true if the
    /// dump's engine may round differently than its profile states.
    pub(crate) fn evaluating(self, may_differ: bool) -> Self {
        Self { may_differ: Some(may_differ), ..self }
    }

    /// Returns true if operations are evaluated exactly.
    pub(crate) fn is_evaluating(&self) -> bool {
        self.may_differ.is_some()
    }

    /// Returns the records of all visited sites in data-flow order.
    ///
    /// # Errors
    /// The first array that could not be read or has another shape than the engine's.
    pub fn finish(self) -> Result<Vec<SiteCheck>> {
        let mut checks = self.checks;
        // The run may interleave the layers of several passes.
        checks.sort_by_key(|check| check.site.flow_order());
        self.error.map_or(Ok(checks), Err)
    }

    /// Compares `own` with the dump and stores the record. Returns the value that replaces `own` in the run,
    /// if any.
    fn look(&mut self, site: Site, own: &Tensor) -> Result<Option<Tensor>> {
        let mut check = SiteCheck::new(site, self.held.positions(site));
        self.look_at_choice(&mut check, own);
        let replacement = self.compare(&mut check, own);
        self.checks.push(check);
        replacement
    }

    /// Compares a value with the dump's, if the dump records it and the selection or the run needs it.
    fn compare(&self, check: &mut SiteCheck, traced: &Tensor) -> Result<Option<Tensor>> {
        let (site, held) = (check.site, self.held);
        let included = self.selection.takes(site, &check.positions);
        if held.dump.sketches(site) {
            check.found = if included { Some(self.sketched(site, traced)?) } else { None };
            return Ok(None);
        }
        let rows = held.dump.held_rows(site);
        // For expert choices, rows that the dump lacks are filled with ours.
        let is_whole = rows.is_none() && held.dump.starts_at(site) || site.point == Point::Experts;
        let replaces = self.go_on.replaces(site.point) && is_whole;
        if !((held.holds(site) || rows.is_some()) && (included || replaces)) {
            return Ok(None);
        }
        let own = View::from(traced);
        let Some(dumped) = self.dumped(site, &own)? else {
            let is_unaligned = included && held.is_unaligned(site, self.engine.pairing);
            check.found = is_unaligned.then(|| ArrayComparison::Unaligned(unaligned(site.point)));
            return Ok(None);
        };
        let pair = match self.comparable(site, &own, dumped)? {
            Ok(pair) => pair,
            Err(what) => {
                check.found = included.then_some(ArrayComparison::OtherLength(what));
                return Ok(None);
            }
        };
        let [part, dumped] = [pair.side(self.role.other()), pair.side(self.role)];
        if site.point == Point::Experts {
            check.preference = self.preference(site, traced, dumped)?.or(check.preference);
        }
        let dropped = axis(site.point, TapAxis::Key).map_or(0, |axis| own.shape()[axis] - part.shape()[axis]);
        let visible = self.engine.visible(held, site, dropped);
        let columns = |row: usize| visible.columns(site.point, dumped.shape(), row);
        if included {
            self.measure(check, traced, &pair, columns);
        }
        let replacement = replaces.then(|| match site.point {
            Point::Experts => Tensor::from(dumped),
            _ => self.replaced(site, traced, [part, dumped], columns),
        });
        dumped.release();
        Ok(replacement)
    }

    /// Measures the errors of a site, and evaluates its operation if requested.
    fn measure(
        &self,
        check: &mut SiteCheck,
        traced: &Tensor,
        pair: &ValuePair,
        columns: impl Fn(usize) -> ColumnSelection + Sync,
    ) {
        let (site, own) = (check.site, View::from(traced));
        let [part, dumped] = [pair.side(self.role.other()), pair.side(self.role)];
        let ranked = site.pass.and_then(|pass| self.ranked.get(&pass));
        let ranked = ranked.filter(|_| site.point == Point::TopLogprobs);
        let same_top = |row: usize| ranked.and_then(|ranked| ranked.same_top(dumped, row));
        check.found = Some(ArrayComparison::Measured(pair.measure(&columns, same_top)));
        if site.point.kind() == ValueKind::Real || site.point == Point::Experts {
            if self.distributed.is_some_and(|sites| sites.contains(&site)) {
                let (precision, is_of_logits) =
                    (self.engine.precision(self.held, site, Role::Candidate), is_of_logits(site.point));
                check.distribution = Some(Distribution::of(dumped, part, precision, columns, is_of_logits));
            }
            if let Some(may_differ) = self.may_differ {
                // Keys and rows that the dump lacks are filled with our engine's values.
                let dumped = with_latest(&own, site.point, dumped);
                let visible = self.engine.visible(self.held, site, 0);
                let compared = ResultPair {
                    traced,
                    sides: [&dumped, &own],
                    stored: self.engine.lossy(self.held, site, traced),
                    is_double: self.held.stored(site) == Some(DType::F64),
                    sees: &|row| visible.range(site.point, own.shape(), row),
                };
                let has_room = |values| self.has_room_for(values);
                check.evaluate(&compared, visible.clone(), self.role, may_differ, has_room);
            }
        }
        let is_explained = |uniform: &Tensor| {
            let compared = ResultPair {
                traced,
                sides: [&View::from(uniform), &own],
                stored: self.engine.stored(self.held, site).and_then(Float::of),
                is_double: false,
                sees: &|_| 0..own.width(),
            };
            let judged = self.may_differ.and_then(|_| exact::judge(&compared, false));
            judged.is_some_and(|judged| judged.dump.is_explained())
        };
        check.uniform = UniformErrors::of(site, &own, self.vocabulary, is_explained);
    }

    /// Returns the preference of our router for its experts over the dump's.
    fn preference(&self, site: Site, traced: &Tensor, dumped: &View) -> Result<Option<Preference>> {
        let experts = self.routers.experts(site).unwrap_or(0);
        let is_none = |number: &f64| !(0.0..experts as f64).contains(number);
        if let Some(number) = dumped.to_vec().into_iter().find(is_none) {
            let problem = format!(
                "{site}: expert {number} does not exist: the model has {experts} experts, counted \
                    from 0"
            );
            return Err(Error::dump(&self.held.dump.path, problem));
        }
        Ok(self.routers.preference(site, traced, Some(dumped), self.is_evaluating()))
    }

    /// Compares sketches. Our values are first converted to the dump's order of heads and rounded to its
    /// type.
    fn sketched(&self, site: Site, own: &Tensor) -> Result<ArrayComparison> {
        let (own, held) = (View::from(own), self.held);
        let row = held.dump.row(site).expect("the dump has a sketch of this site");
        if own.shape() != row.shape {
            return Err(self.other_model(site, &row.shape, &own));
        }
        let is_unaligned = || Ok(ArrayComparison::Unaligned(unaligned(site.point)));
        let own = match self.engine.pairing.filter(|_| site.point.follows_rope_pairing()) {
            None => own,
            Some(ours) => match held.pairing() {
                Some(theirs) => repaired(own, ours, theirs),
                None => return is_unaligned(),
            },
        };
        let own = match site.point.is_of_chosen() {
            false => own,
            true if !expert_slots::are_known(held.dump, site) => return is_unaligned(),
            true => match expert_slots::order_of(held.dump, site, own.shape())? {
                Some(order) => own.with_runs(&expert_slots::inverse(&order), own.len() / order.len()),
                None => own,
            },
        };
        let dumped = held.dump.sketch(site)?.expect("the dump has a sketch of this site");
        let ours = sketch_of(site.point, &own, held.stored(site));
        let (candidate, reference) = self.sides(ours, dumped);
        Ok(ArrayComparison::Measured(measure_sketches(&candidate, &reference, own.len())))
    }

    /// Returns the ids that the dump lists for these logits and stores our ranking of them. Does not compare
    /// values.
    pub(crate) fn named(&mut self, site: Site, logits: &Tensor) -> Option<ListedIds> {
        if self.error.is_some() || site.pass.is_none_or(|pass| pass >= self.held.passes().len()) {
            return None;
        }
        let named = ListedIds::of(self.held, site, logits.row_len());
        let named = named.map_err(|error| self.error = Some(error)).ok()?;
        let ranked = named.ranked(logits).zip(site.pass);
        self.ranked.extend(ranked.map(|((_, ranked), pass)| (pass, ranked)));
        Some(named)
    }

    /// Returns our engine's top tokens of a pass, if the dump lists its own.
    pub(crate) fn own_ids(&self, pass: Option<usize>) -> Option<Tensor> {
        self.ranked.get(&pass?).map(|ranked| ranked.own.clone())
    }

    /// Returns the recorded rows of a site.
    fn rows(&self, site: Site) -> Vec<usize> {
        let all = || 0..self.held.positions(site).len();
        self.held.dump.held_rows(site).map_or_else(|| all().collect(), <[usize]>::to_vec)
    }

    /// Returns true if an operation with this many values can be kept. The first one is always kept.
    fn has_room_for(&self, values: usize) -> bool {
        let unexplained = self.checks.iter().filter_map(|check| check.unexplained.as_ref());
        let kept: usize = unexplained.map(|one| one.theirs.len()).sum();
        kept == 0 || kept + values <= MOST_KEPT
    }

    /// Returns the dump's values in our engine's order of heads. `None` if not recorded, or if the order is
    /// unknown. The dump's order is checked against the values.
    fn dumped(&self, site: Site, own: &View) -> Result<Option<View<'static>>> {
        let values = |held: &AlignedDump| held.values(site, self.engine.pairing);
        if self.engine.pairing.is_some() {
            self.held.look_at_pairing(site, |held| {
                Ok(values(held)?.map_or(0.0, |dumped| distance(own.clone(), dumped)))
            })?;
        }
        if self.held.is_unaligned(site, self.engine.pairing) { Ok(None) } else { values(self.held) }
    }

    /// Returns both sides' values in one shape, or a message if the numbers of keys or experts differ. Our
    /// values are cut to the latest keys if the layer's sliding window allows a shorter cache.
    fn comparable<'v>(
        &self,
        site: Site,
        own: &View<'v>,
        dumped: View<'v>,
    ) -> Result<Result<ValuePair<'v>, String>> {
        let dumped = without_padding(site.point, own, dumped);
        let filled = match self.held.dump.held_rows(site) {
            None => Some(dumped.clone()),
            Some(rows) => {
                let along = axis(site.point, TapAxis::Token).expect("a tap with rows has a token axis");
                let theirs = own.clone().taken(along, rows);
                let part = self.latest_of(site, &theirs, &dumped)?;
                part.map(|_| among(own, &with_latest(&theirs, site.point, &dumped), along, rows))
            }
        };
        if let Some(dumped) = filled
            && let Some(part) = self.latest_of(site, own, &dumped)?
        {
            let (candidate, reference) = self.sides(part, dumped);
            let (precision, rows) = (self.engine.precision(self.held, site, self.role), self.rows(site));
            return Ok(Ok(ValuePair { site, candidate, reference, precision, rows }));
        }
        let length = |along: usize| [&dumped, own].map(|view| view.shape()[along]);
        Ok(Err(match axis(site.point, TapAxis::Chosen).map(length) {
            Some([theirs, ours]) => {
                format!("the dump routes each token to {theirs} experts, the model to {ours}")
            }
            None => {
                let [theirs, ours] = length(axis(site.point, TapAxis::Key).unwrap_or(0));
                format!("the dump has {theirs} keys, expected {ours} (one per position read)")
            }
        }))
    }

    /// Returns our engine's values in the shape of the dump's: all, or the latest keys. `None` if the numbers
    /// of keys or experts differ for another reason than a sliding window.
    fn latest_of<'v>(&self, site: Site, own: &View<'v>, dumped: &View) -> Result<Option<View<'v>>> {
        match ShapeDifference::of(site.point, own.shape(), dumped.shape()) {
            ShapeDifference::None => Ok(Some(own.clone())),
            ShapeDifference::Keys { numbers: [ours, theirs], is_alone: true } => {
                let least = self.engine.least_keys(site, ours);
                let keeps_enough = least.is_some_and(|least| (least..ours).contains(&theirs));
                Ok(keeps_enough.then(|| latest_keys(own, site.point, theirs)))
            }
            ShapeDifference::Experts(_) => Ok(None),
            _ => Err(self.other_model(site, dumped.shape(), own)),
        }
    }

    /// Returns the error for a shape that the model does not have.
    fn other_model(&self, site: Site, theirs: &[usize], own: &View) -> Error {
        let ours = own.shape();
        let problem = match site.point {
            Point::Generated => format!(
                "{site} has {theirs:?} tokens, expected {ours:?}: one after the prompt and one after each \
                 later pass, however many tokens the pass reads; omit the array if this does not hold"
            ),
            _ => format!(
                "{site} has shape {theirs:?}, expected {ours:?}; check that the dump was made from \
                this model"
            ),
        };
        Error::dump(&self.held.dump.path, problem)
    }

    /// Orders the two values as candidate and reference.
    fn sides<'v>(&self, own: View<'v>, dumped: View<'v>) -> (View<'v>, View<'v>) {
        match self.role {
            Role::Candidate => (dumped, own),
            Role::Reference => (own, dumped),
        }
    }

    /// Returns the tensor with which the run continues, traced with its precision.
    fn replaced(
        &self,
        site: Site,
        traced: &Tensor,
        [part, dumped]: [&View; 2],
        columns: impl Fn(usize) -> ColumnSelection + Sync,
    ) -> Tensor {
        let own = View::from(traced);
        let precision = InputPrecision::of(self.held, site, self.engine.computed_at(site.point));
        let near = precision.nearest(part, dumped, columns);
        let tensor = match own.shape() == dumped.shape() {
            true => near,
            false => Tensor::from(&with_latest(&own, site.point, &View::from(&near))),
        };
        match (self.may_differ, precision) {
            (None, _) => tensor,
            (Some(_), InputPrecision::Given) => exact::in_place_of(traced, tensor),
            (Some(_), _) => precision.about(tensor, &with_latest(&own, site.point, dumped)),
        }
    }

    /// Records the margin by which our logits prefer our choice to the dump's choice.
    fn look_at_choice(&mut self, check: &mut SiteCheck, own: &Tensor) {
        let site = check.site;
        match (site.point, site.pass) {
            (Point::LastLogits, _) => self.logits = own.data().to_vec(),
            (Point::Logits, Some(pass)) => {
                self.vocabulary = own.row_len();
                check.draft = DraftToken::widest(self.held, pass, own);
            }
            (Point::Experts, _) => {
                check.preference = self.routers.preference(site, own, None, self.is_evaluating());
            }
            (Point::TopIds, Some(pass)) => check.margin = self.ranked.get(&pass).map(|ranked| ranked.margin),
            (Point::Argmax, Some(_)) => {
                let end = check.positions.end;
                let chosen = own.data()[0] as usize;
                let other = end.checked_sub(1).and_then(|position| self.held.choices.at(position));
                let logit = |token: usize| self.logits.get(token).map(|&logit| f64::from(logit));
                let both = logit(chosen).zip(other.and_then(|token| logit(token as usize)));
                check.margin = both.map(|(best, other)| best - other);
            }
            _ => {}
        }
    }
}

impl Tap for LiveComparison<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.error.is_some() {
            return value;
        }
        match self.look(site, &value) {
            Ok(replacement) => {
                let value = replacement.unwrap_or(value);
                self.routers.look(site, &value);
                value
            }
            Err(error) => {
                self.error = Some(error);
                value
            }
        }
    }
}
