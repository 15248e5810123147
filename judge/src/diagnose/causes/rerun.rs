//! Runs a part of the model again with changes, for rows with several operations between them and their
//! inputs.

use crate::align::Selection;
use crate::catalogue::{OperationChange, PassRestriction, Supposition, catalogue};
use crate::change::{CatalogueEntry, CauseKind, ModelOperations, SiteContext};
use crate::check::{ArrayComparison, ContinuationValues, Deadline, RerunPart, RunContext, SiteCheck};
use crate::checkpoint::{Point, Site};
use crate::diagnose::causes::operation_search::{SearchContext, SearchResult};
use crate::diagnose::causes::parameter_search::Parameter;
use crate::diagnose::causes::pass_restrictions::{EffectComparison, SettledChanges};
use crate::diagnose::causes::{Changes, in_order};
use crate::engine::ModelSegment;
use crate::error::Result;
use crate::measure::Errors;
use crate::noise::NoiseFloor;
use crate::plan::{Unit, input_of};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::verdict::SiteResult;

/// Number of best single changes that are combined with a second change.
const COMBINED: usize = 4;

/// Number of best single changes that an exhaustive search combines.
const MOST_COMBINED: usize = 32;

/// Maximum number of multiplications of weights and activations in a run that counts as short.
const MOST_PRODUCTS: usize = 1 << 28;

/// A change counts as equally good if its error is at most this many times the best error, or the noise
/// floor.
const AS_WELL: f64 = 3.0;

/// A failing row with several operations between it and its inputs, to be computed again with changes.
pub(super) struct Rerun<'s> {
    search: &'s SearchContext<'s>,
    rows: &'s [SiteResult],
    pub(super) context: &'s RunContext<'s>,
    traced: &'s TracedNumerics<'s>,
    operations: &'s ModelOperations,
    pub(super) deadline: &'s Deadline<'s>,
    pub(super) row: &'s SiteResult,
    pub(super) part: RerunPart,
    /// True if the run covers only the row's layer, or only the head.
    is_alone: bool,
    pub(super) go_on: ContinuationValues,
    /// Selects the row's checkpoint, in all layers and passes.
    pub(super) selection: Selection,
}

/// A change and the row's error with it.
pub(super) struct ChangeTrial {
    pub(super) supposed: Vec<Supposition>,
    errors: Errors,
}

impl<'s> Rerun<'s> {
    /// Prepares a rerun of a row. Runs only the row's layer if the dump records the layer's input and the row
    /// depends on nothing else.
    pub(super) fn new(search: &'s SearchContext<'s>, row: &'s SiteResult) -> Self {
        let context = search.context;
        let of = |layers, head| RerunPart::Part(ModelSegment { embed: false, layers, head });
        let part = match (row.site.layer, row.site.pass) {
            (Some(layer), Some(last)) if row.local.is_some() => {
                let holds = |pass| context.held.dump.starts_at(input_of(layer, pass));
                (0..=last).all(holds).then(|| of(layer..layer + 1, false))
            }
            (None, Some(pass)) if row.local.is_some() => {
                let last = search.operations.n_layers();
                context.held.dump.starts_at(input_of(last, pass)).then(|| of(last..last, true))
            }
            _ => None,
        };
        let is_alone = part.is_some();
        let part = part.unwrap_or_else(|| up_to(row, &context.unit));
        let go_on = if row.local.is_some() { ContinuationValues::Held } else { ContinuationValues::Own };
        let checkpoints = vec![row.checkpoint()];
        let selection = Selection { checkpoints, ..Selection::everything() };
        let SearchContext { traced, operations, deadline, rows, .. } = *search;
        Self { search, rows, context, traced, operations, deadline, row, part, is_alone, go_on, selection }
    }

    /// Tries the catalogue: each change at all its taps, then at single taps, then pairs of changes. Returns
    /// `None` if the unchanged model gives the dump's values: the cause then lies before the rerun part.
    pub(super) fn search(&self) -> Result<Option<SearchResult>> {
        if self.explains(&[])? {
            return Ok(None);
        }
        let changes = self.changes()?;
        let (mut tried, mut best) = (Vec::new(), SettledChanges::default());
        // If earlier passes are right, the change is likely restricted to passes like this one.
        for passes in self.likely_passes() {
            let limited = changes.limited_to(passes);
            let singles = self.singles(&limited, &mut best)?;
            if self.is_enough(&best) {
                break;
            }
            tried.push((limited, singles));
        }
        for (changes, singles) in &tried {
            if best.fits.is_empty() {
                self.settle(&self.pairs(singles, &changes.usual)?, &mut best)?;
            }
        }
        // One later pass does not tell which of many values explains it, if other passes contradict.
        let is_likely = best.is_complete || best.explained > 1 || self.row.site.pass == Some(0);
        let fits = if is_likely { best.fits } else { Vec::new() };
        Ok(Some(SearchResult::new(fits, changes.usual.iter().chain(&changes.sweep), self.deadline)))
    }

    /// Tries single changes until one explains everything: first at all taps of the change, then with less usual
    /// values, then at single taps. Returns the changes that bring the result nearer to the row.
    fn singles(&self, changes: &FoundChanges, best: &mut SettledChanges) -> Result<Vec<ChangeTrial>> {
        let (mut local, common): (Vec<_>, Vec<_>) =
            changes.usual.iter().partition(|change| change.entry.is_local);
        // Changes of single weights are skipped if the run covers many layers: there are too many of them.
        let is_long = !self.is_alone && !self.is_short() && !self.deadline.is_exhaustive();
        local.retain(|_| !is_long);
        let everywhere = common.iter().map(|change| vec![self.one(change, None)]);
        let singles = self.tried(everywhere.chain(self.alone(&local)))?;
        self.settle(&singles, best)?;
        if best.fits.is_empty() || self.deadline.is_exhaustive() {
            self.settle(&self.solved(&changes.parameters, is_long)?, best)?;
        }
        if !self.is_enough(best) && !is_long {
            let more = self.tried(changes.sweep.iter().map(|change| vec![self.one(change, None)]))?;
            self.settle(&more, best)?;
        }
        if !self.is_enough(best) && !is_long {
            let common: Vec<_> = common.into_iter().filter(|change| change.taps().len() > 1).collect();
            self.settle(&self.tried(self.alone(&common))?, best)?;
        }
        Ok(singles)
    }

    /// Returns true if no other change needs to be tried.
    fn is_enough(&self, best: &SettledChanges) -> bool {
        best.is_simple() && !self.deadline.is_exhaustive()
    }

    /// Returns the restrictions to try. If earlier passes of the site are correct, passes like the row's come first;
    /// then no restriction.
    fn likely_passes(&self) -> Vec<Option<PassRestriction>> {
        let site = self.row.site;
        let is_before = |row: &&SiteResult| {
            let other = row.site;
            let is_same = other.layer == site.layer && same_values(&site.point).contains(&other.point);
            is_same && other.pass < site.pass && !row.is_single_operation()
        };
        let before: Vec<&SiteResult> = self.rows.iter().filter(is_before).collect();
        match site.pass.filter(|_| !before.is_empty()) {
            Some(pass) if before.iter().all(|row| row.verdict.is_good()) => {
                let tokens = self.context.held.passes()[pass].tokens.len();
                vec![Some(PassRestriction::of_pass(pass, tokens)), None]
            }
            _ => vec![None],
        }
    }

    /// Returns each change, applied at one of its taps at a time.
    fn alone(&self, changes: &[&OperationChange]) -> impl Iterator<Item = Vec<Supposition>> {
        let at_each = |change: &&OperationChange| {
            let points = change.entry.at.iter();
            points.map(|&point| vec![self.one(change, Some(point))]).collect::<Vec<_>>()
        };
        changes.iter().flat_map(at_each).collect::<Vec<_>>().into_iter()
    }

    /// Returns true if these changes explain the row.
    pub(super) fn is_explained_by(&self, changes: &[OperationChange]) -> Result<bool> {
        self.explains(&changes.iter().map(|change| self.one(change, None)).collect::<Vec<_>>())
    }

    /// Restricts the changes that explain the row to the passes where its tap is wrong, and drops those that alter right
    /// sites. Keeps them as the best if they explain more sites than the best so far.
    fn settle(&self, tried: &[ChangeTrial], best: &mut SettledChanges) -> Result<()> {
        let fits = self.fitting(tried)?;
        if fits.is_empty() {
            return Ok(());
        }
        let layers = match &self.part {
            RerunPart::Part(part) if self.is_alone && !part.head => Some(part.layers.clone().collect()),
            _ => None,
        };
        let site = self.row.site;
        let compared = EffectComparison::new(self.search, site, same_values(&site.point), layers, self.go_on);
        best.take(compared.settled(fits)?);
        Ok(())
    }

    pub(super) fn one(&self, change: &OperationChange, point: Option<Point>) -> Supposition {
        let everywhere = Supposition::everywhere(change.clone());
        let at = point.into_iter().fold(everywhere, Supposition::at);
        match &self.part {
            RerunPart::Part(part) if self.is_alone && !part.head => at.in_layers(part.layers.clone()),
            _ => Supposition { layers: None, ..at },
        }
    }

    /// Returns every change that applies to at least one site in the part of the model that is run again.
    fn changes(&self) -> Result<FoundChanges> {
        let mut scout = ApplicableChanges { rerun: self, found: FoundChanges::default() };
        self.run(&[], &mut scout)?;
        let mut found = scout.found;
        in_order(&mut found.usual);
        in_order(&mut found.sweep);
        let FoundChanges { usual, sweep, parameters } = &mut found;
        sweep.retain(|change| !usual.contains(change));
        let place = |parameter: &Parameter| catalogue().position(|entry| entry == parameter.entry);
        parameters.sort_by_key(place);
        Ok(found)
    }

    /// Reads the parameters of candidate changes from the dump: penalties from the logits, the others from taps that are
    /// computed from the logits.
    fn read(&self, at: &SiteContext) -> Vec<OperationChange> {
        let (held, point) = (self.context.held, at.site.point);
        if !point.is_of_named_ids() && !same_values(&point).contains(&Point::Logits) {
            return Vec::new();
        }
        let Ok(Some(values)) = held.values(at.site, None) else { return Vec::new() };
        let (values, rows) = (values.to_vec(), held.dump.held_rows(at.site));
        let width = at.value.data().len() / at.value.shape()[0];
        let mut theirs = vec![f64::NAN; at.value.data().len()];
        for (index, values) in values.chunks(width).enumerate() {
            let row = rows.map_or(index, |rows| rows[index]);
            theirs[row * width..][..width].copy_from_slice(values);
        }
        let is_read = |entry: &&CatalogueEntry| point.is_of_named_ids() || entry.kind.is_penalty();
        let known = catalogue().filter(|entry| entry.at.contains(&at.site.point)).filter(is_read);
        let all = known.flat_map(|entry| {
            entry.read_at(at, &theirs).into_iter().map(move |value| OperationChange::new(entry, value))
        });
        all.filter(|change| change.compute(at).is_some()).collect()
    }

    pub(super) fn run(
        &self,
        supposed: &[Supposition],
        onlooker: &mut dyn Tap,
    ) -> Result<Option<ArrayComparison>> {
        let comparison = self.context.comparing_of(&self.selection, self.go_on);
        let passes = self.passes();
        let checks = self.context.rerun(&self.part, passes, supposed, comparison, onlooker)?;
        Ok(checks.into_iter().find(|check| check.site == self.row.site).and_then(|check| check.found))
    }

    /// Returns true if the row's error is within rounding when a tap replaces values.
    pub(super) fn is_near_with(&self, replaces: &mut dyn Tap) -> Result<bool> {
        let found = self.run(&[], replaces)?;
        Ok(matches!(found, Some(ArrayComparison::Measured(found)) if self.is_near(&found.errors)))
    }

    pub(super) fn passes(&self) -> usize {
        self.row.site.pass.map_or(self.context.held.passes().len(), |pass| pass + 1)
    }

    /// Returns the changes that reduce the row's error, with the reduced error.
    pub(super) fn tried(&self, all: impl Iterator<Item = Vec<Supposition>>) -> Result<Vec<ChangeTrial>> {
        let before = self.row.judged().map_or(f64::INFINITY, |found| found.errors.rel_l2);
        let mut tried = Vec::new();
        for supposed in all {
            if self.deadline.is_over() {
                break;
            }
            match self.run(&supposed, &mut ())? {
                Some(ArrayComparison::Measured(found)) if found.errors.rel_l2 < before => {
                    tried.push(ChangeTrial { supposed, errors: found.errors });
                }
                _ => {}
            }
        }
        Ok(tried)
    }

    /// Returns the changes whose error is close to the best one.
    pub(super) fn fitting(&self, tried: &[ChangeTrial]) -> Result<Vec<Changes>> {
        let mut fits: Vec<&ChangeTrial> = Vec::new();
        for one in tried {
            if self.is_near(&one.errors) || (self.row.floor.is_none() && self.explains(&one.supposed)?) {
                fits.push(one);
            }
        }
        let best = fits.iter().map(|one| one.errors.rel_l2).fold(f64::INFINITY, f64::min);
        let floor = self.floor().map_or(0.0, |floor| floor.rel_l2) / NoiseFloor::FAR;
        fits.retain(|one| one.errors.rel_l2 <= AS_WELL * best.max(floor));
        let mut changes: Vec<Changes> = Vec::new();
        for one in fits {
            let mut made: Changes =
                one.supposed.iter().flat_map(|supposed| supposed.change.clone()).collect();
            in_order(&mut made);
            if !changes.contains(&made) {
                changes.push(made);
            }
        }
        Ok(changes)
    }

    fn floor(&self) -> Option<NoiseFloor> {
        self.row.floor.or(self.row.accumulated_floor)
    }

    fn is_near(&self, errors: &Errors) -> bool {
        self.floor().is_some_and(|floor| floor.is_near(errors))
    }

    /// Returns true if rounding explains the row under these changes. Evaluates the row's operation if
    /// possible.
    fn explains(&self, supposed: &[Supposition]) -> Result<bool> {
        let comparison = self.context.comparing_of(&self.selection, self.go_on);
        let comparison = comparison.evaluating(self.context.may_differ);
        let passes = self.passes();
        let checks = self.context.rerun(&self.part, passes, supposed, comparison, &mut ())?;
        let check = checks.into_iter().find(|check| check.site == self.row.site);
        let Some(SiteCheck { found, explained, .. }) = check else { return Ok(false) };
        if explained.is_some_and(|explained| explained.side(self.context.role).is_explained()) {
            return Ok(true);
        }
        Ok(matches!(found, Some(ArrayComparison::Measured(found)) if self.is_near(&found.errors)))
    }

    /// Returns true if a run is short enough to try pairs of changes at different taps.
    fn is_short(&self) -> bool {
        let weights: usize = self.context.model.matrices().iter().map(|(_, w)| w.rows * w.cols).sum();
        let passes = self.context.held.passes().iter().take(self.passes());
        weights * passes.map(|pass| pass.tokens.len()).sum::<usize>() < MOST_PRODUCTS
    }

    /// Tries pairs of changes. The second change applies at a tap of the first change; in a short run, at any tap.
    fn pairs(&self, singles: &[ChangeTrial], changes: &[OperationChange]) -> Result<Vec<ChangeTrial>> {
        let mut nearest: Vec<&ChangeTrial> =
            singles.iter().filter(|one| one.supposed[0].change[0].point.is_none()).collect();
        nearest.sort_by(|a, b| a.errors.rel_l2.total_cmp(&b.errors.rel_l2));
        let mut pairs = Vec::new();
        let is_exhaustive = self.deadline.is_exhaustive();
        for one in nearest.into_iter().take(if is_exhaustive { MOST_COMBINED } else { COMBINED }) {
            let (first, is_short) = (&one.supposed[0].change[0], self.is_short() || is_exhaustive);
            let meets = |other: &&OperationChange| {
                let is_of_another_kind = other.entry.kind != first.entry.kind;
                let at_the_same_tap = || other.entry.at.iter().any(|at| first.entry.at.contains(at));
                is_of_another_kind && (is_short || at_the_same_tap())
            };
            let both = |other: &OperationChange| vec![one.supposed[0].clone(), self.one(other, None)];
            let tried = self.tried(changes.iter().filter(meets).map(both))?;
            pairs.extend(tried.into_iter().filter(|tried| tried.errors.rel_l2 < one.errors.rel_l2 / 3.0));
        }
        Ok(pairs)
    }
}

/// Returns the taps that record the same values. In the pass of the prompt, engines may record only the last row of
/// logits.
fn same_values(point: &Point) -> &[Point] {
    match point {
        Point::Logits | Point::LastLogits => &[Point::Logits, Point::LastLogits],
        _ => std::slice::from_ref(point),
    }
}

/// Returns the unit's part up to and including the row's layer.
fn up_to(row: &SiteResult, unit: &Unit) -> RerunPart {
    let Some(layer) = row.site.layer else { return RerunPart::All };
    let (embed, first) = unit.part().map_or((true, 0), |part| (part.embed, part.layers.start));
    RerunPart::Part(ModelSegment { embed, layers: first..layer + 1, head: false })
}

/// A tap that collects the changes that apply at the sites of a run.
struct ApplicableChanges<'c, 's> {
    rerun: &'c Rerun<'s>,
    found: FoundChanges,
}

/// Changes that apply at some site of a run.
#[derive(Default)]
struct FoundChanges {
    /// Changes with usual values, or values read from the dump.
    usual: Vec<OperationChange>,
    /// Changes with less usual values.
    sweep: Vec<OperationChange>,
    /// Parameters of changes that can be computed from inputs and outputs.
    parameters: Vec<Parameter>,
}

impl FoundChanges {
    fn limited_to(&self, passes: Option<PassRestriction>) -> Self {
        let limited = |changes: &[OperationChange]| {
            changes.iter().map(|change| change.clone().limited_to(passes)).collect()
        };
        let parameters = self.parameters.iter().map(|parameter| Parameter { passes, ..*parameter });
        Self { usual: limited(&self.usual), sweep: limited(&self.sweep), parameters: parameters.collect() }
    }
}

impl ApplicableChanges<'_, '_> {
    /// Adds a parameter whose value a change can set, with the model's own value. For a change of a single weight, adds
    /// one parameter per tap.
    fn add_parameter(&mut self, change: &OperationChange, at: &SiteContext) {
        let entry = change.entry;
        let point = (entry.is_local || entry.at.len() == 1).then_some(at.site.point);
        let is_known = |known: &Parameter| known.entry == entry && known.point == point;
        let is_new = entry.kind.is_parameter() && change.value.number().is_some();
        if is_new && !self.found.parameters.iter().any(is_known) {
            let own = change.own(at).number().filter(|own| *own > 0.0).unwrap_or(1.0);
            self.found.parameters.push(Parameter { entry, point, passes: None, own });
        }
    }
}

impl Tap for ApplicableChanges<'_, '_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        // The first pass after the prompt adds positions and caches. Later passes add nothing except the end
        // of a sliding window.
        if site.pass > Some(1) && site.pass != self.rerun.row.site.pass {
            return value;
        }
        let positions = self.rerun.context.held.positions(site);
        let at = SiteContext::new(site, positions, &value, self.rerun.traced, self.rerun.operations)
            .reading(self.rerun.search.tokens);
        if site == self.rerun.row.site {
            self.found.usual.extend(self.rerun.read(&at));
        }
        // A corrupt weight element can be read from values, but not guessed.
        for change in OperationChange::applicable(&at) {
            self.add_parameter(&change, &at);
            if change.entry.kind != CauseKind::WeightCorruption && !self.found.usual.contains(&change) {
                self.found.usual.push(change);
            }
        }
        if site.pass == self.rerun.row.site.pass {
            for change in OperationChange::sweep(&at) {
                if !self.found.sweep.contains(&change) {
                    self.found.sweep.push(change);
                }
            }
        }
        value
    }
}
