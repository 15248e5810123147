//! Comparison of a model with a dump, shared by the commands `run` and `check`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Instant, SystemTime};

use clap::Args;

use crate::align::Selection;
use crate::catalogue::Supposition;
use crate::check::{EngineRounding, Mode, Role, Rules, Tolerances};
use crate::checkpoint::Point;
use crate::cli::mapped_files::MapOptions;
use crate::cli::mode_options::ModeOptions;
use crate::cli::named_dump::NamedDump;
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{
    CauseOptions, ModelOptions, OutputOptions, RequestedModelOptions, SelectionOptions, SuppositionOptions,
    ThreadOptions,
};
use crate::cli::output::ReportOutput;
use crate::cli::requested_model::{ModelVariant, RequestedModel, record};
use crate::cli::shard_options::ShardOptions;
use crate::cli::stream_options::DumpStreamOptions;
use crate::cli::text_difference::parting;
use crate::cli::token_texts::texts;
use crate::dump::{Dump, Producer};
use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::report::{Comparison, ShardedComparison, Timing};
use crate::verdict::{Outcome, Verdict};

/// The formats of a model, loaded on first use.
pub(crate) struct LoadedModels<'a> {
    options: &'a ModelOptions,
    loaded: HashMap<String, LoadedModel>,
}

impl<'a> LoadedModels<'a> {
    pub(crate) fn new(options: &'a ModelOptions) -> Self {
        Self { options, loaded: HashMap::new() }
    }

    pub(crate) fn load(&mut self, variant: &ModelVariant) -> Result<&LoadedModel> {
        Ok(match self.loaded.entry(variant.name.clone()) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(place) => place.insert(self.options.load(variant)?),
        })
    }
}

/// Returns true if a dump records outputs of modules.
pub(crate) fn has_modules(dump: &Dump) -> bool {
    dump.sites().any(|site| matches!(site.point, Point::Module(_)))
}

/// Note for a model whose weights are remote.
const NO_CAUSES: &str = "causes were not searched: the search needs the whole model, but its weights are \
    remote; download the model and run again";

/// Options shared by `run` and `check`.
#[derive(Debug, Default, Args)]
pub(crate) struct ComparisonOptions {
    #[command(flatten)]
    pub(crate) target: RequestedModelOptions,
    #[command(flatten)]
    pub(crate) select: SelectionOptions,
    #[command(flatten)]
    pub(crate) mode: ModeOptions,
    #[command(flatten)]
    pub(crate) causes: CauseOptions,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
    #[command(flatten)]
    pub(crate) numerics: NumericsOptions,
    #[command(flatten)]
    pub(crate) suppose: SuppositionOptions,
    #[command(flatten)]
    pub(crate) model: ModelOptions,
    #[command(flatten)]
    pub(crate) map: MapOptions,
    #[command(flatten)]
    pub(crate) shard: ShardOptions,
    #[command(flatten)]
    pub(crate) stream: DumpStreamOptions,
    #[command(flatten)]
    pub(crate) threads: ThreadOptions,
}

impl ComparisonOptions {
    /// Returns the selected checkpoints, layers, passes and positions.
    pub(crate) fn selection(&self) -> Selection {
        self.mode.selection(&self.select)
    }

    /// Returns the errors to measure. A shard only measures local errors, since accumulated errors need the
    /// whole model.
    ///
    /// # Errors
    /// If accumulated errors of a shard are requested.
    pub(crate) fn mode(&self) -> Result<Mode> {
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
    pub(crate) fn open_output(&self, run: &str) -> Result<ReportOutput> {
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
    pub(crate) fn suppositions(&self) -> Vec<Supposition> {
        self.suppose.suppositions(self.selection().layers.as_ref())
    }
}

/// The data that all comparisons of one command share.
pub(crate) struct ComparisonContext<'r> {
    pub(crate) target: &'r RequestedModel,
    pub(crate) selection: &'r Selection,
    pub(crate) tolerances: &'r Tolerances,
    pub(crate) options: &'r ComparisonOptions,
    pub(crate) mode: Mode,
    /// Subcommand that repeats the comparison, and the option that precedes the dump's name, if any.
    pub(crate) command: (&'static str, Option<&'static str>),
    /// Directory of a shard's finished results.
    pub(crate) output: &'r ReportOutput,
}

impl ComparisonContext<'_> {
    /// Runs the model on the dump's input and compares.
    pub(crate) fn of(&self, named: &NamedDump, role: Role, models: &mut LoadedModels) -> Result<Comparison> {
        let started = SystemTime::now();
        if has_modules(&named.dump) {
            return Err(Error::Usage(format!(
                "{}: the dump records outputs of a torch model's modules, which our engine cannot evaluate; use \
                 xcheck check --evaluator torch",
                named.name
            )));
        }
        let variant = self.target.variant_for(named)?;
        variant.begin_hash();
        let loaded = models.load(variant)?;
        if let Some(shard) = self.options.shard.choice()? {
            return self.part(shard, named, role, variant, loaded);
        }
        let mut outcome = self.outcome(named, role, loaded, self.options.causes.are_sought())?;
        let besides = self.besides(named, variant, &outcome)?;
        outcome.notes.extend(besides);
        outcome.lack(&named.lacking);
        outcome.notes.extend(self.other_weights(named, role, &outcome, variant, models));
        self.comparison(named, (variant, models.load(variant)?), outcome, started, None)
    }

    /// Returns a note if the dump fails without a confirmed cause, but passes with another weight file of the same
    /// shipped model. The time limit of the search for causes holds for this search, too.
    fn other_weights(
        &self,
        named: &NamedDump,
        role: Role,
        outcome: &Outcome,
        used: &ModelVariant,
        models: &mut LoadedModels,
    ) -> Option<String> {
        let causes = &self.options.causes;
        let is_unexplained = outcome.verdict == Verdict::Fail && outcome.confirmed_causes().is_empty();
        if !is_unexplained || !causes.are_sought() {
            return None;
        }
        let began = Instant::now();
        let others = self.target.variants.iter().filter(|other| other.name != used.name);
        for other in others.take_while(|_| causes.limit().is_none_or(|limit| began.elapsed() < limit)) {
            // A file that cannot be loaded or computed with is not the one that the engine ran.
            let Ok(loaded) = models.load(other) else { continue };
            let Ok(mut found) = self.outcome(named, role, loaded, false) else { continue };
            found.lack(&named.lacking);
            if found.verdict == Verdict::Pass {
                let name = &other.name;
                return Some(format!(
                    "the dump passes with {name}, another weight file of this model; if the engine ran these weights, \
                     use --model {name}"
                ));
            }
        }
        None
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

    /// Returns notes on the files, and on texts that differ.
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

    /// Returns the rules for judging a dump of this producer.
    pub(super) fn rules<'x>(
        &'x self,
        is_stated: bool,
        producer: &Producer,
        role: Role,
        loaded: &LoadedModel,
        suppositions: &'x [Supposition],
    ) -> Rules<'x> {
        Rules {
            selection: self.selection,
            tolerances: self.tolerances,
            precision: producer.precision().unwrap_or(loaded.precision.name()),
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
    pub(crate) fn again(&self, command: &str, with: impl IntoIterator<Item = String>) -> Vec<String> {
        let model = [command.to_owned()].into_iter().chain(self.target.words());
        let mut words: Vec<String> = model.chain(with).collect();
        words.extend(self.options.numerics.words());
        words.extend(self.options.model.words());
        words.extend(self.options.mode.words());
        words.extend(self.options.suppose.words());
        words.extend(self.options.select.tolerance_words());
        words
    }
}
