//! Comparison of a running engine with a dump: a tap that measures each value and may replace it by the
//! dump's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::checkpoint::{Point, Site, TapAxis, ValueKind};
use crate::compare::Selection;
use crate::compare::alignment::{repaired, unaligned};
use crate::compare::array_comparison::ArrayComparison;
use crate::compare::axis_slices::{among, axis, latest_keys};
use crate::compare::compared_dump::ComparedDump;
use crate::compare::draft_token::DraftToken;
use crate::compare::expert_slots::{self, measure_experts};
use crate::compare::input_precision::InputPrecision;
use crate::compare::logprobs::{ListedIds, TopIds, measure_ids};
use crate::compare::role::{ContinuationValues, Role};
use crate::compare::rounding_evaluation::RoundingEvaluation;
use crate::compare::routers::{Preference, Routers};
use crate::compare::sketches::{measure_sketches, sketch_of};
use crate::compare::unexplained_operation::UnexplainedOperation;
use crate::compare::uniform_distribution::UniformErrors;
use crate::compare::visible_keys::VisibleKeys;
use crate::error::{Error, Result};
use crate::exact::{self, Float};
use crate::measure::{
    Agreement, ColumnSelection, Distribution, Tops, ValuePrecision, coarser, measure, measure_tokens,
    nearest_within,
};
use crate::tap::Tap;
use crate::tensor::{RopePairing, Tensor};
use crate::view::View;
use crate::weight::DType;

/// Maximum number of values kept for computing operations again. Each value takes some tens of bytes,
/// including inputs.
const MOST_KEPT: usize = 1 << 24;

/// Properties of our engine that a comparison uses.
#[derive(Clone, Debug)]
pub struct EngineProperties {
    /// The pairs of head values that RoPE rotates together.
    pub pairing: Option<RopePairing>,
    /// Sliding window of each layer: the number of latest positions it sees. `None` for all positions.
    pub windows: Vec<Option<usize>>,
    /// Type to which operations round their results.
    pub computed: DType,
    /// Type of matrix products and of values computed only from them.
    pub products: DType,
    /// Type of the KV cache.
    pub cache: DType,
}

impl EngineProperties {
    /// Returns the sliding window of a site's layer. `None` if the layer sees all positions.
    pub fn window(&self, site: Site) -> Option<usize> {
        site.layer.and_then(|layer| self.windows.get(layer).copied().flatten())
    }

    /// Returns the type to which the values of a tap are rounded.
    pub fn computed_at(&self, point: Point) -> DType {
        match point {
            _ if point.is_of_products() || point == Point::AttnScores => self.products,
            Point::KCache | Point::VCache => coarser(self.cache, self.computed).unwrap_or(self.computed),
            _ => self.computed,
        }
    }
}

/// A tap that compares every value with the dump's and keeps only the measurements.
#[derive(Debug)]
pub struct LiveComparison<'d> {
    held: &'d ComparedDump<'d>,
    role: Role,
    selection: &'d Selection,
    engine: &'d EngineProperties,
    go_on: ContinuationValues,
    /// Visited sites with their results, if compared.
    found: Vec<(Site, Option<ArrayComparison>)>,
    /// The number of tokens in the vocabulary.
    vocabulary: usize,
    /// The engine's latest row of logits.
    logits: Vec<f32>,
    margins: HashMap<usize, f64>,
    read_on: Vec<DraftToken>,
    routers: Routers,
    preferences: HashMap<Site, Preference>,
    /// Our engine's ranking of the ids that the dump lists, by pass.
    ranked: HashMap<usize, TopIds>,
    /// `None` if operations are not evaluated exactly. `Some(true)` if the dump's engine may round
    /// differently than its profile states.
    may_differ: Option<bool>,
    explained: HashMap<Site, RoundingEvaluation>,
    uniform: HashMap<Site, UniformErrors>,
    unexplained: Vec<UnexplainedOperation>,
    /// The sites at which the distribution of errors is measured, if any.
    distributed: Option<&'d HashSet<Site>>,
    distributions: HashMap<Site, Distribution>,
    error: Option<Error>,
}

/// The results of a live comparison.
#[derive(Debug, Default)]
pub struct LiveResults {
    /// Visited sites in data-flow order, with their results if compared.
    pub found: Vec<(Site, Option<ArrayComparison>)>,
    /// Margin by which our logits prefer our choice to the dump's, by pass.
    pub margins: HashMap<usize, f64>,
    /// Draft tokens for which our engine prefers another token.
    pub read_on: Vec<DraftToken>,
    /// Margin by which our engine prefers top tokens that the dump does not list to those that it lists, by
    /// pass.
    pub rank_margins: HashMap<usize, f64>,
    /// The preference of our router for its choice of experts, by site.
    pub preferences: HashMap<Site, Preference>,
    /// Rounding evaluation of each evaluated site.
    pub explained: HashMap<Site, RoundingEvaluation>,
    /// Errors that a uniform distribution would have instead of the dump's.
    pub uniform: HashMap<Site, UniformErrors>,
    /// Operations of the dump's engine that rounding does not explain.
    pub unexplained: Vec<UnexplainedOperation>,
    /// The distributions of errors at the requested sites.
    pub distributions: HashMap<Site, Distribution>,
}

impl<'d> LiveComparison<'d> {
    /// Makes a comparison with the dump's values, converted to our engine's order of heads.
    pub fn new(
        held: &'d ComparedDump<'d>,
        role: Role,
        selection: &'d Selection,
        engine: &'d EngineProperties,
        go_on: ContinuationValues,
    ) -> Self {
        let (found, logits, margins, explained, unexplained) = Default::default();
        Self {
            held,
            role,
            selection,
            engine,
            go_on,
            found,
            vocabulary: 0,
            logits,
            margins,
            read_on: Vec::new(),
            routers: Routers::default(),
            preferences: HashMap::new(),
            ranked: HashMap::new(),
            may_differ: None,
            explained,
            uniform: HashMap::new(),
            unexplained,
            distributed: None,
            distributions: HashMap::new(),
            error: None,
        }
    }

    /// Also measures the distribution of errors at these sites.
    pub fn distributing(self, sites: &'d HashSet<Site>) -> Self {
        Self { distributed: Some(sites), ..self }
    }

    /// Also evaluates each operation exactly. The run must use traced numerics. `may_differ` is true if the
    /// dump's engine may round differently than its profile states.
    pub fn evaluating(self, may_differ: bool) -> Self {
        Self { may_differ: Some(may_differ), ..self }
    }

    /// Returns true if operations are evaluated exactly.
    pub fn is_evaluating(&self) -> bool {
        self.may_differ.is_some()
    }

    /// Returns the results.
    ///
    /// # Errors
    /// The first array that could not be read or has another shape than the engine's.
    pub fn finish(self) -> Result<LiveResults> {
        let Self { mut found, margins, read_on, ranked, preferences, explained, uniform, .. } = self;
        let (mut unexplained, distributions) = (self.unexplained, self.distributions);
        // The run may interleave the layers of several passes.
        found.sort_by_key(|(site, _)| site.flow_order());
        unexplained.sort_by_key(|one| one.site.flow_order());
        let rank_margins = ranked.into_iter().map(|(pass, ranked)| (pass, ranked.margin)).collect();
        let compared = LiveResults {
            found,
            margins,
            read_on,
            rank_margins,
            preferences,
            explained,
            uniform,
            unexplained,
            distributions,
        };
        self.error.map_or(Ok(compared), Err)
    }

    /// Compares `own` with the dump. Returns the value that replaces `own` in the run, if any.
    fn compare(&mut self, site: Site, own: &Tensor) -> Result<Option<Tensor>> {
        self.remember_choice(site, own);
        let included = self.selection.takes(site, &self.held.positions(site));
        if self.held.dump.sketches(site) {
            let found = if included { Some(self.sketched(site, own)?) } else { None };
            self.found.push((site, found));
            return Ok(None);
        }
        let rows = self.held.dump.held_rows(site);
        // For expert choices, rows that the dump lacks are filled with ours.
        let is_whole = rows.is_none() && self.held.dump.starts_at(site) || site.point == Point::Experts;
        let replaces = self.go_on.replaces(site.point) && is_whole;
        let wanted = (self.held.holds(site) || rows.is_some()) && (included || replaces);
        if !wanted {
            self.found.push((site, None));
            return Ok(None);
        }
        let (traced, own) = (own, View::from(own));
        let dumped = self.dumped(site, &own)?;
        if self.held.is_unaligned(site, self.engine.pairing) {
            self.found.push((site, included.then(|| ArrayComparison::Unaligned(unaligned(site.point)))));
            return Ok(None);
        }
        let Some(dumped) = dumped else {
            self.found.push((site, None));
            return Ok(None);
        };
        let dumped = without_padding(site.point, &own, dumped);
        let filled = match rows {
            None => Some(dumped.clone()),
            Some(rows) => self.filled(site, &own, &dumped, rows)?,
        };
        let part = filled.as_ref().map(|filled| self.comparable(site, &own, filled)).transpose()?.flatten();
        let (Some(part), Some(dumped)) = (part, filled) else {
            let what = other_length(site.point, &dumped, &own);
            self.found.push((site, included.then_some(ArrayComparison::OtherLength(what))));
            return Ok(None);
        };
        if site.point == Point::Experts {
            self.compare_experts(site, traced, &dumped)?;
        }
        let sight = self.sight(site, &own, &part);
        let shape = dumped.shape().to_vec();
        let columns = |row: usize| sight.columns(site.point, &shape, row);
        let mut measured = included.then(|| {
            let (candidate, reference) = self.sides(part.clone(), dumped.clone());
            match site.point.kind() {
                ValueKind::Real => measure(candidate, reference, self.grain(site), columns),
                ValueKind::Token if site.point == Point::TopIds => {
                    measure_ids(&candidate, &reference, &self.rows(site))
                }
                ValueKind::Token if site.point == Point::Experts => {
                    measure_experts(&candidate, &reference, &self.rows(site))
                }
                ValueKind::Token => measure_tokens(candidate, reference),
            }
        });
        if let Some(measured) = measured.as_mut().filter(|_| site.point.kind() == ValueKind::Real) {
            measured.agreement = self.agreement(site, &part, &dumped, measured.is_identical());
            if site.point == Point::LastLogits {
                let (candidate, reference) = self.sides(part.clone(), dumped.clone());
                measured.tops = Tops::of(&candidate, &reference).map(Box::new);
            }
        }
        if included
            && site.point.kind() == ValueKind::Real
            && self.distributed.is_some_and(|sites| sites.contains(&site))
        {
            let found =
                Distribution::of(&dumped, &part, self.dumps_grain(site), columns, is_of_logits(site.point));
            self.distributions.insert(site, found);
        }
        if let (Some(may_differ), true, ValueKind::Real) = (self.may_differ, included, site.point.kind()) {
            let explained = self.evaluated(site, traced, &own, &dumped, may_differ);
            let agreement = measured.as_mut().and_then(|measured| measured.agreement.as_mut());
            if let (Some((_, beyond)), Some(agreement)) = (&explained, agreement) {
                agreement.mark_over(beyond, own.shape().get(1).copied().unwrap_or(1));
            }
            self.explained.extend(explained.map(|(explained, _)| (site, explained)));
        }
        if included {
            self.uniform.extend(self.of_uniform(site, traced, &own).map(|uniform| (site, uniform)));
        }
        self.found.push((site, measured.map(ArrayComparison::Measured)));
        let replacement = replaces.then(|| match site.point {
            Point::Experts => Tensor::from(&dumped),
            _ => self.replaced(site, (traced, &own), &part, &dumped, columns),
        });
        dumped.release();
        Ok(replacement)
    }

    /// Stores the margin by which our router prefers its experts to the dump's.
    fn compare_experts(&mut self, site: Site, traced: &Tensor, dumped: &View) -> Result<()> {
        let experts = self.routers.experts(site).unwrap_or(0);
        let is_none = |number: &f64| !(0.0..experts as f64).contains(number);
        if let Some(number) = dumped.to_vec().into_iter().find(is_none) {
            let problem = format!(
                "{site}: expert {number} does not exist: the model has {experts} experts, counted \
                    from 0"
            );
            return Err(Error::dump(&self.held.dump.path, problem));
        }
        let preference = self.routers.preference(site, traced, Some(dumped), self.is_evaluating());
        self.preferences.extend(preference.map(|preference| (site, preference)));
        Ok(())
    }

    /// Compares sketches. Our values are first converted to the dump's order of heads and rounded to its
    /// type.
    fn sketched(&self, site: Site, own: &Tensor) -> Result<ArrayComparison> {
        let (own, held) = (View::from(own), self.held);
        let row = held.dump.row(site).expect("the dump has a sketch there");
        if own.shape() != row.shape {
            let problem = format!(
                "{site} has shape {:?}, expected {:?}; check that the dump was made from this model",
                row.shape,
                own.shape()
            );
            return Err(Error::dump(&held.dump.path, problem));
        }
        let own = match self.engine.pairing.filter(|_| site.point.follows_rope_pairing()) {
            None => own,
            Some(ours) => match held.pairing() {
                Some(theirs) => repaired(own, ours, theirs),
                None => return Ok(ArrayComparison::Unaligned(unaligned(site.point))),
            },
        };
        let own = match site.point.is_of_chosen() {
            false => own,
            true if !expert_slots::are_known(held.dump, site) => {
                return Ok(ArrayComparison::Unaligned(unaligned(site.point)));
            }
            true => match expert_slots::order_of(held.dump, site, own.shape())? {
                Some(order) => own.with_runs(&expert_slots::inverse(&order), own.len() / order.len()),
                None => own,
            },
        };
        let dumped = held.dump.sketch(site)?.expect("the dump has a sketch there");
        let ours = sketch_of(site.point, &own, held.stored(site));
        let (candidate, reference) = self.sides(ours, dumped);
        Ok(ArrayComparison::Measured(measure_sketches(&candidate, &reference, own.len())))
    }

    /// Evaluates whether rounding explains both sides. Rows that the dump lacks are filled with our engine's
    /// values.
    fn evaluated(
        &mut self,
        site: Site,
        traced: &Tensor,
        own: &View,
        dumped: &View,
        may_differ: bool,
    ) -> Option<(RoundingEvaluation, Vec<usize>)> {
        let extended = with_latest(own, site.point, dumped);
        let sight = self.sight(site, own, own);
        let columns = |row: usize| sight.columns(site.point, own.shape(), row);
        let compared = exact::ResultPair {
            traced,
            sides: [&extended, own],
            stored: self.lossy(site, traced),
            is_double: self.held.stored(site) == Some(DType::F64),
            sees: &|row| columns(row).range(own.width()),
        };
        let judged = exact::judge(&compared, may_differ)?;
        let is_wrong = site.point.is_of_named_ids() && judged.dump.over > 0;
        let beyond = if is_wrong { exact::unexplained(&compared) } else { Vec::new() };
        if !judged.dump.is_explained() && self.has_room_for(extended.len()) {
            let (stored, is_double) = (compared.stored, compared.is_double);
            let theirs = extended.to_vec();
            let scales = extended.scales().map(View::to_vec);
            self.unexplained.push(UnexplainedOperation {
                site,
                traced: traced.clone(),
                theirs,
                scales,
                stored,
                is_double,
                sight,
            });
        }
        Some((RoundingEvaluation::new(judged, self.role, own.shape()), beyond))
    }

    /// Returns the errors that a uniform distribution would have instead of the dump's.
    fn of_uniform(&self, site: Site, traced: &Tensor, own: &View) -> Option<UniformErrors> {
        let values = UniformErrors::values(site, own, self.vocabulary)?;
        let compared = exact::ResultPair {
            traced,
            sides: [&View::from(&values), own],
            stored: self.stored(site).and_then(Float::of),
            is_double: false,
            sees: &|_| 0..own.width(),
        };
        let judged = || self.may_differ.and_then(|_| exact::judge(&compared, false));
        let is_explained = || judged().is_some_and(|judged| judged.dump.is_explained());
        Some(UniformErrors::measured(&values, own, is_explained))
    }

    /// Returns the ids that the dump lists for these logits and stores our ranking of them. Does not compare
    /// values.
    pub fn named(&mut self, site: Site, logits: &Tensor) -> Option<ListedIds> {
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
    pub fn own_ids(&self, pass: Option<usize>) -> Option<Tensor> {
        self.ranked.get(&pass?).map(|ranked| ranked.own.clone())
    }

    /// Compares the predictions of both sides at each position: for log-probabilities, and for logits that
    /// differ.
    fn agreement(&self, site: Site, own: &View, dumped: &View, is_identical: bool) -> Option<Agreement> {
        if site.point == Point::Logits && !is_identical {
            let (candidate, reference) = self.sides(own.clone(), dumped.clone());
            return Some(Agreement::of_logits(&candidate, &reference, &self.rows(site)));
        }
        if !site.point.is_of_named_ids() {
            return None;
        }
        let ranked = site.pass.and_then(|pass| self.ranked.get(&pass));
        let ranked = ranked.filter(|_| site.point == Point::TopLogprobs);
        let same_top = |row: usize| ranked.and_then(|ranked| ranked.same_top(dumped, row));
        let (candidate, reference) = self.sides(own.clone(), dumped.clone());
        Some(Agreement::of(
            &candidate,
            &reference,
            &self.rows(site),
            self.grain(site),
            |_| ColumnSelection::All,
            same_top,
        ))
    }

    /// Returns the recorded rows of a site.
    fn rows(&self, site: Site) -> Vec<usize> {
        let all = || 0..self.held.positions(site).len();
        self.held.dump.held_rows(site).map_or_else(|| all().collect(), <[usize]>::to_vec)
    }

    /// Returns true if an operation with this many values can be kept. The first one is always kept.
    fn has_room_for(&self, values: usize) -> bool {
        let kept: usize = self.unexplained.iter().map(|one| one.theirs.len()).sum();
        kept == 0 || kept + values <= MOST_KEPT
    }

    /// Returns the dump's values in our engine's order of heads. The dump's order is checked against the
    /// values.
    fn dumped(&self, site: Site, own: &View) -> Result<Option<View<'static>>> {
        let values = |held: &ComparedDump| held.values(site, self.engine.pairing);
        if self.engine.pairing.is_some() {
            self.held.look_at_pairing(site, |held| {
                let dumped = values(held)?.filter(|dumped| dumped.shape() == own.shape());
                let rel_l2 = |dumped| {
                    measure(own.clone(), dumped, ValuePrecision::F32, |_| ColumnSelection::All).errors.rel_l2
                };
                Ok(dumped.map_or(0.0, rel_l2))
            })?;
        }
        if self.held.is_unaligned(site, self.engine.pairing) { Ok(None) } else { values(self.held) }
    }

    /// Returns our engine's values in the shape of the dump's: all, or only the latest keys if the layer's
    /// sliding window allows a shorter cache. `None` if the numbers of keys differ for another reason.
    fn comparable<'v>(&self, site: Site, own: &View<'v>, dumped: &View) -> Result<Option<View<'v>>> {
        if own.shape() == dumped.shape() {
            return Ok(Some(own.clone()));
        }
        let mut others = (own.shape().to_vec(), dumped.shape().to_vec());
        let keys = axis(site.point, TapAxis::Key).filter(|_| others.0.len() == others.1.len());
        let lengths = keys.map(|axis| (others.0.remove(axis), others.1.remove(axis)));
        if let (Some((own_keys, keys)), true) = (lengths, others.0 == others.1) {
            let window = self.engine.window(site);
            let keeps_enough = window.is_some_and(|window| (window.min(own_keys)..own_keys).contains(&keys));
            return Ok(keeps_enough.then(|| latest_keys(own, site.point, keys)));
        }
        if is_of_other_number(site.point, own.shape(), dumped.shape()) {
            return Ok(None);
        }
        let (theirs, ours) = (dumped.shape(), own.shape());
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
        Err(Error::dump(&self.held.dump.path, problem))
    }

    /// Fills rows that the dump lacks with our values, so that they show no error. `None` if the number of
    /// keys differs.
    fn filled<'v>(
        &self,
        site: Site,
        own: &View<'v>,
        dumped: &View<'v>,
        rows: &[usize],
    ) -> Result<Option<View<'v>>> {
        let along = axis(site.point, TapAxis::Token).expect("rows belong to a token axis");
        let theirs = own.clone().taken(along, rows);
        let comparable = self.comparable(site, &theirs, dumped)?;
        Ok(comparable.map(|_| among(own, &with_latest(&theirs, site.point, dumped), along, rows)))
    }

    fn sight(&self, site: Site, own: &View, part: &View) -> VisibleKeys {
        let keys = axis(site.point, TapAxis::Key);
        let dropped = keys.map_or(0, |axis| own.shape()[axis] - part.shape()[axis]);
        let first_query = self.held.positions(site).start;
        let rows = self.held.dump.held_rows(site).map(Arc::from);
        VisibleKeys { first_query, first_key: dropped, window: self.engine.window(site), rows }
    }

    /// Orders the two values as candidate and reference.
    fn sides<'v>(&self, own: View<'v>, dumped: View<'v>) -> (View<'v>, View<'v>) {
        match self.role {
            Role::Candidate => (dumped, own),
            Role::Reference => (own, dumped),
        }
    }

    /// Returns the precision of both sides' values, with the dump in the candidate's role.
    fn dumps_grain(&self, site: Site) -> ValuePrecision {
        let computed = self.engine.computed_at(site.point);
        ValuePrecision {
            computed,
            candidate: self.stored(site),
            reference: None,
            steps: [self.held.step(site), 0.0],
        }
    }

    fn grain(&self, site: Site) -> ValuePrecision {
        let computed = self.engine.computed_at(site.point);
        let (stored, step) = (self.stored(site), self.held.step(site));
        match self.role {
            Role::Candidate => {
                ValuePrecision { computed, candidate: stored, reference: None, steps: [step, 0.0] }
            }
            Role::Reference => {
                ValuePrecision { computed, candidate: None, reference: stored, steps: [0.0, step] }
            }
        }
    }

    /// Returns the type to which the dump's values were rounded when stored, if smaller than the computed
    /// type.
    fn stored(&self, site: Site) -> Option<DType> {
        coarser(self.held.stored(site)?, self.engine.computed_at(site.point))
    }

    /// Returns the type to which storing rounded the dump's values. It is smaller than the engine's type, or
    /// than the result type of this operation (e.g. `f32` probabilities).
    fn lossy(&self, site: Site, traced: &Tensor) -> Option<Float> {
        let is_lossy =
            |stored: &Float| exact::type_of_results(traced).is_some_and(|results| stored.loses(results));
        let of_operation = || self.held.stored(site).and_then(Float::of).filter(is_lossy);
        self.stored(site).and_then(Float::of).or_else(of_operation)
    }

    /// Returns the tensor with which the run continues. Visible entries come from the dump, within the
    /// precision of its storage. Hidden entries come from our engine, since the dump may contain anything
    /// there.
    fn replaced(
        &self,
        site: Site,
        (traced, own): (&Tensor, &View),
        part: &View,
        dumped: &View,
        columns: impl Fn(usize) -> ColumnSelection + Sync,
    ) -> Tensor {
        let stands = InputPrecision::of(self.held, site, self.engine.computed_at(site.point));
        let width = dumped.width();
        let near = Tensor::from_rows(dumped.rows(), width, |row, out| {
            let seen = columns(row).range(width);
            if seen != (0..width) || !stands.is_exact() {
                part.read_rounded(row, 0..width, out);
            }
            if stands.is_exact() {
                return dumped.read_rounded(row, seen.clone(), &mut out[seen]);
            }
            let (mut theirs, mut ours, mut scales) = (vec![0.0; width], vec![0.0; width], vec![1.0; width]);
            dumped.read(row, 0..width, &mut theirs);
            part.read(row, 0..width, &mut ours);
            if let Some(of_dump) = dumped.scales() {
                of_dump.read(row, 0..width, &mut scales);
            }
            for column in seen {
                let half = stands.radius(theirs[column], scales[column]);
                out[column] = nearest_within(half, theirs[column], ours[column]) as f32;
            }
        });
        let near = near.reshaped(dumped.shape());
        let tensor = match own.shape() == dumped.shape() {
            true => near,
            false => Tensor::from(&with_latest(own, site.point, &View::from(&near))),
        };
        match (self.may_differ, stands) {
            (None, _) => tensor,
            (Some(_), InputPrecision::Given) => exact::in_place_of(traced, tensor),
            (Some(_), _) => stands.about(tensor, &with_latest(own, site.point, dumped)),
        }
    }

    /// Stores the margin by which our logits prefer our choice to the dump's.
    fn remember_choice(&mut self, site: Site, own: &Tensor) {
        match (site.point, site.pass) {
            (Point::LastLogits, _) => self.logits = own.data().to_vec(),
            (Point::Logits, Some(pass)) => {
                self.vocabulary = own.row_len();
                self.read_on.extend(DraftToken::widest(self.held, pass, own));
            }
            (Point::Experts, _) => {
                let preference = self.routers.preference(site, own, None, self.is_evaluating());
                self.preferences.extend(preference.map(|preference| (site, preference)));
            }
            (Point::Argmax, Some(pass)) => {
                let end = self.held.positions(site).end;
                let chosen = own.data()[0] as usize;
                let other = end.checked_sub(1).and_then(|position| self.held.choices.at(position));
                let logit = |token: usize| self.logits.get(token).map(|&logit| f64::from(logit));
                if let Some((best, other)) = logit(chosen).zip(other.and_then(|token| logit(token as usize)))
                {
                    self.margins.insert(pass, best - other);
                }
            }
            _ => {}
        }
    }
}

/// Removes keys after the latest position, the padding of a fixed-size cache. Keys are removed only from
/// attention scores, or if all their values are zero.
fn without_padding<'v>(point: Point, own: &View, dumped: View<'v>) -> View<'v> {
    let Some(along) = axis(point, TapAxis::Key).filter(|_| own.shape().len() == dumped.shape().len()) else {
        return dumped;
    };
    let (keys, all) = (own.shape()[along], dumped.shape()[along]);
    let is_nothing = |part: View| part.to_vec().iter().all(|&value| value == 0.0);
    let is_padded =
        keys < all && (point == Point::AttnScores || is_nothing(dumped.clone().slice(along, keys..all)));
    if is_padded { dumped.slice(along, 0..keys) } else { dumped }
}

/// Returns `own` with its latest keys replaced by `view`, or `view` if the shapes agree.
fn with_latest<'v>(own: &View<'v>, point: Point, view: &View<'v>) -> View<'v> {
    let Some(along) = axis(point, TapAxis::Key).filter(|_| own.shape() != view.shape()) else {
        return view.clone();
    };
    let kept = own.shape()[along] - view.shape()[along];
    View::joined(vec![own.clone().slice(along, 0..kept), view.clone()], along)
}

/// Returns true for taps of logits, which are also compared as probabilities.
pub fn is_of_logits(point: Point) -> bool {
    matches!(point, Point::Logits | Point::LastLogits)
}

/// Returns true if two shapes differ only in the number of chosen experts per token.
pub(super) fn is_of_other_number(point: Point, one: &[usize], other: &[usize]) -> bool {
    let Some(chosen) = axis(point, TapAxis::Chosen) else { return false };
    let without =
        |shape: &[usize]| [&shape[..chosen.min(shape.len())], &shape[shape.len().min(chosen + 1)..]].concat();
    one.len() == other.len() && without(one) == without(other)
}

fn other_length(point: Point, dumped: &View, own: &View) -> String {
    if let Some(chosen) = axis(point, TapAxis::Chosen) {
        let [theirs, ours] = [dumped, own].map(|view| view.shape()[chosen]);
        return format!("the dump routes each token to {theirs} experts, the model to {ours}");
    }
    let axis = axis(point, TapAxis::Key).unwrap_or(0);
    format!(
        "the dump has {} keys, expected {} (one per position read)",
        dumped.shape()[axis],
        own.shape()[axis]
    )
}

impl Tap for LiveComparison<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.error.is_some() {
            return value;
        }
        match self.compare(site, &value) {
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
