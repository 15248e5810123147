//! Comparison of a model with a dump, shared by `run` and `check`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::SystemTime;

use clap::{Args, ValueEnum};

use crate::change::Supposition;
use crate::cli::mapped_files::MapOptions;
use crate::cli::named_dump::NamedDump;
use crate::cli::numerics::{NumericsOptions, short_caches};
use crate::cli::options::{
    CauseOptions, ModelOptions, OutputOptions, RequestedModelOptions, SelectionOptions, SuppositionOptions,
    ThreadOptions,
};
use crate::cli::output::ReportOutput;
use crate::cli::progress::RunProgress;
use crate::cli::requested_model::{ModelVariant, RequestedModel, record};
use crate::cli::shard_options::ShardOptions;
use crate::cli::stream_options::DumpStreamOptions;
use crate::cli::text_difference::parting;
use crate::cli::token_texts::texts;
use crate::cli::unstated_properties::{
    cache_of_rows, contradiction_of_dtype, dtype_of_values, holds_results_alone,
};
use crate::cli::unstated_quantisation::{
    about_integers, common_products, says_nothing_of_products, with_integers,
};
use crate::compare::{Gate, Role, Selection, SiteResult, Tolerances, Verdict};
use crate::diagnose::{EngineRounding, Mode, Outcome, Rules, cross_check};
use crate::dump::Producer;
use crate::error::{Error, Result};
use crate::exact::{IntegerProducts, Profile};
use crate::model::LoadedModel;
use crate::numerics::Numerics;
use crate::report::{Comparison, ShardedComparison, Timing};

/// Options for the errors to measure.
#[derive(Clone, Debug, Default, Args)]
pub struct ModeOptions {
    /// Measure only local errors: each operation starts from the dump's values
    ///
    /// If the dump lacks the inputs of an operation, the computation starts from the nearest values before
    /// it.
    #[arg(long, alias = "isolate", help_heading = "Judging")]
    introduced: bool,
    /// Measure only accumulated errors, from the tokens on
    #[arg(long, alias = "propagate", conflicts_with = "introduced", help_heading = "Judging")]
    total: bool,
    /// Start each layer from the dump's own input of the layer
    ///
    /// With --layer, only these layers are judged.
    #[arg(
        long,
        visible_alias = "by-layer",
        conflicts_with_all = ["introduced", "total"],
        help_heading = "Judging"
    )]
    from_reference: bool,
    /// Criterion of the verdict: rounding error bounds or tolerances
    #[arg(long, value_enum, value_name = "WHAT", default_value = "rounding", help_heading = "Judging")]
    gate: GateName,
    /// Rounding profile that the dump's engine must follow
    ///
    /// Without it, xcheck searches for a profile that explains the dump's values. The error message for an
    /// unknown name lists the profiles.
    #[arg(long, value_name = "PROFILE", value_parser = profile, help_heading = "Judging")]
    rounding: Option<(String, Profile)>,
    /// Accepted for old command lines: steps after a tie are always judged
    #[arg(long, hide = true)]
    follow_reference: bool,
}

fn profile(name: &str) -> std::result::Result<(String, Profile), String> {
    let known = || Profile::names().collect::<Vec<_>>().join(", ");
    let profile =
        Profile::named(name).ok_or_else(|| format!("unknown profile, expected one of: {}", known()))?;
    Ok((name.to_owned(), profile))
}

/// The criterion for a verdict, as an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum GateName {
    /// Rounding error bounds, computed from each operation's inputs or measured
    #[default]
    Rounding,
    /// Fixed tolerances: those of the specifications, or of --tolerance
    Tolerance,
}

impl GateName {
    /// Returns the criterion of the verdict.
    pub(super) fn gate(self) -> Gate {
        match self {
            GateName::Rounding => Gate::Rounding,
            GateName::Tolerance => Gate::Tolerance,
        }
    }

    /// Returns the arguments that choose this criterion again; empty for the default.
    pub(super) fn words(self) -> impl Iterator<Item = String> {
        let words = (self == GateName::Tolerance).then(|| ["--gate", "tolerance"].map(str::to_owned));
        words.into_iter().flatten()
    }
}

impl ModeOptions {
    /// Returns the requested rounding profile.
    pub fn profile(&self) -> Option<Profile> {
        self.rounding.as_ref().map(|(_, profile)| *profile)
    }

    /// Returns the requested criterion of the verdict.
    pub fn gate(&self) -> Gate {
        self.gate.gate()
    }

    /// Returns which errors to measure.
    pub fn mode(&self) -> Mode {
        match (self.introduced, self.total, self.from_reference) {
            (true, ..) => Mode::Local,
            (_, true, _) => Mode::Accumulated,
            (.., true) => Mode::Layers,
            _ => Mode::Both,
        }
    }

    /// Returns the selection. Taps outside the layers do not depend on a layer that is run alone; they are
    /// selected with all layers, or by name.
    pub fn selection(&self, select: &SelectionOptions) -> Selection {
        let selection = select.selection();
        let layers_alone = self.from_reference && selection.layers.is_some() && !selection.explicit;
        if layers_alone { selection.inside_layers() } else { selection }
    }

    /// Returns the arguments that choose the same mode again.
    pub(super) fn words(&self) -> Vec<String> {
        let flags = self.from_reference.then(|| "--from-reference".to_owned()).into_iter();
        let rounding = self.rounding.iter().flat_map(|(name, _)| ["--rounding".to_owned(), name.clone()]);
        flags.chain(self.gate.words()).chain(rounding).collect()
    }
}

/// The formats of a model, loaded on first use.
pub struct LoadedModels<'a> {
    options: &'a ModelOptions,
    loaded: HashMap<String, LoadedModel>,
}

impl<'a> LoadedModels<'a> {
    pub fn new(options: &'a ModelOptions) -> Self {
        Self { options, loaded: HashMap::new() }
    }

    pub fn load(&mut self, variant: &ModelVariant) -> Result<&LoadedModel> {
        Ok(match self.loaded.entry(variant.name.clone()) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(place) => place.insert(self.options.load(variant)?),
        })
    }
}

/// Note for a model whose weights are remote.
const NO_CAUSES: &str = "causes were not searched: the search needs the whole model, but its weights are \
    remote; download the model and run again";

/// Options shared by `run` and `check`.
#[derive(Debug, Args)]
pub struct ComparisonOptions {
    #[command(flatten)]
    pub target: RequestedModelOptions,
    #[command(flatten)]
    pub select: SelectionOptions,
    #[command(flatten)]
    pub mode: ModeOptions,
    #[command(flatten)]
    pub causes: CauseOptions,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub numerics: NumericsOptions,
    #[command(flatten)]
    pub suppose: SuppositionOptions,
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    pub map: MapOptions,
    #[command(flatten)]
    pub shard: ShardOptions,
    #[command(flatten)]
    pub stream: DumpStreamOptions,
    #[command(flatten)]
    pub threads: ThreadOptions,
}

impl ComparisonOptions {
    /// Returns the selected checkpoints, layers, passes and positions.
    pub fn selection(&self) -> Selection {
        self.mode.selection(&self.select)
    }

    /// Returns the errors to measure. A shard only measures local errors, since accumulated errors need the
    /// whole model.
    ///
    /// # Errors
    /// If accumulated errors of a shard are requested.
    pub fn mode(&self) -> Result<Mode> {
        match self.mode.mode() {
            Mode::Accumulated if self.shard.is_given() => Err(Error::Usage(
                "--total and --shard: accumulated errors need a run of the whole model, but a shard runs \
                 only a part; omit --total or --shard"
                    .to_owned(),
            )),
            Mode::Both if self.shard.is_given() => Ok(Mode::Local),
            mode => Ok(mode),
        }
    }

    /// Opens the report folder. With `--resume`, finished results are kept.
    ///
    /// # Errors
    /// The errors of [`ReportOutput::open`].
    pub fn open_output(&self, run: &str) -> Result<ReportOutput> {
        if self.shard.is_given() && self.output.baseline.baseline.is_some() {
            return Err(Error::Usage(
                "--baseline and --shard: a baseline covers the whole comparison; use it with xcheck merge"
                    .to_owned(),
            ));
        }
        let run = &self
            .shard
            .choice()?
            .map_or(run.to_owned(), |shard| format!("{run}-{}of{}", shard.index, shard.of));
        if self.shard.resume {
            ReportOutput::going_on(&self.output, run)
        } else {
            ReportOutput::open(&self.output, run)
        }
    }

    /// Returns the supposed changes of our engine.
    pub fn suppositions(&self) -> Vec<Supposition> {
        self.suppose.suppositions(self.selection().layers.as_ref())
    }
}

/// The data that all comparisons of one command share.
pub struct ComparisonContext<'r> {
    pub target: &'r RequestedModel,
    pub selection: &'r Selection,
    pub tolerances: &'r Tolerances,
    pub options: &'r ComparisonOptions,
    pub mode: Mode,
    /// Subcommand that repeats the comparison, and the option before the dump's name, if any.
    pub command: (&'static str, Option<&'static str>),
    /// Directory of a shard's finished results.
    pub output: &'r ReportOutput,
}

/// A possible arithmetic of the dump's engine: stated in the manifest, or inferred from the values.
struct EngineArithmetic {
    producer: Producer,
    choices: Vec<Box<dyn Numerics>>,
    is_stated: bool,
    /// Rounding profile, if it was inferred from the values.
    shown: Option<Profile>,
    /// Note to show if this arithmetic is used.
    note: Option<String>,
    /// Reason why this arithmetic cannot give a pass, since the dump's values contradict it.
    contradiction: Option<String>,
    /// True if neither the manifest nor the stored types suggest this arithmetic.
    is_guess: bool,
}

impl EngineArithmetic {
    /// Makes a stated arithmetic that nothing contradicts.
    fn new(producer: Producer, choices: Vec<Box<dyn Numerics>>) -> Self {
        let (shown, note, contradiction) = (None, None, None);
        Self { producer, choices, is_stated: true, shown, note, contradiction, is_guess: false }
    }
}

impl ComparisonContext<'_> {
    /// Runs the model on the dump's input and compares.
    pub fn of(&self, named: &NamedDump, role: Role, models: &mut LoadedModels) -> Result<Comparison> {
        let started = SystemTime::now();
        let variant = self.target.variant_for(named)?;
        variant.begin_hash();
        let loaded = models.load(variant)?;
        if let Some(shard) = self.options.shard.choice()? {
            return self.part(shard, named, role, variant, loaded);
        }
        let mut outcome = self.outcome(named, role, loaded)?;
        let besides = self.besides(named, variant, &outcome)?;
        outcome.notes.extend(besides);
        outcome.lack(&named.lacking);
        outcome.notes.extend(self.other_weights(named, role, &outcome, variant, models)?);
        self.comparison(named, (variant, models.load(variant)?), outcome, started, None)
    }

    /// Returns a note if the dump fails without a confirmed cause, but passes with another weight file of the same model.
    fn other_weights(
        &self,
        named: &NamedDump,
        role: Role,
        outcome: &Outcome,
        used: &ModelVariant,
        models: &mut LoadedModels,
    ) -> Result<Option<String>> {
        let is_unexplained = outcome.verdict == Verdict::Fail && outcome.confirmed_causes().is_empty();
        if !is_unexplained || !self.options.causes.are_sought() {
            return Ok(None);
        }
        for other in self.target.variants.iter().filter(|other| other.name != used.name) {
            let loaded = models.load(other)?;
            let ways = self.ways(named, loaded)?;
            let judge = |way: &EngineArithmetic, numerics: &dyn Numerics| {
                self.by(way, numerics, false, named, role, loaded)
            };
            let (found, ..) = best_way(&ways, judge)?;
            if found.verdict == Verdict::Pass {
                let name = &other.name;
                return Ok(Some(format!(
                    "the dump passes with {name}, another weight file of this model; if the engine ran these weights, \
                     use --model {name}"
                )));
            }
        }
        Ok(None)
    }

    /// Makes the comparison, with the arguments that repeat it.
    pub(super) fn comparison(
        &self,
        named: &NamedDump,
        (variant, loaded): (&ModelVariant, &LoadedModel),
        outcome: Outcome,
        started: SystemTime,
        sharded: Option<ShardedComparison>,
    ) -> Result<Comparison> {
        Ok(Comparison {
            model: record(&self.target.name, variant, loaded)?,
            tokens: texts(Some(self.target), &outcome, &named.dump.manifest),
            outcome,
            again: self.again_with(named),
            reference: named.words.is_empty().then(|| named.alone.clone()),
            timing: Timing::since(started),
            sharded,
        })
    }

    /// Returns notes on the files and on differing texts.
    pub(super) fn besides(
        &self,
        named: &NamedDump,
        variant: &ModelVariant,
        outcome: &Outcome,
    ) -> Result<Vec<String>> {
        let elsewhere = variant.elsewhere()?;
        let of_elsewhere =
            elsewhere.as_ref().filter(|_| outcome.verdict == Verdict::Fail).map(|_| NO_CAUSES.to_owned());
        let unexplained = self.options.causes.note(outcome.verdict).or(of_elsewhere);
        let settings = named.dump.manifest.producer.unread_settings();
        let files = unexplained.into_iter().chain(elsewhere).chain(named.notes.clone()).chain(settings);
        let origin = self.target.origin(named, variant)?;
        Ok(files.chain(origin).chain(parting(self.target, outcome, &named.dump)).collect())
    }

    /// Returns the outcome for the stated numerics, or otherwise for the numerics that explain the dump best.
    /// Causes are searched only with these numerics.
    fn outcome(&self, named: &NamedDump, role: Role, loaded: &LoadedModel) -> Result<Outcome> {
        let ways = self.ways(named, loaded)?;
        let is_alone = ways.iter().map(|way| way.choices.len()).sum::<usize>() == 1;
        let by = |way: &EngineArithmetic, numerics: &dyn Numerics, causes: bool| {
            let causes = causes && self.options.causes.are_sought();
            self.by(way, numerics, causes, named, role, loaded)
        };
        let (mut outcome, mut way, mut numerics) =
            best_way(&ways, |way, numerics| by(way, numerics, is_alone))?;
        let of_integers = self.ways_of_integers(&outcome, way, named, loaded);
        let mut is_alone = is_alone;
        for other in &of_integers {
            let found = by(other, &*other.choices[0], false)?;
            // An arithmetic that no product shows is accepted only if it explains everything.
            let is_shown = outcome.integers().is_some() || found.verdict == Verdict::Pass;
            if is_shown && wrong(&found) < wrong(&outcome) {
                (outcome, way, numerics, is_alone) = (found, other, &*other.choices[0], false);
            }
            if outcome.verdict == Verdict::Pass {
                break;
            }
        }
        // The first arithmetic is stated by the dump, or shown by values that contradict the dump. Any other
        // is a guess that the values must confirm.
        let said = (&ways[0], &*ways[0].choices[0]);
        let is_guess = way.is_guess || !way.is_stated && numerics.name() != said.1.name();
        let mut undecided = None;
        if is_guess && outcome.verdict == Verdict::Pass {
            let by_said = by(said.0, said.1, false)?;
            match (outcome.is_nearer_than(&by_said), way.is_guess) {
                (true, _) => {}
                (false, true) => (outcome, way, numerics, is_alone) = (by_said, said.0, said.1, false),
                (false, false) => undecided = Some(undecided_between(numerics.name(), said.1.name())),
            }
        }
        if outcome.verdict != Verdict::Pass && !is_alone && self.options.causes.are_sought() {
            outcome = by(way, numerics, true)?;
        }
        outcome.lack(undecided.as_slice());
        if let Some(doubt) = self.doubt_of_caches(&outcome, way, named, &by, loaded)? {
            outcome.doubt(&doubt);
        }
        if !self.options.shard.is_given() {
            self.confirm_causes(&mut outcome, |supposed| {
                self.supposing(supposed, way, numerics, false, named, role, loaded)
            });
        }
        if !way.is_stated {
            let names: Vec<_> = way.choices.iter().map(|numerics| numerics.name()).collect();
            outcome.notes.push(about_arithmetic(&way.producer, &names, &outcome.subject.numerics));
        }
        if numerics.cache_noise() > 0.0 {
            outcome.notes.push(ABOUT_SCALES.to_owned());
        }
        outcome.notes.extend(way.note.clone());
        if let Some(why) = way.contradiction.clone().filter(|_| outcome.verdict == Verdict::Pass) {
            outcome.lack(&[why]);
        }
        Ok(outcome)
    }

    /// Returns the possible arithmetics: stated by the dump, shown by its values, or suggested by the format
    /// of the model file.
    fn ways(&self, named: &NamedDump, loaded: &LoadedModel) -> Result<Vec<EngineArithmetic>> {
        let options = &self.options.numerics;
        let way = |producer: Producer, shown, note| -> Result<EngineArithmetic> {
            let (choices, is_stated) = options.of_dump(&*loaded.model, &producer)?;
            Ok(EngineArithmetic { is_stated, shown, note, ..EngineArithmetic::new(producer, choices) })
        };
        let producer = &named.dump.manifest.producer;
        let mut said = way(producer.clone(), None, None)?;
        let is_open = !options.is_named();
        let contradiction = contradiction_of_dtype(&named.dump).filter(|_| is_open);
        said.contradiction = contradiction.as_ref().map(|shown| {
            format!(
                "{}, but its rounding does not explain the values; if the engine computes only the logits in a \
                    longer type, record block_out too",
                shown.note
            )
        });
        let of_values = dtype_of_values(&named.dump).filter(|_| is_open);
        let shown = contradiction.into_iter().chain(cache_of_rows(&named.dump)).chain(of_values);
        let shown = shown.filter_map(|shown| way(shown.producer, shown.rounding, Some(shown.note)).ok());
        let mut ways: Vec<EngineArithmetic> = [said].into_iter().chain(shown).collect();
        // An arithmetic that the values contradict is tried last.
        if ways[0].contradiction.is_some() {
            ways.rotate_left(1);
        }
        if loaded.format == "gguf" {
            let choices = options.of_gguf(&*loaded.model, producer)?;
            let note = "the dump does not state its arithmetic; its values match the arithmetic of llama.cpp";
            let note = Some(note.to_owned());
            let suggested =
                EngineArithmetic { note, is_guess: true, ..EngineArithmetic::new(producer.clone(), choices) };
            ways.extend(Some(suggested).filter(|way| !way.choices.is_empty()));
        }
        Ok(ways)
    }

    /// Returns a reason for doubt if only logits fail and a KV cache type that the dump does not state
    /// explains them.
    fn doubt_of_caches(
        &self,
        outcome: &Outcome,
        said: &EngineArithmetic,
        named: &NamedDump,
        by: &impl Fn(&EngineArithmetic, &dyn Numerics, bool) -> Result<Outcome>,
        loaded: &LoadedModel,
    ) -> Result<Option<String>> {
        // A named cause explains more than a cache type.
        let is_asked = outcome.verdict == Verdict::Fail
            && outcome.cause().is_none()
            && !self.options.numerics.is_named();
        let says_cache = said.producer.setting("kv_cache").is_some();
        if !is_asked || says_cache || self.options.mode.profile().is_some() {
            return Ok(None);
        }
        // With more taps, an 8-bit cache with unknown scales would explain too much.
        let tried = if holds_results_alone(&named.dump) { usize::MAX } else { FLOATS };
        for name in short_caches().take(tried) {
            let mut producer = said.producer.clone();
            producer.settings.insert("kv_cache".to_owned(), name.into());
            let Ok((choices, is_stated)) = self.options.numerics.of_dump(&*loaded.model, &producer) else {
                continue;
            };
            let way = EngineArithmetic {
                is_stated,
                shown: said.shown,
                is_guess: true,
                ..EngineArithmetic::new(producer, choices)
            };
            let mut explains = false;
            for numerics in &way.choices {
                let found = by(&way, &**numerics, false)?;
                // An engine with such a cache has an error of about the cache's rounding error.
                let is_off = found
                    .rows
                    .iter()
                    .filter_map(SiteResult::bound_ratio)
                    .any(|bound_ratio| bound_ratio >= LEAST_OF_NOISE);
                let is_seen = match numerics.cache_noise() > 0.0 {
                    true => is_off,
                    false if tried == FLOATS => found.is_mostly_nearer_than(outcome),
                    false => found.is_nearer_than(outcome),
                };
                explains |= found.verdict == Verdict::Pass && is_seen;
            }
            if explains {
                return Ok(Some(format!(
                    "rounding explains the errors only if the KV cache is {name}, and the dump states no cache type; if it is \
                     {name}, state it in settings.kv_cache or pass --kv-cache {name}"
                )));
            }
        }
        Ok(None)
    }

    /// Returns the possible arithmetics with 8-bit activations: those that the products show, or those of
    /// common engines if no products were recorded.
    fn ways_of_integers(
        &self,
        outcome: &Outcome,
        said: &EngineArithmetic,
        named: &NamedDump,
        loaded: &LoadedModel,
    ) -> Vec<EngineArithmetic> {
        let is_demanded = self.options.numerics.is_named() || self.options.mode.profile().is_some();
        if outcome.verdict == Verdict::Pass || is_demanded {
            return Vec::new();
        }
        let is_guess = outcome.integers().is_none();
        let products = match outcome.integers() {
            Some(products) => vec![products],
            None if says_nothing_of_products(&named.dump) => {
                common_products(loaded.model.dimensions().vocab_size)
            }
            None => Vec::new(),
        };
        let way = |products: IntegerProducts| {
            let producer = with_integers(&said.producer, products)?;
            let (choices, is_stated) = self.options.numerics.of_dump(&*loaded.model, &producer).ok()?;
            let known = said.shown.unwrap_or(Profile::of(&**choices.first()?));
            let shown = known.stated(producer.rounding.as_ref()?).ok()?;
            let note = Some(about_integers(&products));
            Some(EngineArithmetic {
                is_stated,
                shown: Some(shown),
                note,
                is_guess,
                ..EngineArithmetic::new(producer, choices)
            })
        };
        products.into_iter().filter_map(way).collect()
    }

    /// Runs the model with the first cause supposed, or if that is not enough with all causes, and records if
    /// this explains every failure.
    fn confirm_causes(&self, outcome: &mut Outcome, by: impl Fn(&[Supposition]) -> Result<Outcome>) {
        let is_cause = |at: &usize| outcome.findings[*at].kind.is_cause();
        let causes: Vec<usize> = (0..outcome.findings.len()).filter(is_cause).collect();
        let Some(&first) = causes.first().filter(|_| outcome.verdict == Verdict::Fail) else { return };
        let own = self.options.suppositions();
        let verdict_of = |causes: &[usize], outcome: &Outcome| -> Option<Verdict> {
            let mut changes: Vec<&str> = Vec::new();
            for &at in causes {
                let of_cause = outcome.findings[at].changes()?;
                changes.extend(of_cause);
            }
            changes.sort_unstable();
            changes.dedup();
            let changes = changes.into_iter().map(Supposition::named).collect::<Result<Vec<_>, _>>().ok()?;
            let supposed: Vec<_> = own.iter().cloned().chain(changes).collect();
            // A change that does not apply to this model confirms nothing. It is not an error of the dump.
            Some(by(&supposed).ok()?.verdict)
        };
        let alone = verdict_of(&[first], outcome);
        let is_refuted = alone.is_some_and(|verdict| !verdict.is_good());
        let together = Some(&causes).filter(|all| is_refuted && all.len() > 1);
        let together = together.and_then(|all| verdict_of(all, outcome)).filter(|verdict| verdict.is_good());
        match (alone, together) {
            (_, Some(verdict)) => outcome.confirm(&causes, verdict),
            (Some(verdict), None) => outcome.confirm(&[first], verdict),
            (None, None) => {}
        }
    }

    fn by(
        &self,
        way: &EngineArithmetic,
        numerics: &dyn Numerics,
        causes: bool,
        named: &NamedDump,
        role: Role,
        loaded: &LoadedModel,
    ) -> Result<Outcome> {
        self.supposing(&self.options.suppositions(), way, numerics, causes, named, role, loaded)
    }

    #[expect(clippy::too_many_arguments, reason = "one more than `by`")]
    fn supposing(
        &self,
        suppositions: &[Supposition],
        way: &EngineArithmetic,
        numerics: &dyn Numerics,
        causes: bool,
        named: &NamedDump,
        role: Role,
        loaded: &LoadedModel,
    ) -> Result<Outcome> {
        let said = self.rules(way.is_stated, named, role, loaded, suppositions);
        let rounding = match (said.rounding, way.shown) {
            (EngineRounding::Stated, Some(shown)) => EngineRounding::Shown(shown),
            (said, _) => said,
        };
        let budget = self.options.causes.budget();
        let rules = Rules { causes, rounding, budget: budget.as_ref(), ..said };
        let mut progress = RunProgress::new(&named.name, loaded.model.dimensions().n_layers)
            .along(named.dump.manifest.passes.iter().map(|pass| pass.tokens.len()));
        cross_check(&named.name, &*loaded.model, numerics, &named.dump, rules, &mut progress)
    }

    /// Returns the rules for a dump.
    pub(super) fn rules<'x>(
        &'x self,
        is_stated: bool,
        named: &NamedDump,
        role: Role,
        loaded: &LoadedModel,
        suppositions: &'x [Supposition],
    ) -> Rules<'x> {
        Rules {
            selection: self.selection,
            tolerances: self.tolerances,
            precision: named.dump.manifest.producer.precision().unwrap_or(loaded.precision.name()),
            gate: self.options.mode.gate(),
            mode: self.mode,
            role,
            rounding: self.options.mode.profile().map_or(EngineRounding::Stated, EngineRounding::Demanded),
            is_stated,
            suppositions,
            causes: self.options.causes.are_sought(),
            budget: None,
        }
    }

    /// Returns the arguments that judge a dump again.
    pub(super) fn again_with(&self, named: &NamedDump) -> Vec<String> {
        let (command, option) = self.command;
        let words = named.words.iter().filter(|word| !word.is_empty()).cloned();
        self.again(command, option.map(str::to_owned).into_iter().chain([named.typed.clone()]).chain(words))
    }

    /// Returns the arguments of `command` that repeat the comparison.
    pub fn again(&self, command: &str, with: impl IntoIterator<Item = String>) -> Vec<String> {
        let model = [command, "--model", &self.target.typed].map(str::to_owned);
        let mut words: Vec<String> = model.into_iter().chain(with).collect();
        words.extend(self.options.numerics.words());
        words.extend(self.options.model.words());
        words.extend(self.options.mode.words());
        words.extend(self.options.suppose.words());
        words.extend(self.options.select.tolerance_words());
        words
    }
}

/// Number of 16-bit cache types, f16 and bf16, whose rounding is known. They come first in the list.
const FLOATS: usize = 2;

/// Minimum bound ratio of logits for which a cache of unknown scales is a plausible explanation.
const LEAST_OF_NOISE: f64 = 0.1;

/// Note for a KV cache with unknown scales.
const ABOUT_SCALES: &str = "the scales of the KV cache are not recorded: the error bound covers rounding to \
    8 bits under any scale";

/// Returns the sort key of an outcome: verdict, then number of failing rows. The smallest key is the best
/// explanation.
fn wrong(outcome: &Outcome) -> (Verdict, usize) {
    (outcome.verdict, outcome.count(Verdict::Fail))
}

/// Returns the first arithmetic with the best verdict and the fewest failures, with its numerics. A stated
/// arithmetic must be possible; one shown only by values need not be.
fn best_way(
    ways: &[EngineArithmetic],
    judge: impl Fn(&EngineArithmetic, &dyn Numerics) -> Result<Outcome>,
) -> Result<(Outcome, &EngineArithmetic, &dyn Numerics)> {
    let [said, shown @ ..] = ways else { panic!("what a dump says is a way") };
    let (outcome, numerics) = best_choice(said, |numerics| judge(said, numerics))?;
    let mut best = (outcome, said, numerics);
    for way in shown {
        if best.0.verdict == Verdict::Pass {
            break;
        }
        let Ok((outcome, numerics)) = best_choice(way, |numerics| judge(way, numerics)) else { continue };
        best = if wrong(&outcome) < wrong(&best.0) { (outcome, way, numerics) } else { best };
    }
    Ok(best)
}

/// Returns the first numerics of an arithmetic that give the best verdict.
fn best_choice(
    way: &EngineArithmetic,
    judge: impl Fn(&dyn Numerics) -> Result<Outcome>,
) -> Result<(Outcome, &dyn Numerics)> {
    let mut best = (judge(&*way.choices[0])?, &*way.choices[0]);
    for numerics in &way.choices[1..] {
        if best.0.verdict != Verdict::Pass {
            let other = judge(&**numerics)?;
            best = if other.verdict < best.0.verdict { (other, &**numerics) } else { best };
        }
    }
    Ok(best)
}

fn undecided_between(one: &str, other: &str) -> String {
    format!(
        "the dump does not state its arithmetic, and its values fit {one} and {other} about equally well; \
         name the arithmetic in settings.numerics, or use --numerics"
    )
}

/// Returns the note for a dump that does not state its arithmetic for its weights.
pub(super) fn about_arithmetic(producer: &Producer, names: &[&str], told: &str) -> String {
    if let [_] = names {
        let stated = |key: &str| Some(format!("{key} {}", producer.setting(key)?));
        let cache = producer.has_eight_bit_cache().then_some("kv_cache");
        let stated: Vec<_> = ["weights", "dtype"].into_iter().chain(cache).filter_map(stated).collect();
        return format!(
            "{} cannot be reproduced, so an error that rounding to 8 bits may explain is inconclusive; use \
             --numerics NAME to choose the arithmetic",
            stated.join(", ")
        );
    }
    format!(
        "the dump does not state its arithmetic for these weights: xcheck ran {} and reports {told}",
        names.join(" and ")
    )
}
