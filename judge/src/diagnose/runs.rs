//! The runs of a mode: from the tokens on, restarted at every recorded value, or restarted at every layer.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use crate::change::{ChangeTap, ModelOperations, Supposition};
use crate::checkpoint::{Point, Site, ValueKind};
use crate::compare::{
    ComparedDump, ContinuationValues, DraftToken, EngineProperties, Gate, InputPrecision, LiveComparison,
    Preference, Role, Selection, SiteCheck, UnexplainedOperation, VisibleKeys,
};
use crate::diagnose::experts::Preferences;
use crate::diagnose::layers::LayerInputs;
use crate::diagnose::rules::{EngineRounding, Mode, Rules};
use crate::dump::Manifest;
use crate::engine::{self, GreedyToken, ModelSegment, PassInput, RunInput, SegmentPass, Transcript};
use crate::error::{Error, Result};
use crate::exact::{self, Float, Profile, TracedNumerics};
use crate::measure::coarser;
use crate::model::Model;
use crate::numerics::Numerics;
use crate::plan::{Unit, input_of, unread};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::weight::DType;

/// A run of the model along a dump: its inputs and settings.
pub(super) struct RunContext<'r> {
    pub(super) model: &'r dyn Model,
    pub(super) numerics: &'r dyn Numerics,
    pub(super) held: &'r ComparedDump<'r>,
    pub(super) selection: &'r Selection,
    pub(super) role: Role,
    /// True if the dump states its arithmetic for its weights.
    pub(super) is_stated: bool,
    /// Rounding profile of the dump's engine.
    pub(super) profile: Profile,
    /// True if other rounding may be tried, because the engine's rounding is not stated.
    pub(super) may_differ: bool,
    gate: Gate,
    engine: EngineProperties,
    /// Changes from `--suppose` that our engine applies.
    suppositions: &'r [Supposition],
    /// The part of the model to run.
    pub(super) unit: Unit,
    /// Settings of the model's operations, computed once and shared.
    pub(super) book: Rc<OnceCell<ModelOperations>>,
    /// Number of operations computed with a change from `--suppose`.
    made: Cell<usize>,
}

/// Returns our numerics' rounding profile with the deviations that the dump states.
fn profile_of(numerics: &dyn Numerics, held: &ComparedDump) -> Result<Profile> {
    let known = Profile::of(numerics);
    let producer = &held.dump.manifest.producer;
    if let (None, true, Some(tf32)) = (&producer.rounding, producer.is_tf32(), Profile::named("tf32")) {
        return Ok(tf32.following(numerics.cache_type()));
    }
    let Some(fields) = &held.dump.manifest.producer.rounding else { return Ok(known) };
    let stated = known
        .stated(fields)
        .map_err(|problem| Error::dump(&held.dump.path, format!("producer.rounding: {problem}")))?;
    // A profile given with "like" uses this run's cache type, unless the dump states the type of queries or
    // attention.
    let says_otherwise = ["queries", "attention"].iter().any(|field| fields.contains_key(*field));
    let is_like = fields.contains_key("like") && !says_otherwise;
    Ok(if is_like { stated.following(numerics.cache_type()) } else { stated })
}

/// Tells whether a manifest makes a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManifestStatement {
    Yes,
    No,
}

/// Shows each value to an observer before it is compared. The observer may change values, for example to
/// inject a fault.
struct ObservedComparison<'w, 'd> {
    changing: Option<ChangeTap<'w>>,
    onlooker: &'w mut dyn Tap,
    comparison: &'w mut LiveComparison<'d>,
    numerics: &'w dyn Numerics,
    /// True if a value's recorded inputs are dropped after the value was shown.
    forgets: bool,
}

impl Tap for ObservedComparison<'_, '_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let value = self.shown(site, value);
        if site.point == Point::Logits {
            self.show_named(site, &value);
        }
        value
    }
}

impl ObservedComparison<'_, '_> {
    /// Shows the observer our log-probabilities of the ids that the dump lists.
    fn show_named(&mut self, site: Site, logits: &Tensor) {
        let Some(named) = self.comparison.named(site, logits) else { return };
        if let Some(own) = self.comparison.own_ids(site.pass) {
            self.shown(Site { point: Point::TopIds, ..site }, own);
        }
        for (site, picks) in named.picks {
            let value = self.numerics.log_probabilities(logits, &picks, named.temperature);
            self.shown(site, value);
        }
    }

    fn shown(&mut self, site: Site, value: Tensor) -> Tensor {
        let value = match &mut self.changing {
            Some(changing) => changing.tap(site, value),
            None => value,
        };
        let origins = value.origins().to_vec();
        let value = self.onlooker.tap(site, value).with_origins(origins);
        let value = self.comparison.tap(site, value);
        if self.forgets { value.with_origins(Vec::new()) } else { value }
    }
}

impl<'r> RunContext<'r> {
    /// Returns true if the dump's engine has an 8-bit cache of another type than our numerics' cache.
    pub(super) fn has_other_cache(&self) -> bool {
        let producer = &self.held.dump.manifest.producer;
        producer.has_eight_bit_cache() && producer.cache_type() != Some(self.numerics.cache_type())
    }

    pub(super) fn new(
        model: &'r dyn Model,
        numerics: &'r dyn Numerics,
        held: &'r ComparedDump<'r>,
        rules: Rules<'r>,
    ) -> Result<Self> {
        let Rules { selection, role, is_stated, gate, suppositions, .. } = rules;
        let dimensions = model.dimensions();
        let profile = match rules.rounding {
            EngineRounding::Stated => profile_of(numerics, held)?,
            EngineRounding::Shown(profile) | EngineRounding::Demanded(profile) => {
                profile.following(numerics.cache_type())
            }
        };
        let may_differ = !matches!(rules.rounding, EngineRounding::Demanded(_));
        let engine = EngineProperties {
            pairing: dimensions.rope_pairing,
            windows: (0..dimensions.n_layers).map(|layer| model.window(layer)).collect(),
            computed: numerics.activation_type(),
            products: profile.products().unwrap_or(numerics.activation_type()),
            cache: numerics.cache_type(),
        };
        Ok(Self {
            model,
            numerics,
            held,
            selection,
            role,
            is_stated,
            profile,
            may_differ,
            gate,
            engine,
            suppositions,
            unit: Unit::Whole,
            book: Rc::default(),
            made: Cell::new(0),
        })
    }

    /// Returns whether the dump states that attention is computed in its cache type. `None` if the engine cannot
    /// compute attention in that type.
    pub(super) fn short_attention(&self) -> Option<ManifestStatement> {
        let [results, cache] = [self.engine.computed, self.engine.cache];
        let ours = Profile::of(self.numerics).queries;
        let is_stated = self.profile.queries != ours;
        let may_be = results == DType::F32 && cache != results && ours == Float::F32;
        let may_be = may_be && (is_stated || self.may_differ);
        may_be.then_some(if is_stated { ManifestStatement::Yes } else { ManifestStatement::No })
    }

    /// Returns the visible entries of a value. Noise floor and error use the same entries.
    pub(super) fn sight(&self, site: Site) -> VisibleKeys {
        self.engine.sight(self.held, site, 0)
    }

    /// Returns the passes to run: the dump's passes, then passes without taps for tokens generated after the
    /// last recorded pass.
    pub(super) fn script(&self) -> RunInput {
        script_of(&self.held.dump.manifest)
    }

    /// Runs the model once and compares every value after `onlooker` has seen it.
    pub(super) fn run(
        &self,
        numerics: &dyn Numerics,
        script: &RunInput,
        go_on: ContinuationValues,
        onlooker: &mut dyn Tap,
    ) -> Result<(Vec<SiteCheck>, Transcript)> {
        self.run_comparing(numerics, script, self.comparing(go_on), onlooker)
    }

    /// Runs the model with a given comparison.
    pub(super) fn run_comparing(
        &self,
        numerics: &dyn Numerics,
        script: &RunInput,
        comparison: LiveComparison,
        onlooker: &mut dyn Tap,
    ) -> Result<(Vec<SiteCheck>, Transcript)> {
        if self.suppositions.is_empty() {
            return self.run_with(numerics, script, comparison, None, onlooker);
        }
        let traced = TracedNumerics::new(numerics, self.profile);
        let changing = ChangeTap::new(&traced, self.book()?, self.suppositions);
        self.run_with(&traced, script, comparison, Some(changing), onlooker)
    }

    /// Returns the same context for a dump that is read differently.
    pub(super) fn along<'x>(&'x self, held: &'x ComparedDump<'x>) -> RunContext<'x> {
        RunContext { held, ..self.again(self.unit.clone()) }
    }

    /// Returns the same context for another unit.
    pub(super) fn of_unit(&self, unit: &Unit) -> RunContext<'r> {
        self.again(unit.clone())
    }

    fn again(&self, unit: Unit) -> RunContext<'r> {
        let (engine, book) = (self.engine.clone(), self.book.clone());
        RunContext { unit, engine, book, made: Cell::new(0), ..*self }
    }

    /// Returns true if the dump stores a site in a smaller type than its engine computes in. Later operations
    /// then do not show whether the engine continued with the rounded values.
    pub(super) fn may_hide_rounding(&self, site: Site) -> bool {
        let is_shorter = |dtype| coarser(dtype, self.engine.computed_at(site.point)).is_some();
        let is_real = site.point.kind() == ValueKind::Real;
        is_real && self.held.stored(site).is_some_and(is_shorter) && !self.held.goes_on_with(site)
    }

    /// Returns true if changes from `--suppose` are applied.
    pub(super) fn is_supposed(&self) -> bool {
        !self.suppositions.is_empty()
    }

    /// Returns the number of operations computed with a change from `--suppose`.
    pub(super) fn made(&self) -> usize {
        self.made.get()
    }

    /// Checks that the changes from `--suppose` had an effect. `made` is the number of changed operations.
    ///
    /// # Errors
    /// If no operation was changed.
    pub(super) fn check_suppositions(&self, made: usize) -> Result<()> {
        if self.suppositions.is_empty() || made > 0 {
            return Ok(());
        }
        let supposed: Vec<_> =
            self.suppositions.iter().map(|supposed| supposed.change[0].to_string()).collect();
        Err(Error::Usage(format!(
            "--suppose {}: no effect: the model already computes this way, or has no such operation",
            supposed.join(" --suppose ")
        )))
    }

    /// Returns the settings of the model's operations.
    pub(super) fn book(&self) -> Result<&ModelOperations> {
        if let Some(book) = self.book.get() {
            return Ok(book);
        }
        let book = ModelOperations::of(self.model, self.numerics)?;
        Ok(self.book.get_or_init(|| book))
    }

    /// Runs once from the dump's values. Evaluates the rounding of an operation if the verdict depends on it.
    pub(super) fn evaluate(
        &self,
        script: &RunInput,
        go_on: ContinuationValues,
        onlooker: &mut dyn Tap,
    ) -> Result<(Vec<SiteCheck>, Transcript)> {
        if self.gate == Gate::Tolerance {
            return self.run(self.numerics, script, go_on, onlooker);
        }
        let traced = TracedNumerics::new(self.numerics, self.profile);
        let changing = match self.suppositions {
            [] => None,
            suppositions => Some(ChangeTap::new(&traced, self.book()?, suppositions)),
        };
        self.run_with(&traced, script, self.comparing(go_on).evaluating(self.may_differ), changing, onlooker)
    }

    /// Runs a part of the model again with changes, over the first `passes` passes of the dump, and compares.
    ///
    /// # Errors
    /// The errors of a run; and if the dump does not record the input of the part.
    pub(super) fn rerun(
        &self,
        part: &RerunPart,
        passes: usize,
        suppositions: &[Supposition],
        comparison: LiveComparison,
        onlooker: &mut dyn Tap,
    ) -> Result<Vec<SiteCheck>> {
        let all = [self.suppositions, suppositions].concat();
        let traced = TracedNumerics::new(self.numerics, self.profile);
        let changing = Some(ChangeTap::new(&traced, self.book()?, &all));
        let mut script = self.script();
        script.passes.truncate(passes);
        let part = match part {
            RerunPart::All => return Ok(self.run_with(&traced, &script, comparison, changing, onlooker)?.0),
            RerunPart::Part(part) => part,
        };
        // Without layers there is no cache, so earlier passes do not matter.
        let first = if part.layers.is_empty() { passes.saturating_sub(1) } else { 0 };
        Ok(self.run_part((part, false), &traced, first..passes, comparison, changing, onlooker)?.0)
    }

    /// Returns the input of a part of the model in a pass, from the dump; `None` if it is not recorded.
    fn start(&self, part: &ModelSegment, pass: usize, is_evaluating: bool) -> Result<Option<Tensor>> {
        let site = input_of(part.layers.start, pass);
        let Some(view) = self.held.values(site, self.engine.pairing)? else { return Ok(None) };
        let tensor = Tensor::from(&view);
        if !is_evaluating {
            return Ok(Some(tensor));
        }
        let stands = InputPrecision::of(self.held, site, self.engine.computed);
        let tensor = stands.about(tensor, &view);
        if part.layers.start == 0 || !tensor.origins().is_empty() {
            return Ok(Some(tensor));
        }
        let sum = self.sum_before(part.layers.start - 1, pass, &tensor)?;
        Ok(Some(match sum {
            Some(sum) => exact::in_place_of(&sum, tensor),
            None => exact::of_a_kernel(tensor, true, &self.profile),
        }))
    }

    /// Returns the sum that makes a layer's output, if the dump records both summands as its engine used
    /// them. The sum is traced as in a run that continues with the summands.
    fn sum_before(&self, layer: usize, pass: usize, output: &Tensor) -> Result<Option<Tensor>> {
        // An f32 residual stream needs no summands, because storing a sum in f32 does not round it again.
        if self.profile.stream() == Float::F32 {
            return Ok(None);
        }
        let held = |point| -> Result<Option<Tensor>> {
            let site = Site { point, layer: Some(layer), pass: Some(pass) };
            let is_given = InputPrecision::of(self.held, site, self.engine.computed) == InputPrecision::Given;
            if !is_given || !self.held.holds(site) || !self.held.dump.starts_at(site) {
                return Ok(None);
            }
            let values = self.held.values(site, self.engine.pairing)?;
            Ok(values.map(|view| Tensor::from(&view)).filter(|tensor| tensor.shape() == output.shape()))
        };
        let normed = held(Point::FfnPostNorm)?;
        let is_normed = normed.is_some();
        let added = if is_normed { normed } else { held(Point::FfnOut)? };
        let Some((residual, added)) = held(Point::AttnResidual)?.zip(added) else { return Ok(None) };
        let residual = exact::of_a_kernel(residual, true, &self.profile);
        let added = if is_normed { exact::of_a_kernel(added, false, &self.profile) } else { added };
        let sum = TracedNumerics::new(self.numerics, self.profile).add(&residual, &added);
        // In an architecture that normalizes summands, the recorded values belong to another sum.
        let alike = sum.data().iter().zip(output.data()).filter(|(sum, output)| sum == output).count();
        Ok((2 * alike > output.data().len()).then_some(sum))
    }

    /// Makes the comparison for a run that continues with these values.
    pub(super) fn comparing(&self, go_on: ContinuationValues) -> LiveComparison<'_> {
        self.comparing_of(self.selection, go_on)
    }

    /// Makes a comparison of only the selected values.
    pub(super) fn comparing_of<'c>(
        &'c self,
        selection: &'c Selection,
        go_on: ContinuationValues,
    ) -> LiveComparison<'c> {
        LiveComparison::new(self.held, self.role, selection, &self.engine, go_on)
    }

    /// Runs the unit with the given passes.
    fn run_with(
        &self,
        numerics: &dyn Numerics,
        script: &RunInput,
        mut comparison: LiveComparison,
        changing: Option<ChangeTap>,
        onlooker: &mut dyn Tap,
    ) -> Result<(Vec<SiteCheck>, Transcript)> {
        if let Some(part) = self.unit.part() {
            let passes = script.passes.len().min(self.held.passes().len());
            let ends = matches!(self.unit, Unit::Part { ends: true, .. });
            return self.run_part((&part, ends), numerics, 0..passes, comparison, changing, onlooker);
        }
        let forgets = !comparison.is_evaluating();
        let mut watched =
            ObservedComparison { changing, onlooker, comparison: &mut comparison, numerics, forgets };
        let transcript = engine::run(self.model, numerics, script, &mut watched)?;
        self.made.set(self.made.get() + watched.changing.map_or(0, |changing| changing.made.get()));
        Ok((comparison.finish()?, transcript))
    }

    /// Runs a part of the model along passes of the dump. If `ends` is true, the transcript keeps only the choices from
    /// the end of the prompt on.
    fn run_part(
        &self,
        (part, ends): (&ModelSegment, bool),
        numerics: &dyn Numerics,
        passes: Range<usize>,
        mut comparison: LiveComparison,
        changing: Option<ChangeTap>,
        onlooker: &mut dyn Tap,
    ) -> Result<(Vec<SiteCheck>, Transcript)> {
        let is_evaluating = comparison.is_evaluating();
        let all = self.held.passes();
        let reading = |pass: usize| SegmentPass {
            pass,
            positions: all[pass].position..all[pass].end(),
            tokens: &all[pass].tokens,
            temperature: all[pass].temperature.unwrap_or(1.0),
        };
        let read: Vec<SegmentPass> = passes.map(reading).collect();
        let positions = all.iter().map(|pass| pass.position..pass.end()).collect();
        let changing = changing.map(|changing| changing.along(positions));
        let comparing = &mut comparison;
        let mut watched = ObservedComparison {
            changing,
            onlooker,
            comparison: comparing,
            numerics,
            forgets: !is_evaluating,
        };
        let mut start = |pass: usize| self.start(part, pass, is_evaluating);
        let mut transcript = engine::run_part(self.model, numerics, part, &read, &mut start, &mut watched)?;
        if ends {
            let prompt = self.held.dump.manifest.input.tokens.len();
            let before = all.iter().take_while(|pass| pass.end() < prompt).count();
            transcript.choices.drain(..before.min(transcript.choices.len()));
            engine::tap_generated(&transcript.choices, &mut watched);
        }
        self.made.set(self.made.get() + watched.changing.map_or(0, |changing| changing.made.get()));
        Ok((comparison.finish()?, transcript))
    }
}

/// The part of the model to run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RerunPart {
    /// A part of the model that starts from its recorded input.
    Part(ModelSegment),
    /// The whole unit. The whole model starts from the tokens.
    All,
}

/// The results of a mode's runs by site, and the sites visited in data-flow order.
#[derive(Default)]
pub(super) struct RunResults {
    pub(super) visited: Vec<Site>,
    /// Records of the run from the tokens on.
    pub(super) accumulated: HashMap<Site, SiteCheck>,
    /// Records of the run that continues with recorded values.
    pub(super) local: HashMap<Site, SiteCheck>,
    /// Operations of the dump's engine that rounding does not explain, in data-flow order.
    pub(super) unexplained: Vec<UnexplainedOperation>,
    /// Tokens that the run from the tokens on chose, from the end of the prompt.
    pub(super) choices: Vec<GreedyToken>,
    /// Margins by which our logits prefer our choice to the dump's, by pass.
    pub(super) margins: HashMap<usize, f64>,
    /// Tokens read within a pass for which our logits prefer another token.
    pub(super) read_on: Vec<DraftToken>,
    /// Margins by which our logits prefer top tokens that the dump does not list, for both runs.
    pub(super) rank_margins: RankMargins,
    /// The preference of our router for its choice of experts, by site.
    pub(super) preferences: Preferences,
}

/// Margins by which our engine prefers top tokens that the dump does not list to those that it lists, by
/// pass.
#[derive(Default)]
pub(super) struct RankMargins {
    pub(super) accumulated: HashMap<usize, f64>,
    pub(super) local: HashMap<usize, f64>,
}

/// Returns the values with which the second run of a mode continues.
pub(super) fn continues(mode: Mode) -> ContinuationValues {
    if mode == Mode::Layers { ContinuationValues::HeldBetweenLayers } else { ContinuationValues::Held }
}

impl RunResults {
    pub(super) fn of(setting: &RunContext, mode: Mode, onlooker: &mut dyn Tap) -> Result<Self> {
        let script = setting.script();
        let mut runs = Self::default();
        if matches!(mode, Mode::Both | Mode::Accumulated) {
            let (checks, transcript) =
                setting.run(setting.numerics, &script, ContinuationValues::Own, &mut *onlooker)?;
            runs.begin(&checks, transcript);
            (runs.rank_margins.accumulated, runs.preferences.accumulated) =
                (rank_margins(&checks), preferences(&checks));
            runs.accumulated = by_site(checks);
        }
        // If the dump records no layer input, there is nothing to run.
        let starts = mode != Mode::Layers || any_layer_can_start(setting);
        if mode != Mode::Accumulated && starts {
            // The passes after the dump's have no recorded values to evaluate.
            let (mut checks, transcript) = match setting.unit {
                Unit::Continuation => {
                    setting.run(setting.numerics, &script, continues(mode), &mut *onlooker)?
                }
                _ => setting.evaluate(&script, continues(mode), &mut *onlooker)?,
            };
            if runs.visited.is_empty() {
                runs.begin(&checks, transcript);
            }
            (runs.rank_margins.local, runs.preferences.local) = (rank_margins(&checks), preferences(&checks));
            runs.unexplained = checks.iter_mut().filter_map(|check| check.unexplained.take()).collect();
            runs.local = by_site(checks);
        }
        Ok(runs)
    }

    /// Stores the visited sites and the choices of the first run.
    fn begin(&mut self, checks: &[SiteCheck], transcript: Transcript) {
        self.visited = checks.iter().map(|check| check.site).collect();
        self.margins = margins(checks, Point::Argmax);
        self.read_on = checks.iter().filter_map(|check| check.draft).collect();
        self.choices = transcript.choices;
    }
}

/// Returns the margins of a run's choices at a tap, by pass.
fn margins(checks: &[SiteCheck], point: Point) -> HashMap<usize, f64> {
    let of_tap = checks.iter().filter(|check| check.site.point == point);
    of_tap.filter_map(|check| Some((check.site.pass?, check.margin?))).collect()
}

/// Returns the margins by which unlisted top tokens exceed listed ones, by pass.
pub(super) fn rank_margins(checks: &[SiteCheck]) -> HashMap<usize, f64> {
    margins(checks, Point::TopIds)
}

/// Returns the preference of the router for its choice of experts, by site.
pub(super) fn preferences(checks: &[SiteCheck]) -> HashMap<Site, Preference> {
    checks.iter().filter_map(|check| Some((check.site, check.preference?))).collect()
}

/// Returns the records by site. A site that is visited again keeps its comparison.
fn by_site(checks: Vec<SiteCheck>) -> HashMap<Site, SiteCheck> {
    let mut found: HashMap<Site, SiteCheck> = HashMap::new();
    for check in checks {
        if check.found.is_some() || !found.contains_key(&check.site) {
            found.insert(check.site, check);
        }
    }
    found
}

fn any_layer_can_start(setting: &RunContext) -> bool {
    let inputs = LayerInputs::new(setting.held.dump, setting.model.dimensions().n_layers);
    let is_selected = |site: &Site| setting.selection.takes(*site, &setting.held.positions(*site));
    let mut selected = setting.held.sites().filter(is_selected);
    selected.any(|site| site.point != Point::Embed && inputs.missing(site).is_none())
}

fn script_of(manifest: &Manifest) -> RunInput {
    let step = |tokens: &[u32], temperature: Option<f32>, tapped| PassInput {
        tokens: Some(tokens.to_vec()),
        temperature: temperature.unwrap_or(1.0),
        tapped,
    };
    let mut passes: Vec<PassInput> =
        manifest.passes.iter().map(|p| step(&p.tokens, p.temperature, true)).collect();
    let prompt_len = manifest.input.tokens.len();
    passes.extend(unread(manifest).iter().map(|&id| step(&[id], None, false)));
    RunInput { passes, prompt_len }
}
