//! Inputs and settings that all runs of a model along one dump share: the dump, the numerics, the rounding of both sides.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::rc::Rc;

use crate::align::{AlignedDump, Selection, VisibleKeys};
use crate::catalogue::{ChangeTap, Supposition};
use crate::change::ModelOperations;
use crate::check::continuation_values::{ContinuationValues, InputPrecision};
use crate::check::engine_properties::EngineProperties;
use crate::check::live_comparison::LiveComparison;
use crate::check::rules::{EngineRounding, Gate, Role, Rules};
use crate::check::site_check::SiteCheck;
use crate::checkpoint::{Point, Site, ValueKind};
use crate::dump::Manifest;
use crate::engine::{self, ModelSegment, PassInput, RunInput, SegmentPass, Transcript};
use crate::error::{Error, Result};
use crate::exact::{self, Float, Profile};
use crate::measure::coarser;
use crate::model::Model;
use crate::numerics::Numerics;
use crate::plan::{Unit, input_of, unread};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::weight::DType;

/// A run of the model along a dump: its inputs and settings.
pub(crate) struct RunContext<'r> {
    pub(crate) model: &'r dyn Model,
    pub(crate) numerics: &'r dyn Numerics,
    pub(crate) held: &'r AlignedDump<'r>,
    pub(crate) selection: &'r Selection,
    pub(crate) role: Role,
    /// True if the dump states its arithmetic for its weights.
    pub(crate) is_stated: bool,
    /// Rounding profile of the dump's engine.
    pub(crate) profile: Profile,
    /// True if other rounding may be tried, because the engine's rounding is not stated.
    pub(crate) may_differ: bool,
    gate: Gate,
    engine: EngineProperties,
    /// Changes from `--suppose` that our engine applies.
    suppositions: &'r [Supposition],
    /// The part of the model to run.
    pub(crate) unit: Unit,
    /// Settings of the model's operations, computed once and shared.
    pub(crate) operations: Rc<OnceCell<ModelOperations>>,
    /// Number of operations computed with a change from `--suppose`.
    made: Cell<usize>,
}

/// Returns our numerics' rounding profile with the deviations that the dump states.
fn profile_of(numerics: &dyn Numerics, held: &AlignedDump) -> Result<Profile> {
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

/// Tells whether the dump's manifest states a property: `Yes` or not (`No`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestStatement {
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
    pub(crate) fn has_other_cache(&self) -> bool {
        let producer = &self.held.dump.manifest.producer;
        producer.has_eight_bit_cache() && producer.cache_type() != Some(self.numerics.cache_type())
    }

    pub(crate) fn new(
        model: &'r dyn Model,
        numerics: &'r dyn Numerics,
        held: &'r AlignedDump<'r>,
        rules: Rules<'r>,
    ) -> Result<Self> {
        let Rules { selection, role, is_stated, gate, suppositions, .. } = rules;
        let dimensions = model.dimensions();
        if dimensions.has_latents() {
            held.fix_pairing(dimensions.rope_pairing)?;
        }
        let profile = match rules.rounding {
            EngineRounding::Stated => profile_of(numerics, held)?,
            EngineRounding::Shown(profile) | EngineRounding::Demanded(profile) => {
                profile.following(numerics.cache_type())
            }
        };
        let may_differ = !matches!(rules.rounding, EngineRounding::Demanded(_));
        let engine = EngineProperties {
            pairing: dimensions.rope_pairing,
            expert_groups: dimensions.expert_groups,
            has_chunks: model.has_chunks(),
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
            operations: Rc::default(),
            made: Cell::new(0),
        })
    }

    /// Returns whether the dump states that attention is computed in its cache type. `None` if the engine cannot
    /// compute attention in that type.
    pub(crate) fn short_attention(&self) -> Option<ManifestStatement> {
        let [results, cache] = [self.engine.computed, self.engine.cache];
        let ours = Profile::of(self.numerics).queries;
        let is_stated = self.profile.queries != ours;
        let may_be = results == DType::F32 && cache != results && ours == Float::F32;
        let may_be = may_be && (is_stated || self.may_differ);
        may_be.then_some(if is_stated { ManifestStatement::Yes } else { ManifestStatement::No })
    }

    /// Returns the type to which the engine rounds the values of a tap.
    pub(crate) fn computed_at(&self, point: Point) -> DType {
        self.engine.computed_at(point)
    }

    /// Returns the visible entries of a value. Noise floor and error use the same entries.
    pub(crate) fn visible(&self, site: Site) -> VisibleKeys {
        self.engine.visible(self.held, site, 0)
    }

    /// Returns the passes to run: the dump's passes, then passes without taps for tokens generated after the
    /// last recorded pass.
    pub(crate) fn script(&self) -> RunInput {
        script_of(&self.held.dump.manifest)
    }

    /// Runs the model once and compares every value after `onlooker` has seen it.
    pub(crate) fn run(
        &self,
        numerics: &dyn Numerics,
        script: &RunInput,
        go_on: ContinuationValues,
        onlooker: &mut dyn Tap,
    ) -> Result<(Vec<SiteCheck>, Transcript)> {
        self.run_comparing(numerics, script, self.comparing(go_on), onlooker)
    }

    /// Runs the model with a given comparison.
    pub(crate) fn run_comparing(
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
        let changing = ChangeTap::new(&traced, self.operations()?, self.suppositions);
        self.run_with(&traced, script, comparison, Some(changing), onlooker)
    }

    /// Returns the same context for a dump that is read differently.
    pub(crate) fn along<'x>(&'x self, held: &'x AlignedDump<'x>) -> RunContext<'x> {
        RunContext { held, ..self.again(self.unit.clone()) }
    }

    /// Returns a context with the same settings for another unit of the plan.
    pub(crate) fn of_unit(&self, unit: &Unit) -> RunContext<'r> {
        self.again(unit.clone())
    }

    fn again(&self, unit: Unit) -> RunContext<'r> {
        let (engine, operations) = (self.engine.clone(), self.operations.clone());
        RunContext { unit, engine, operations, made: Cell::new(0), ..*self }
    }

    /// Returns true if the dump stores a site in a smaller type than its engine computes in. Later operations
    /// then do not show whether the engine continued with the rounded values.
    pub(crate) fn may_hide_rounding(&self, site: Site) -> bool {
        let is_shorter = |dtype| coarser(dtype, self.engine.computed_at(site.point)).is_some();
        let is_real = site.point.kind() == ValueKind::Real;
        is_real && self.held.stored(site).is_some_and(is_shorter) && !self.held.goes_on_with(site)
    }

    /// Returns true if changes from `--suppose` are applied.
    pub(crate) fn is_supposed(&self) -> bool {
        !self.suppositions.is_empty()
    }

    /// Returns the number of operations computed with a change from `--suppose`.
    pub(crate) fn made(&self) -> usize {
        self.made.get()
    }

    /// Checks that the changes from `--suppose` had an effect. `made` is the number of changed operations.
    ///
    /// # Errors
    /// If no operation was changed.
    pub(crate) fn check_suppositions(&self, made: usize) -> Result<()> {
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
    pub(crate) fn operations(&self) -> Result<&ModelOperations> {
        if let Some(operations) = self.operations.get() {
            return Ok(operations);
        }
        let operations = ModelOperations::of(self.model, self.numerics)?;
        Ok(self.operations.get_or_init(|| operations))
    }

    /// Runs once, each operation from the dump's values. Unless a tolerance decides, also computes the bounds of the
    /// operations' rounding errors.
    pub(crate) fn evaluate(
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
            suppositions => Some(ChangeTap::new(&traced, self.operations()?, suppositions)),
        };
        self.run_with(&traced, script, self.comparing(go_on).evaluating(self.may_differ), changing, onlooker)
    }

    /// Runs a part of the model again with changes, over the first `passes` passes of the dump, and compares.
    ///
    /// # Errors
    /// The errors of a run; and if the dump does not record the input of the part.
    pub(crate) fn rerun(
        &self,
        part: &RerunPart,
        passes: usize,
        suppositions: &[Supposition],
        comparison: LiveComparison,
        onlooker: &mut dyn Tap,
    ) -> Result<Vec<SiteCheck>> {
        let all = [self.suppositions, suppositions].concat();
        let traced = TracedNumerics::new(self.numerics, self.profile);
        let changing = Some(ChangeTap::new(&traced, self.operations()?, &all));
        let mut script = self.script();
        script.passes.truncate(passes);
        let part = match part {
            RerunPart::All => return Ok(self.run_with(&traced, &script, comparison, changing, onlooker)?.0),
            RerunPart::Part(part) if !part.layers.is_empty() && !self.model.runs_in_parts() => {
                return Ok(self.run_with(&traced, &script, comparison, changing, onlooker)?.0);
            }
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
        let precision = InputPrecision::of(self.held, site, self.engine.computed);
        let tensor = precision.about(tensor, &view);
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
    pub(crate) fn comparing(&self, go_on: ContinuationValues) -> LiveComparison<'_> {
        self.comparing_of(self.selection, go_on)
    }

    /// Makes a comparison of only the selected values.
    pub(crate) fn comparing_of<'c>(
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
        let tokens = self.held.read_tokens();
        let changing = changing.map(|changing| changing.along(positions, tokens));
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
pub(crate) enum RerunPart {
    /// A part of the model that starts from its recorded input.
    Part(ModelSegment),
    /// The whole unit. The whole model starts from the tokens.
    All,
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
